"""Other programs, and what they leave behind."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from mirrord.core.errors import Aborted, IoFailed
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


def test_of_an_endless_output_only_the_end_is_kept() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    program = "head -c 400000000 /dev/zero; echo end; seq 50000 >&2; kill -SEGV $$"
    done = command.run(["/bin/sh", "-c", program], timeout_s=60)
    assert len(done.output) == 64 << 10 and done.output.endswith("end\n")
    assert done.ending() == "was ended by signal 11: 50000"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (100 << 10)


def test_a_long_output_is_not_checked_part_by_part() -> None:
    checks: list[float] = []
    began_s = time.monotonic()
    words = ["/usr/bin/head", "-c", "400000000", "/dev/zero"]
    command.run(words, timeout_s=60, check=lambda: checks.append(time.monotonic()))
    assert len(checks) <= (time.monotonic() - began_s) * 10
    with pytest.raises(Aborted):
        command.run(["/usr/bin/yes"], timeout_s=60, check=_abort)


def _abort() -> None:
    raise Aborted("the transfer was aborted")


def test_input_is_given_and_a_program_need_not_read_it() -> None:
    given = bytes(range(256)) * 10000
    found = command.run(["/usr/bin/sha256sum"], timeout_s=60, given=given)
    assert found.output.split()[0] == hashlib.sha256(given).hexdigest()
    assert command.run(["/bin/true"], timeout_s=60, given=given).status == 0
    assert command.run(["/bin/sh", "-c", "exec >&- 2>&-; sleep 0.5"], timeout_s=60).status == 0
    with pytest.raises(IoFailed, match="did not end within"):
        command.run(["/bin/sh", "-c", "exec >&- 2>&-; sleep 60"], timeout_s=0.5)


def _lives(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("reaped", ["before", "meanwhile"])
def test_a_program_that_another_thread_waits_for_has_ended(
    monkeypatch: pytest.MonkeyPatch, reaped: str
) -> None:
    """Between its end and the record of that, nothing of its process is left."""
    process = command.start(["true"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watch = os.pidfd_open

    def late(pid: int) -> int:
        found = watch(pid)
        os.waitpid(pid, 0)
        return found

    if reaped == "before":
        os.waitpid(process.pid, 0)
    else:
        monkeypatch.setattr(os, "pidfd_open", late)
    assert command.ended(process, timeout_s=None) == 0
