"""Each bit of a small record may turn on a disk: that is noticed, or the record says the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.errors import Damaged
from mirrord.core.live import LiveSetup
from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.relationship import decode, encode
from mirrord.drivers import pinfiles
from mirrord.drivers.block import copies, staging
from mirrord.drivers.btrfs import layout
from mirrord.drivers.btrfs.known import Known
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.image.driver import ImageDriver
from tests.contract.test_relationship import FIRST

_SNAPSHOT = Snapshot("0" * 32 + ":7", "s1", SnapshotKind.REFERENCE, 7, 1)
#: A file with the record, and what reads it; one that is damaged is None, (), or an error.
Made = tuple[Path, Callable[[], object]]


def _relationship(folder: Path) -> Made:
    path = folder / "m1"
    path.write_bytes(encode(FIRST) + b"\n")
    return path, lambda: decode(path.read_bytes())


def _pins(folder: Path) -> Made:
    pinfiles.pin(folder / "pins", "X", "m1", ["0" * 32 + ":7"], "here")
    return folder / "pins/m1.json", lambda: pinfiles.load(folder / "pins")


def _transfer_of_blocks(folder: Path) -> Made:
    record = staging.StagingRecord("t1", "m1", "g0", _SNAPSHOT, None, 4096, 99)
    staging.store("X", folder, record)
    return folder / "staging/t1/state", lambda: staging.load(folder, "t1")


def _copy_of_blocks(folder: Path) -> Made:
    copies._write(folder, Path("/srv/copy"), "0" * 32)
    return folder / copies.NAME, lambda: copies._read(folder)


def _place(folder: Path) -> Layout:
    return Layout(folder / "v", folder / "v", folder, Known())


def _transfer(folder: Path) -> Made:
    layout.write_record("X", folder, Record("t1", None, _SNAPSHOT, True, 7))
    return folder / layout.RECORD, lambda: layout.read_record(folder)


def _frozen(folder: Path) -> Made:
    place = _place(folder)
    layout.write_frozen("X", place, "0" * 32, ["1" * 32])
    return place.frozen_file, lambda: layout.read_frozen(place)


def _destination(folder: Path) -> Made:
    place = _place(folder)
    layout.write_mirror_id("X", place, "m1")
    return place.mirror_file, lambda: layout.read_mirror_id(place)


def _end_of_a_live_mirror(folder: Path) -> Made:
    image = folder / "image"
    image.touch()
    os.truncate(image, 1 << 20)
    driver = ImageDriver.at(str(image))
    driver.live_create(LiveSetup("m1", "db", "one", "0" * 32, True, 1 << 20))
    return driver._store / "end.json", driver._end


@pytest.mark.parametrize(
    "make",
    [
        _relationship,
        _pins,
        _transfer_of_blocks,
        _copy_of_blocks,
        _transfer,
        _frozen,
        _destination,
        _end_of_a_live_mirror,
    ],
)
def test_each_bit_is_noticed_or_changes_nothing(
    make: Callable[[Path], Made], tmp_path: Path
) -> None:
    path, read = make(tmp_path)
    whole, right = path.read_bytes(), read()
    assert right
    for bit in range(8 * len(whole)):
        turned = bytearray(whole)
        turned[bit // 8] ^= 1 << bit % 8
        path.write_bytes(turned)
        try:
            found = read()
        except Damaged:
            continue
        assert found in (None, (), right), bytes(turned)
