"""Other programs, and what they leave behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirrord.core.errors import IoFailed
from mirrord.system import command


def test_what_a_program_left_behind_ends_with_its_time(tmp_path: Path) -> None:
    left = tmp_path / "left"
    with pytest.raises(IoFailed, match="did not end within"):
        # It is over at once, but what it started holds on to its output.
        command.run(["/bin/sh", "-c", f"sleep 60 & echo $! > {left}"], timeout_s=3)
    number = int(left.read_text())
    deadline_s = time.monotonic() + 60
    while _lives(number):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def _lives(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
