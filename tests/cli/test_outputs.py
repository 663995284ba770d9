"""What becomes of a command whose output nobody takes."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.contract.lab_block import lab
from tests.support.world import NAME, ROOT, World


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("block")
    with lab(folder) as made:
        return World(made, folder / "home").initialized()


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["snapshots", NAME],
        ["history", NAME],
        ["delta", NAME, "--files"],
        ["status", "--json"],
        ["explain", NAME],
        ["alarms"],
        ["--help"],
        ["restore", "--help"],
        ["no-such-command"],
        ["update", "no-such-mirror"],
    ],
    ids=" ".join,
)
def test_a_closed_pipe_ends_a_command_without_a_word(block: World, words: list[str]) -> None:
    for errors_too in (False, True):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            block.command(*words),
            env=block.environment(),
            cwd=ROOT,
            stdout=writing,
            stderr=writing if errors_too else subprocess.PIPE,
            timeout=60,
        )
        os.close(writing)
        assert done.returncode in (1, 2, 141)
        if not errors_too:
            assert b"Traceback" not in done.stderr and b"unexpected" not in done.stderr
            assert done.returncode == (141 if not done.stderr else done.returncode)


def test_closed_and_full_outputs(block: World) -> None:
    words = " ".join(block.command("status"))
    for shell, status in (
        (f"{words} >&-", 0),
        (f"{words} >&- 2>&-", 0),
        (f"{words} --jsn 2>/dev/full", 2),
        (f"PYTHONUNBUFFERED=1 {words} --jsn --json >/dev/full", 2),
        (f"{words} >/dev/full", 1),
    ):
        done = subprocess.run(
            shell, shell=True, env=block.environment(), cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr and "unexpected" not in done.stderr
    assert "the output cannot be written: No space left on device" in done.stderr
