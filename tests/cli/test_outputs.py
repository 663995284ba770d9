"""What becomes of a command whose output nobody takes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from mirrord.cli import watch
from tests.contract.lab_block import lab
from tests.support.definitions import add_lines
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


def test_a_log_that_is_full_ends_no_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LINE_EVERY_S", 0)
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        with watch.watcher(quiet=False) as watching:
            watching.transfer("first", 1 << 20, 0)
            watching.moved(1 << 10)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_a_terminal_that_is_closed_beside_the_bar_ends_a_transfer_as_a_signal(
    block: World,
) -> None:
    file = block.paths.mirrors / f"{NAME}.toml"
    add_lines(file, 'throttle = "16KiB/s"')
    block.lab.change(block.lab.source(), 5)
    ours, theirs = pty.openpty()

    def take() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        block.command("update", NAME),
        env=block.environment(),
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=take,
    )
    os.close(theirs)
    shown = b""
    while b"/" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    assert process.wait(timeout=60) == 128 + signal.SIGHUP
