"""`live`: the clients of an image that is mirrored live are held back, whoever dies."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirrord.core.errors import PauseFailed
from mirrord.pausers.registry import open_pauser
from mirrord.system import steps
from mirrord.system.paths import Paths
from tests.live.command import Mirror
from tests.live.lab import Client
from tests.pausers.test_guard import order, started
from tests.support import btrfs
from tests.support.service import until
from tests.support.stripes import FILE, RECORD, is_prefix, numbers_in
from tests.support.unit import ROOT
from tests.support.verbs import Service

BLOCK = 4096


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Mirror]:
    """A live mirror whose source is served."""
    mirror = Mirror(tmp_path)
    try:
        mirror.initialize("--policy", "sync")
        mirror.home.run("serve", "db")
        yield mirror
    finally:
        mirror.close()


@pytest.fixture
def client(image: Mirror) -> Iterator[Client]:
    with Client(SimpleNamespace(nbd=image.home.folder / "run/db.nbd")) as made:
        assert made.write(0, b"0" * BLOCK) == 0
        yield made


def held(client: Client, for_s: float = 0.3) -> bool:
    """Whether no answer comes for so long."""
    return not select.select([client.socket], [], [], for_s)[0]


def block(image: Mirror, number: int) -> bytes:
    with image.source.path.open("rb") as file:
        return os.pread(file.fileno(), BLOCK, number * BLOCK)


def test_clients_wait_and_nothing_fails(image: Mirror, client: Client, record: Path) -> None:
    guard = started(order(record, f"live:{image.source.path}", max_s=20))
    guard.pause()
    client.send(1, 1, BLOCK, b"1" * BLOCK)
    assert held(client)
    assert block(image, 1) == bytes(BLOCK), "a request was begun"
    assert image.home.is_in_sync(), "only clients are held back"
    guard.resume()
    assert client.answer() == (1, 0)
    guard.close()
    assert block(image, 1) == b"1" * BLOCK
    image.assert_equal()


def test_what_was_begun_is_not_answered_in_the_pause(
    image: Mirror, client: Client, record: Path
) -> None:
    """With its answer a client may continue at a member whose snapshot is not taken yet."""
    secondary = image.destination.pid
    assert secondary is not None
    os.kill(secondary, signal.SIGSTOP)
    try:
        client.send(1, 1, BLOCK, b"1" * BLOCK)
        until(lambda: block(image, 1) == b"1" * BLOCK)
        guard = started(order(record, f"live:{image.source.path}", max_s=20))
        guard.pause()
    finally:
        os.kill(secondary, signal.SIGCONT)
    until(lambda: image.destination.path.read_bytes()[BLOCK : 2 * BLOCK] == b"1" * BLOCK)
    assert held(client)
    guard.resume()
    assert client.answer() == (1, 0)
    guard.close()


def test_the_guard_is_killed(image: Mirror, client: Client, record: Path) -> None:
    guard = started(order(record, f"live:{image.source.path}", max_s=60))
    guard.pause()
    client.send(1, 1, BLOCK, b"1" * BLOCK)
    assert held(client)
    os.kill(guard._process.pid, signal.SIGKILL)
    assert client.answer() == (1, 0)
    guard.close()
    assert not record.exists()


def test_the_guard_hangs(image: Mirror, client: Client, record: Path) -> None:
    """The process holds the time limit itself, and the set does not count."""
    guard = started(order(record, f"live:{image.source.path}", max_s=2))
    began_s = time.monotonic()
    guard.pause()
    os.kill(guard._process.pid, signal.SIGSTOP)
    try:
        client.send(1, 1, BLOCK, b"1" * BLOCK)
        assert client.answer() == (1, 0)
        assert time.monotonic() - began_s >= 2
        guard.ask_resume()
    finally:
        os.kill(guard._process.pid, signal.SIGCONT)
    with pytest.raises(PauseFailed, match="ended before the snapshots were taken"):
        guard.resumed()
    guard.close()


def test_the_process_is_restarted_in_the_pause(image: Mirror, record: Path) -> None:
    guard = started(order(record, f"live:{image.source.path}"))
    guard.pause()
    image.source.kill()
    with pytest.raises(PauseFailed, match="ended before the snapshots were taken"):
        guard.resume()
    guard.close()


def test_what_cannot_be_held_back(image: Mirror, tmp_path: Path) -> None:
    def refusal(text: str) -> str:
        with closing(open_pauser(text)) as pauser, pytest.raises(PauseFailed) as failure:
            pauser.check([])
            pauser.pause(1)
        return str(failure.value)

    path = image.source.path
    assert "does not answer" in refusal(f"live:{tmp_path}/nothing.img")
    assert "this end of the live mirror is secondary" in refusal(f"live:{image.destination.path}")
    with closing(open_pauser(f"live:{path}")) as pauser:
        pauser.check([])
        pauser.pause(1)
        assert "held back already" in refusal(f"live:{path}")
        assert pauser.is_paused()
    image.source.kill()
    assert "does not answer" in refusal(f"live:{path}")


#: Writes numbers in turn: to the image over NBD, and to a file on another volume. It rests after
#: each, so that the image has room for two minutes of them, however slow the snapshots are.
_WRITER = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from tests.live.lab import Client
file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
with Client(SimpleNamespace(nbd=Path(sys.argv[1]))) as client:
    for row in range(int(sys.argv[3])):
        assert client.write(512 * row, b"%-512d" % (2 * row)) == 0
        os.pwrite(file, b"%-512d" % (2 * row + 1), 512 * row)
        time.sleep(0.002)
"""
_SIZE = 32 << 20


