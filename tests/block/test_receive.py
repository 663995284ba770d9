"""What a destination keeps while it receives: staged blocks, checkpoints, snapshots of users."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from mirrord.admin import volumes
from mirrord.core.errors import Busy, Damaged, MirrordError, NotFound, Refused
from mirrord.drivers import pinfiles
from mirrord.drivers.block import owner, receive
from mirrord.drivers.block.check import check_volume
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.volume import Volume
from mirrord.system import steps
from tests.contract.flows import MIRROR, mirror, request, stage, whole_stream
from tests.support.blocks import read_snapshot

SIZE = 3 << 20


class Pair:
    """A source of random content and its destination; `base` was mirrored."""

    def __init__(self, folder: Path) -> None:
        self.source, self.destination = folder / "s", folder / "d"
        with Volume.create(self.source, SIZE) as opened:
            opened.write(0, os.urandom(SIZE))
        self.drivers = BlockDriver(str(self.source)), BlockDriver(str(self.destination))
        self.drivers[1].prepare(MIRROR)
        self.base = mirror(*self.drivers, None, "base")

    def write(self, length: int = SIZE // 2) -> None:
        with Volume.open(self.source, writable=True) as opened:
            opened.write(0, os.urandom(length))

    def updates(self, count: int) -> None:
        """The source deletes each base, and so it reuses their blocks."""
        for _ in range(count):
            self.write()
            old = self.base
            self.base = mirror(*self.drivers, old, f"{old.name}-next")
            self.drivers[0].delete_snapshot(old.guid)

    def demand_same(self) -> None:
        one, other = (Volume.open(path) for path in (self.source, self.destination))
        assert one.read(0, SIZE) == other.read(0, SIZE)
        assert check_volume(self.destination).findings == []


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_a_deletion_leaves_the_segment_of_a_staged_transfer(pair: Pair, tmp_path: Path) -> None:
    """A volume that was made live writes to a segment that its other destination does not have."""
    other = BlockDriver(str(tmp_path / "other"))
    other.prepare(MIRROR)
    source, destination = pair.drivers
    with other.receive(request("first", None, pair.base)) as receiver:
        with source.send(None, pair.base.guid) as stream:
            while chunk := stream.read():
                receiver.write(chunk)
        receiver.finish()
    other.commit("first", show=True)
    pair.write(10_000)
    second = mirror(source, other, pair.base, "second")
    with destination.receive(request("second", pair.base, second)) as receiver:
        receiver.write(whole_stream(source, pair.base, second))
        receiver.finish()
    destination.commit("second", show=True)
    destination.promote()
    with Volume.open(pair.destination, writable=True) as opened:
        opened.write(100_000, os.urandom(300_000))
    third = destination.take_snapshot("third")
    assert stage(destination, other, second, third, "third").complete
    other.delete_snapshot(pair.base.guid)
    other.commit("third", show=True)
    assert check_volume(tmp_path / "other").findings == []
    copied = Volume.open(tmp_path / "other").read(0, SIZE)
    assert copied == Volume.open(pair.destination).read(0, SIZE)


@pytest.mark.parametrize("when", ["checkpoint", "end"])
def test_after_a_failed_sync_only_the_last_checkpoint_counts(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The kernel may have dropped the blocks, and a second sync would succeed."""
    if when == "checkpoint":
        monkeypatch.setattr(receive, "_CHECKPOINT_BYTES", SIZE // 4)
    source, destination = pair.drivers
    pair.write()
    snapshot = source.take_snapshot("next")
    whole = whole_stream(source, pair.base, snapshot)
    left = 1

    def observer(label: str) -> None:
        nonlocal left
        if label == "BLOCK:RECEIVE:SYNC" and left:
            left -= 1
            raise OSError(errno.EIO, "injected")

    receiver = destination.receive(request("t", pair.base, snapshot))
    steps.observe(observer)
    try:
        with pytest.raises((MirrordError, OSError)):
            receiver.write(whole)
            receiver.finish()
        receiver.close()
    finally:
        steps.observe(None)
    assert not left
    [staging] = destination.stagings()
    assert not staging.complete and staging.checkpoint is None
    stage(source, destination, pair.base, snapshot, "t")
    destination.commit("t", show=True)
    pair.demand_same()


def test_what_a_damaged_source_sent_is_sent_again_once_the_source_is_repaired(pair: Pair) -> None:
    pair.write(4096)
    with Volume.open(pair.source) as opened:
        content = opened.read(0, 4096)
    taken = pair.drivers[0].take_snapshot("next")
    data = pair.source / "data"
    whole = data.read_bytes()
    data.write_bytes(whole.replace(content, bytes(4096)))
    with pytest.raises(Damaged, match="not what was announced") as caught:
        stage(*pair.drivers, pair.base, taken, "next")
    assert "'mirrord volume check' there" in caught.value.hint
    data.write_bytes(whole)
    assert stage(*pair.drivers, pair.base, taken, "next").complete
    pair.drivers[1].commit("next", show=True)
    pair.demand_same()


def test_a_users_snapshot_at_the_destination_is_not_deleted_for_its_blocks(pair: Pair) -> None:
    _, destination = pair.drivers
    destination.promote()
    with Volume.open(pair.destination, writable=True) as opened:
        mine = opened.snapshot("mine")
        content = opened.read(0, SIZE)
    destination.rollback(pair.base.guid, mirror_id=MIRROR, keep_as="kept")
    with pytest.raises(Refused, match="'mine', which a user took here"):
        pair.updates(8)
    assert read_snapshot(Volume.open(pair.destination), mine.guid, 0, SIZE) == content
    with pytest.raises(Refused, match="belongs to a mirror"):
        volumes.delete_snapshot(pair.destination, pair.base.name)
    volumes.delete_snapshot(pair.destination, "mine")
    for staging in destination.stagings():
        destination.discard(staging.transfer_id)
    pair.updates(4)
    pair.demand_same()


def test_an_update_that_arrives_while_a_users_snapshot_is_deleted_keeps_its_blocks(
    pair: Pair,
) -> None:
    """The deletion returns the snapshot's blocks run by run, and the update needs them."""
    source, destination = pair.drivers
    destination.promote()
    with Volume.open(pair.destination, writable=True) as opened:
        opened.snapshot("mine")
    destination.rollback(pair.base.guid, mirror_id=MIRROR, keep_as="kept")
    with pytest.raises(Refused, match="'mine', which a user took here"):
        pair.updates(8)
    [transfer] = [one.transfer_id for one in destination.stagings()]
    destination.discard(transfer)
    for older in destination.snapshots():
        if older.guid != pair.base.guid:
            destination.delete_snapshot(older.guid)
    newest = source.snapshots()[-1]
    arrived: list[bool] = []

    def arrives(label: str) -> None:
        if label == "BLOCK:RECLAIM:PUNCH" and not arrived:
            arrived.append(False)
            with contextlib.suppress(Busy), BlockDriver(str(pair.destination)).lock("update"):
                arrived[0] = stage(source, destination, pair.base, newest, transfer).complete

    steps.observe(arrives)
    try:
        volumes.delete_snapshot(pair.destination, "mine")
    finally:
        steps.observe(None)
    assert arrived
    if not arrived[0]:
        stage(source, destination, pair.base, newest, transfer)
    destination.commit(transfer, show=True)
    pair.demand_same()


def test_a_users_snapshot_is_not_deleted_while_a_mirror_uses_the_volume(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "_PATIENCE_S", 0.1)
    with Volume.open(pair.source, writable=True) as opened:
        opened.snapshot("mine")
    with pair.drivers[0].lock("mirrord update home"), pytest.raises(Busy, match="update home"):
        volumes.delete_snapshot(pair.source, "mine")
    volumes.delete_snapshot(pair.source, "mine")
    with pytest.raises(NotFound):
        volumes.delete_snapshot(pair.source, "mine")


def test_what_this_mirror_pinned_does_not_block_it(pair: Pair) -> None:
    """Its pin file may be empty after a power failure: the next update writes it again."""
    destination = pair.drivers[1]
    destination.pin(MIRROR, [pair.base.guid])
    folder = pair.destination / pinfiles.NAME
    [file] = folder.iterdir()
    file.write_bytes(b"")
    pair.updates(8)
    pair.demand_same()
    assert len(destination.snapshots()) < 9
