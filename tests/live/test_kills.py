"""Both ends are killed at random moments, in and out of sync, while fio verifies what it wrote and
another client writes stamped blocks; at the end the replica takes over.

fio does not reconnect to a server that was restarted: QEMU's NBD server stands between, which
repeats what was not answered, as it does for a virtual machine.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.lab import BLOCK, Client, End, Pair, Writer, wait_until
from tests.support.service import takes_clients

#: The stamped blocks come first; the rest of the image is fio's.
_BLOCKS = 512
_FIO_AT = _BLOCKS * BLOCK
_FIO_SIZE = 4 << 20
_SIZE = _FIO_AT + _FIO_SIZE
#: How it is when the replica takes over.
ENDINGS = ("in sync", "without the replica", "during a resync")


@contextlib.contextmanager
def _reconnecting(end: End) -> Iterator[str]:
    """The address of a server that passes requests on, also after restarts of `end`."""
    path = end.folder / "qemu"
    image = f"driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={end.nbd}"
    words = ["qemu-nbd", "--persistent", "--shared=8", "--cache=none", "--socket", str(path)]
    words += ["--image-opts", f"{image},file.reconnect-delay=120"]
    server = subprocess.Popen(words)
    try:
        wait_until(lambda: takes_clients(path), "QEMU's socket")
        yield f"nbd+unix:///?socket={path}"
    finally:
        server.terminate()
        server.wait(20)


class Fio(threading.Thread):
    """Writes its part of the image, reads it back and compares, again and again."""

    def __init__(self, uri: str) -> None:
        super().__init__(daemon=True)
        self.uri = uri
        self.rounds = 0
        self.problem = ""
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set() and not self.problem:
            words = ["fio", "--name=v", "--ioengine=nbd", f"--uri={self.uri}", "--rw=randwrite"]
            words += ["--bs=4k-32k", "--iodepth=8", f"--offset={_FIO_AT}", f"--size={_FIO_SIZE}"]
            words += ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]
            words += ["--fsync=32", "--rate_iops=1000"]
            done = subprocess.run(
                [*words, f"--randseed={self.rounds}"], capture_output=True, text=True, timeout=180
            )
            if done.returncode or "err= 0" not in done.stdout:
                self.problem = done.stdout + done.stderr
            self.rounds += 1

    def finish(self) -> None:
        self.is_over.set()
        self.join(180)
        assert not self.is_alive()
        assert not self.problem and self.rounds, self.problem


def _stopped(end: End, pause: Callable[[float], None]) -> None:
    """A stop that is longer than the silence that is noticed."""
    assert end.process is not None
    end.process.send_signal(signal.SIGSTOP)
    pause(1.5)
    end.process.send_signal(signal.SIGCONT)


def _accident(pair: Pair, chance: random.Random, pause: Callable[[float], None]) -> None:
    """Kills one end or both, for less or more time than acknowledgements are held."""
    ends = chance.choice([[pair.primary], [pair.secondary], [pair.primary, pair.secondary]])
    for end in ends:
        if chance.random() < 0.15:
            _stopped(end, pause)
        end.kill()
    pause(4 if chance.random() < 0.3 else chance.random() * 0.4)
    for end in chance.sample(ends, len(ends)):
        end.start()


def _survive(pair: Pair, seed: int, accidents: int) -> None:
    chance = random.Random(seed)
    pair.start()
    writer = Writer(pair.primary, _BLOCKS)
    writer.start()
    with _reconnecting(pair.primary) as uri:
        fio = Fio(uri)
        fio.start()
        for _ in range(accidents):
            # Often before the ends are in sync again.
            time.sleep(chance.random() * 1.2)
            _accident(pair, chance, time.sleep)
        wait_until(lambda: pair.primary.is_state("in-sync"), "sync", 60)
        fio.finish()
    with writer.paused():
        pair.assert_equal()
        writer.check(pair.secondary.bytes())
    _take_over(pair, writer, chance, ENDINGS[seed % len(ENDINGS)])


def _take_over(pair: Pair, writer: Writer, chance: random.Random, ending: str) -> None:
    """The primary is killed for good, and the replica broken off."""
    if ending == "during a resync":
        assert pair.primary.ask(f"copy-rate {1 << 20}") == {"ok": True}
        pair.secondary.kill()
        wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync")
        # What the stamped writes do not make equal by themselves.
        with Client(pair.primary) as client:
            assert client.write(_FIO_AT, chance.randbytes(2 << 20)) == 0
        pair.secondary.start()
        wait_until(lambda: pair.primary.is_state("resync"), "the resync")
        time.sleep(0.1 + chance.random() * 0.4)
    elif ending == "without the replica":
        # For less time than acknowledgements are held: what was acknowledged is at both ends.
        pair.secondary.kill()
        time.sleep(0.5)
    state = (pair.primary.status() or {})["state"]
    pair.primary.kill()
    writer.is_over.set()
    writer.join(40)
    assert writer.errors == []
    if ending == "without the replica":
        pair.secondary.start()
    assert pair.secondary.ask("break") == {"ok": True}
    wait_until(lambda: pair.secondary.is_state("out-of-sync"), "its service")
    image = pair.secondary.bytes()
    writer.check_prefix(image)
    if ending == "during a resync":
        assert state == "resync"
    else:
        writer.check(image)


@pytest.fixture
def pair(program: Path, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(program, tmp_path, _SIZE)
    try:
        yield pair
    finally:
        pair.stop()


@pytest.mark.parametrize("seed", range(3))
def test_kills_lose_nothing(pair: Pair, seed: int) -> None:
    _survive(pair, seed, 5)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 121))
def test_many_kills_lose_nothing(pair: Pair, seed: int) -> None:
    _survive(pair, seed, 40)
