"""A disk that is slow or does not answer: the process does everything else meanwhile."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.drivers.image import process
from tests.live.command import WORDS, Image, Mirror
from tests.live.kinds_of_io import EACH_IO, RINGLESS
from tests.live.lab import Client, End, Pair, stamp, wait_until
from tests.support.mounts import unmount
from tests.support.service import takes_clients

_SIZE = 8 << 20
#: Forbids io_uring_setup, as container runtimes do, and executes what it is told.
_FORBIDDEN = """#!{python}
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
# Load the number of the call; 425: EPERM; others: allowed.
code = (0x20, 0, 0, 0, 0x15, 0, 1, 425, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
code = struct.pack("HBBI" * 4, *code)
code = ctypes.create_string_buffer(code, len(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", 4, ctypes.addressof(code)), 0, 0) == 0
os.execv({program!r}, sys.argv)
"""


@contextlib.contextmanager
def _disk(folder: Path, *words: str) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """An image on a file system of its own, and the server that executes its requests."""
    image, socket = folder / "device", folder / "socket"
    image.touch()
    command = ["nbdkit", "-f", "-U", str(socket), "--filter=delay", "memory", str(_SIZE), *words]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(command))
        stack.callback(server.kill)
        wait_until(lambda: takes_clients(socket), "the server")
        mounted = stack.enter_context(subprocess.Popen(["nbdfuse", image, "--unix", socket]))
        stack.callback(unmount, image)
        wait_until(lambda: image.stat().st_size == _SIZE, "the device")
        try:
            yield image, server
        finally:
            server.send_signal(signal.SIGCONT)
        assert mounted.poll() is None


def _end(pair: Pair, side: str) -> End:
    return pair.primary if side == "primary" else pair.secondary


@EACH_IO
@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_disk_that_hangs_stops_no_heartbeat(pair: Pair, tmp_path: Path, side: str) -> None:
    with _disk(tmp_path) as (image, server), contextlib.ExitStack() as stack:
        stack.callback(pair.stop)
        stack.callback(server.send_signal, signal.SIGCONT)
        _end(pair, side).image = image
        # Longer than the disk hangs, which is longer than a silent link is tolerated.
        for end in (pair.primary, pair.secondary):
            end.options += ["--hold", "20"]
        pair.start()
        with Client(pair.primary) as client:
            assert client.write(0, stamp(0, 1)) == 0
            server.send_signal(signal.SIGSTOP)
            client.send(1, 7, 0, stamp(0, 2))
            client.send(3, 8, 0, 0)
            until = time.monotonic() + 3
            while time.monotonic() < until:
                asked = time.monotonic()
                for end in (pair.primary, pair.secondary):
                    status = end.status()
                    assert status is not None and status["connected"], status
                assert time.monotonic() - asked < 1
                time.sleep(0.1)
            server.send_signal(signal.SIGCONT)
            assert {client.answer(), client.answer()} == {(7, 0), (8, 0)}
        status = pair.primary.status()
        assert status is not None and status["left_sync"] == 0 and status["in_sync"]
        pair.assert_equal()
        assert pair.secondary.bytes()[:4096] == stamp(0, 2)


@EACH_IO
def test_reads_pass_a_write_that_hangs(pair: Pair, tmp_path: Path) -> None:
    with _disk(tmp_path, "wdelay=4") as (image, _), contextlib.ExitStack() as stack:
        stack.callback(pair.stop)
        pair.primary.image = image
        pair.start()
        with Client(pair.primary) as writer, Client(pair.primary) as reader:
            asked = time.monotonic()
            writer.send(1, 7, 0, stamp(0, 1))
            time.sleep(0.3)
            for block in range(1, 20):
                assert reader.read(block * 4096, 4096) == bytes(4096)
            assert time.monotonic() - asked < 2
            assert writer.answer() == (7, 0)
            assert time.monotonic() - asked > 3
        pair.assert_equal()


def test_a_break_on_a_slow_disk_is_waited_for(tmp_path: Path) -> None:
    """Longer than the process has for an answer; by the next command, if the first one ends."""
    with _disk(tmp_path) as (image, server):
        mirror = Mirror(tmp_path, size=_SIZE)
        mirror.destination, mirror.ends[1] = Image(image), f"image:{image}"
        home = mirror.home
        try:
            mirror.initialize()
            server.send_signal(signal.SIGSTOP)
            words = [*WORDS, "break", "db"]
            with subprocess.Popen(words, env=home.environment) as killed:
                wait_until(lambda: bool(mirror.destination.status()["breaking"]), "the break")
                killed.kill()
            began = time.monotonic()
            with subprocess.Popen(
                words, env=home.environment, stdout=subprocess.PIPE, text=True
            ) as command:
                while time.monotonic() < began + process.BREAK_ANSWER_S + 4:
                    assert command.poll() is None
                    time.sleep(0.1)
                assert mirror.destination.status()["breaking"]
                server.send_signal(signal.SIGCONT)
                said, _ = command.communicate(timeout=60)
            assert command.returncode == 0 and "'db' is broken off: " in said
            assert mirror.destination.status()["role"] == "primary"
            assert home.status()["state"] == "broken-off"
        finally:
            server.send_signal(signal.SIGCONT)
            mirror.close()


@RINGLESS
def test_status_says_what_reads_and_writes(pair: Pair) -> None:
    pair.primary.options += ["--io", "uring"]
    pair.secondary.options += ["--io", "threads"]
    pair.start()
    for end, kind, reason in (
        (pair.primary, "io_uring", ""),
        (pair.secondary, "threads", "--io threads"),
    ):
        status = end.status()
        assert status is not None
        assert (status["io"], status["io_reason"]) == (kind, reason)


def test_threads_where_io_uring_is_not_allowed(pair: Pair, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text(_FORBIDDEN.format(python=sys.executable, program=str(pair.primary.program)))
    launcher.chmod(0o755)
    pair.primary.program = launcher
    pair.start()
    status = pair.primary.status()
    assert status is not None and status["io"] == "threads"
    assert "io_uring_setup: Operation not permitted" in status["io_reason"]
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    pair.assert_equal()
    pair.primary.kill()
    pair.primary.options += ["--io", "uring"]
    with pytest.raises(AssertionError, match="control socket"):
        pair.primary.start(2)
    assert "--io uring: io_uring can't be used" in (pair.primary.folder / "log").read_text()