@pytest.mark.parametrize("is_paused", [True, False])
def test_an_image_beside_a_volume(tmp_path: Path, is_paused: bool) -> None:
    """The image is a file on a btrfs volume; the same application writes to another volume, and is
    not paused: without the image it does not continue.
    """
    with btrfs.folders() as (here, there), _elsewhere(here, tmp_path / "at") as at:
        for name in ("a", "c"):
            btrfs.make_subvolume(here / name)
        live = Mirror(at, size=_SIZE)
        home = tmp_path / "home"
        service = Service(Paths(home / "etc", home / "state", home / "run"))
        ends = tuple(f"btrfs:{here / one}=btrfs:{there / one}" for one in ("a", "c"))
        service.create(
            "group", members=ends, pause=f"live:{live.source.path}" if is_paused else "none"
        )
        try:
            live.initialize("--policy", "sync")
            live.home.run("serve", "db")
            file = here / "c" / FILE
            words = [str(live.home.folder / "run/db.nbd"), str(file), str(_SIZE // RECORD)]
            with _written(*words):
                until(lambda: file.exists() and file.stat().st_size > 0)
                service.initialize("group")
                found = [_updated(service, there) for _ in range(5)]
        finally:
            service.close()
            live.close()
        counts = [len(one) for one in found]
        assert all(map(is_prefix, found)) == is_paused, counts
        assert counts == sorted(set(counts)), "each has more than the one before"


@contextmanager
def _written(*words: object) -> Iterator[None]:
    """A client writes in this block, and has not ended by itself."""
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, *map(str, words)], cwd=ROOT)
    try:
        yield
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


@contextmanager
def _elsewhere(folder: Path, at: Path) -> Iterator[Path]:
    """The same folder outside of /dev/shm: what is below /dev counts as a device."""
    at.mkdir()
    subprocess.run(["mount", "--bind", folder, at], check=True)
    try:
        yield at
    finally:
        btrfs.unmount(at)


def _updated(service: Service, there: Path) -> list[int]:
    """The numbers of a new set, of which one snapshot is taken some time after the other."""
    turn = count()
    steps.observe(
        lambda label: time.sleep(next(turn) * 0.03) if label == "BTRFS:SNAPSHOT:TAKE" else None
    )
    try:
        service.update("group")
    finally:
        steps.observe(None)
    files = (there / "a/current/db.img", there / "c/current" / FILE)
    return sorted(number for file in files for number in numbers_in(file))
