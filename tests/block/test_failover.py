"""Block volumes: what becomes of writers, full disks, damaged records and crashes in a switch."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirrord.core.errors import Busy, Damaged, MirrordError, NotFound, Refused
from mirrord.core.model import Role, Snapshot, SnapshotKind
from mirrord.drivers.block import rootrecord
from mirrord.drivers.block.check import check_volume
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.volume import Volume
from mirrord.system import steps
from tests.contract.flows import MIRROR, mirror
from tests.support.blocks import read_snapshot

SIZE = 4 << 20


class Pair:
    """A source and its destination, which holds two snapshots."""

    def __init__(self, here: Path, there: Path) -> None:
        with Volume.create(here / "s", SIZE) as opened:
            opened.write(0, os.urandom(300_000))
        self.source, self.destination = BlockDriver(str(here / "s")), BlockDriver(str(there / "d"))
        self.place = there / "d"
        self.destination.prepare(MIRROR)
        self.first = mirror(self.source, self.destination, None, "first")
        self.write(here / "s", 0, b"second")
        self.second = mirror(self.source, self.destination, self.first, "second")
        with self.destination.lock("once"):
            pass

    @staticmethod
    def write(path: Path, offset: int, data: bytes) -> None:
        with Volume.open(path, writable=True) as opened:
            opened.write(offset, data)

    def begins(self) -> bytes:
        return Volume.open(self.place).read(0, 6)

    def kept(self) -> list[Snapshot]:
        every = BlockDriver(str(self.place)).snapshots()
        return [one for one in every if one.kind is SnapshotKind.DIVERGED]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, tmp_path)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "tiny"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)


# Damaged records


def emptied(place: Path) -> None:
    (place / "root").write_bytes(b"")


def removed(place: Path) -> None:
    (place / "root").unlink()


def flipped(place: Path) -> None:
    data = bytearray((place / "root").read_bytes())
    data[-9] ^= 1
    (place / "root").write_bytes(data)


@pytest.mark.parametrize("damage", [emptied, removed, flipped])
def test_a_destination_with_a_damaged_root_record_is_promoted_and_goes_on(
    pair: Pair, damage: Callable[[Path], None]
) -> None:
    damage(pair.place)
    facts = pair.destination.facts()
    assert facts.role is Role.MIRROR and facts.shown == pair.second.guid
    assert "the root record is damaged" in " ".join(facts.notes).lower()
    assert any("root record is damaged" in one for one in check_volume(pair.place).findings)
    pair.destination.promote()
    assert pair.begins() == b"second"
    assert pair.destination.facts().notes == ()
    assert not (pair.place / rootrecord.COPY).exists()
    pair.write(pair.place, 0, b"theirs")
    assert pair.destination.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="k") == "k"
    assert check_volume(pair.place).findings == []


def test_a_file_that_is_removed_while_facts_are_read_is_not_missing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.destination.promote()
    pair.write(pair.place, 0, os.urandom(100_000))
    load = rootrecord.load_noting_damage
    changed: list[Path] = []

    def removed_meanwhile(path: Path) -> tuple[rootrecord.RootRecord, str]:
        found = load(path)
        if not changed:
            changed.append(path)
            files = set(os.listdir(path))
            pair.destination.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="k")
            pair.destination.promote()
            pair.destination.delete_snapshot(pair.kept()[0].guid)
            assert files - set(os.listdir(path))
        return found

    reading = BlockDriver(str(pair.place))
    monkeypatch.setattr(rootrecord, "load_noting_damage", removed_meanwhile)
    assert reading.facts().notes == () and changed
    (pair.place / "data").unlink()
    assert "is missing" in reading.facts().notes[0]


def test_a_damaged_root_record_is_replaced_before_its_copy_is_removed(pair: Pair) -> None:
    """A promotion can be broken at each step: the content is never without a record."""

    def work() -> None:
        emptied(pair.place)
        pair.destination.promote()

    def again() -> None:
        rootrecord.load(pair.place)
        pair.destination.promote()
        assert pair.begins() == b"second"
        assert not (pair.place / rootrecord.COPY).exists()
        pair.destination.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="")

    broken_at_each_step(work, again)


def test_an_update_replaces_a_damaged_root_record(pair: Pair) -> None:
    emptied(pair.place)
    mirror(pair.source, pair.destination, pair.second, "third")
    assert check_volume(pair.place).findings == []


def test_no_old_record_stands_in_for_that_of_a_live_volume(pair: Pair) -> None:
    pair.destination.promote()
    emptied(pair.place)
    with pytest.raises(Damaged):
        pair.destination.facts()
    pair.destination = BlockDriver(pair.source.location)
    removed(Path(pair.source.location))
    with pytest.raises(NotFound):
        Volume.open(pair.source.location)


def test_the_newest_intact_snapshot_is_promoted_when_the_shown_one_is_damaged(pair: Pair) -> None:
    def spoil(guid: str) -> None:
        record = rootrecord.load(pair.place)
        entries = tuple(
            one if one.guid != guid else replace(one, digest="0" * 32) for one in record.snapshots
        )
        rootrecord.store("T", pair.place, replace(record, snapshots=entries))

    spoil(pair.second.guid)
    pair.destination.promote()
    assert pair.destination.facts().origin == pair.first.guid
    pair.destination.rollback(pair.first.guid, mirror_id=MIRROR, keep_as="k")
    spoil(pair.first.guid)
    with pytest.raises(Refused):
        pair.destination.promote()


# Full file systems


@pytest.mark.parametrize("chosen", ["shown", "older"])
def test_a_full_file_system_is_not_in_the_way_of_a_switch(
    tiny: Path, tmp_path: Path, chosen: str
) -> None:
    pair = Pair(tmp_path, tiny)
    with (tiny / "filler").open("wb", buffering=0) as file, pytest.raises(OSError) as full:
        while True:
            file.write(bytes(4096))
    assert full.value.errno == errno.ENOSPC
    with pair.destination.lock("break"):
        pair.destination.promote(pair.first.guid if chosen == "older" else None)
    assert (pair.begins() == b"second") == (chosen == "shown")
    with pair.destination.lock("resync"):
        pair.destination.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="k")
        pair.destination.delete_snapshot(pair.first.guid)
        pair.destination.promote()
    assert pair.begins() == b"second"
    (tiny / "filler").unlink()
    assert check_volume(pair.place).findings == []


# Writers


def test_a_program_in_this_process_learns_of_a_freeze_and_of_a_switch(pair: Pair) -> None:
    pair.destination.promote()
    opened = Volume.open(pair.place, writable=True)
    opened.write(0, b"before")  # not flushed: acknowledged no more than a write to a file is
    assert [one.path for one in pair.destination.writers()] == [str(pair.place)]
    pair.destination.freeze()
    assert pair.destination.writers() == []
    for attempt in (
        lambda: opened.write(0, b"frozen"),
        lambda: opened.trim(0, 4096),
        opened.flush,
        lambda: opened.snapshot("mine"),
    ):
        with pytest.raises(Busy, match="is frozen"):
            attempt()
    pair.destination.thaw()
    opened.write(6, b"between")
    pair.destination.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="k")
    with pytest.raises(Refused, match="read-only"):
        opened.write(0, b"late")
    opened.close()
    [kept] = pair.kept()
    assert read_snapshot(Volume.open(pair.place), kept.guid, 0, 13) == b"beforebetween"
    assert pair.begins() == b"second"


def test_a_freeze_outlives_the_closing_of_the_volume(pair: Pair) -> None:
    with Volume.open(pair.source.location, writable=True) as opened:
        opened.write(0, b"last")
        pair.source.freeze()
    assert pair.source.facts().frozen
    with pytest.raises(Busy, match="is frozen"):
        Volume.open(pair.source.location, writable=True, wait_s=0.1)
    assert Volume.open(pair.source.location).read(0, 4) == b"last"
    pair.source.thaw()
    pair.write(Path(pair.source.location), 0, b"then")


def test_another_process_finds_a_frozen_volume(pair: Pair) -> None:
    """It may neither write nor end the freeze."""
    pair.source.freeze()
    program = """
