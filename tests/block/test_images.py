"""Reading the live image of a volume that others change, and names of snapshots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirrord.admin import volumes
from mirrord.core.errors import Busy, Damaged, Refused
from mirrord.drivers.block.content import read_bytes
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.volume import Volume
from tests.contract.flows import MIRROR, mirror

SIZE = 24 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    with Volume.create(tmp_path / "v", SIZE) as opened:
        opened.write(0, os.urandom(SIZE))
    return tmp_path / "v"


def rewritten(path: Path) -> bytes:
    """Replace the whole content, twice, so that the blocks of the first one are reused."""
    for _ in range(2):
        content = os.urandom(SIZE)
        with Volume.open(path, writable=True) as opened:
            opened.write(0, content)
    return content


def test_a_reader_of_the_live_image_never_goes_on_with_a_newer_one(volume: Path) -> None:
    before = Volume.open(volume).read(0, SIZE)
    pieces = volumes.read(volume, 0, None, None)
    first = next(pieces)
    assert first == before[: len(first)]
    after = rewritten(volume)
    with pytest.raises(Busy, match="changed while it was read"):
        for piece in pieces:
            assert piece in before
    assert b"".join(volumes.read(volume, 0, None, None)) == after


def test_a_snapshot_is_read_while_the_image_changes(volume: Path) -> None:
    with Volume.open(volume, writable=True) as opened:
        opened.snapshot("one")
    before = Volume.open(volume).read(0, SIZE)
    pieces = volumes.read(volume, 0, None, "one")
    first = next(pieces)
    rewritten(volume)
    assert first + b"".join(pieces) == before


@pytest.mark.parametrize("tar", [False, True])
def test_an_export_is_of_one_image(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tar: bool
) -> None:
    """Somebody replaces the content when the export has read half of it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(os.urandom(SIZE // 2))
    if tar:
        volumes.import_(volume, folder, tar=True)
    target = tmp_path / "out"
    count = 0

    def disturbed(*arguments: object) -> bytes:
        nonlocal count
        count += 1
        if count == 3:
            if tar:
                (folder / "file").write_bytes(os.urandom(SIZE // 2))
                for _ in range(2):
                    volumes.import_(volume, folder, tar=True)
            else:
                rewritten(volume)
        return read_bytes(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("mirrord.drivers.block.images.read_bytes", disturbed)
    with pytest.raises(Busy, match="changed while it was read"):
        volumes.export(volume, target, snapshot=None, tar=tar)
    assert not target.exists()


def test_a_damaged_live_image_is_still_said_to_be_damaged(volume: Path) -> None:
    data = volume / "data"
    content = bytearray(data.read_bytes())
    for at in range(4096, len(content), 4096):
        content[at] ^= 1
    data.write_bytes(content)
    with pytest.raises(Damaged):
        list(volumes.read(volume, 0, None, None))


def test_a_name_in_use_is_refused_and_the_first_snapshot_stays(volume: Path) -> None:
    volumes.take_snapshot(volume, "one")
    with Volume.open(volume, writable=True) as opened:
        opened.write(0, b"newer")
    with pytest.raises(Refused, match="there is a snapshot 'one' already"):
        volumes.take_snapshot(volume, "one")
    [one] = volumes.snapshots(volume)
    assert next(volumes.read(volume, 0, 5, "one")) != b"newer"
    volumes.delete_snapshot(volume, "one")
    volumes.take_snapshot(volume, "one")
    assert next(volumes.read(volume, 0, 5, "one")) == b"newer"
    assert one["guid"] != volumes.snapshots(volume)[0]["guid"]


def test_a_destination_can_be_read_while_it_is_updated(volume: Path, tmp_path: Path) -> None:
    source, destination = BlockDriver(str(volume)), BlockDriver(str(tmp_path / "d"))
    destination.prepare(MIRROR)
    base = mirror(source, destination, None, "base")
    before = Volume.open(volume).read(0, SIZE)
    pieces = volumes.read(tmp_path / "d", 0, None, None)
    first = next(pieces)
    with Volume.open(volume, writable=True) as opened:
        opened.write(8 << 20, os.urandom(1 << 20))
    mirror(source, destination, base, "next")
    assert first + b"".join(pieces) == before