import sys
from mirrord.core.errors import Busy
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.volume import Volume
driver = BlockDriver(sys.argv[1])
assert driver.facts().frozen
for attempt in (lambda: Volume.open(sys.argv[1], writable=True, wait_s=0.1), driver.thaw):
    try:
        attempt()
    except Busy as error:
        print(error.what)
"""
    words = [sys.executable, "-c", program, pair.source.location]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["the volume is frozen"] * 2
    assert pair.source.facts().frozen


# Crashes


class Crash(BaseException):
    """Stands for the end of the process."""


def broken_at_each_step(work: Callable[[], object], again: Callable[[], None]) -> None:
    """Break the work before each of its steps, by a crash and by an error; `again` looks at what
    there is, does it once more, and puts things back as they were.
    """
    seen: list[str] = []
    steps.observe(seen.append)
    work()
    steps.observe(None)
    again()
    assert len(seen) >= 2
    for fault in (Crash("here"), OSError(errno.EIO, "injected")):
        for wanted in range(len(seen)):
            left = wanted

            def observer(_label: str, fault: BaseException = fault) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    steps.observe(None)
                    raise fault

            steps.observe(observer)
            met = False
            try:
                work()
            except (Crash, MirrordError, OSError):
                met = True
            steps.observe(None)
            assert left < 0 and (met or "COPY" in seen[wanted] or "PUNCH" in seen[wanted])
            again()


def test_a_rollback_can_be_broken_at_each_step(pair: Pair) -> None:
    pair.destination.promote()
    pair.write(pair.place, 0, b"theirs")

    def again() -> None:
        driver = BlockDriver(str(pair.place))
        if driver.facts().role is Role.LIVE:
            assert pair.begins() == b"theirs" and not pair.kept()
        assert driver.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="k") == "k"
        [kept] = pair.kept()
        assert read_snapshot(Volume.open(pair.place), kept.guid, 0, 6) == b"theirs"
        assert pair.begins() == b"second"
        assert check_volume(pair.place).findings == []
        driver.reinstate("k")

    broken_at_each_step(
        lambda: BlockDriver(str(pair.place)).rollback(
            pair.second.guid, mirror_id=MIRROR, keep_as="k"
        ),
        again,
    )


def test_a_reinstatement_can_be_broken_at_each_step(pair: Pair) -> None:
    pair.destination.promote()
    pair.write(pair.place, 0, b"theirs")
    pair.destination.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="k")

    def again() -> None:
        driver = BlockDriver(str(pair.place))
        assert pair.begins() == (b"theirs" if driver.facts().role is Role.LIVE else b"second")
        driver.reinstate("k")
        assert pair.begins() == b"theirs"
        assert check_volume(pair.place).findings == []
        assert driver.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="k") == "k"

    broken_at_each_step(lambda: BlockDriver(str(pair.place)).reinstate("k"), again)


def test_a_promotion_of_an_older_snapshot_can_be_broken_at_each_step(pair: Pair) -> None:
    def again() -> None:
        driver = BlockDriver(str(pair.place))
        assert (pair.begins() == b"second") == (driver.facts().role is Role.MIRROR)
        driver.promote(pair.first.guid)
        assert driver.facts().origin == pair.first.guid and pair.begins() != b"second"
        assert check_volume(pair.place).findings == []
        assert driver.rollback(pair.second.guid, mirror_id=MIRROR, keep_as="k") == "k"
        driver.delete_snapshot(pair.kept()[0].guid)

    broken_at_each_step(lambda: BlockDriver(str(pair.place)).promote(pair.first.guid), again)
