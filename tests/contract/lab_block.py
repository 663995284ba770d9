"""The lab of block volumes: two folders, no privileges."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from mirrord.drivers.block.check import check_volume
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.contract import Driver
from tests.contract.lab import Lab
from tests.support.blocks import read_snapshot
from tests.support.processes import freeze_and_die, writer

SIZE_BYTES = 16 << 20
LARGE_BYTES = 64 << 20
_PIECE = 1 << 20
_ZEROES = bytes(64 << 10)
#: Where programs that write have a byte for each number.
_WRITTEN_AT = 3 << 20
_WRITER = f"""
from mirrord.drivers.block.volume import Volume
volume = Volume.open(sys.argv[1], writable=True)
def write(number):
    volume.write({_WRITTEN_AT} + number, bytes([1]))
    volume.flush()
"""


@contextmanager
def lab(folder: Path, *, large: bool = False) -> Iterator[Lab]:
    """A source volume with some content, and room for a destination."""
    made = BlockLab(folder)
    size_bytes = LARGE_BYTES if large else SIZE_BYTES
    with Volume.create(folder / "source", size_bytes) as volume:
        volume.write(0, random.Random(0).randbytes(600_000))
    yield made


class BlockLab:
    """Two places for block volumes."""

    kind = "block"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self) -> Driver:
        return BlockDriver(str(self.folder / "source"))

    def destination(self) -> Driver:
        return BlockDriver(str(self.folder / "destination"))

    def foreign(self) -> Driver:
        place = self.folder / "foreign"
        place.mkdir(exist_ok=True)
        (place / "somebodys.txt").write_text("data")
        return BlockDriver(str(place))

    def change(self, driver: Driver, seed: int) -> None:
        made = random.Random(f"change {seed}")
        with Volume.open(driver.location, writable=True) as volume:
            volume.write(made.randrange(400_000), made.randbytes(100_000))
            # More than one run of the stream, so that a checkpoint has something to keep.
            volume.write(made.randrange(4 << 20, 12 << 20), made.randbytes(1_500_000))
            volume.write(made.randrange(SIZE_BYTES - 10), made.randbytes(10))
            for _ in range(20):
                volume.write(made.randrange(SIZE_BYTES - 9000), made.randbytes(9000))
            volume.trim(made.randrange(500_000), 50_000)

    def change_much(self, driver: Driver, seed: int) -> None:
        self.change(driver, seed)
        made = random.Random(f"much {seed}")
        with Volume.open(driver.location, writable=True) as volume:
            for offset in range(SIZE_BYTES, SIZE_BYTES + (40 << 20), _PIECE):
                volume.write(offset, made.randbytes(_PIECE))

    def overwrite(self, driver: Driver, seed: int) -> None:
        with Volume.open(driver.location, writable=True, wait_s=0.1) as volume:
            old = volume.read(8192, 4096)
            volume.write(8192, bytes(byte ^ (1 + seed % 255) for byte in old))

    def writing(self, driver: Driver) -> AbstractContextManager[Callable[[int], bool]]:
        return writer(_WRITER, driver.location)

    def written(self, driver: Driver, guid: str | None = None) -> set[int]:
        with Volume.open(driver.location) as volume:
            if guid is None:
                area = volume.read(_WRITTEN_AT, 1000)
            else:
                area = read_snapshot(volume, guid, _WRITTEN_AT, 1000)
        return {number for number, byte in enumerate(area) if byte == 1}

    def freeze_and_die(self, driver: Driver) -> None:
        freeze_and_die(driver)

    def content(self, driver: Driver) -> str:
        with Volume.open(driver.location) as volume:
            return _digest(volume.size_bytes, volume.read)

    def snapshot_content(self, driver: Driver, guid: str) -> str:
        with Volume.open(driver.location) as volume:
            return _digest(volume.size_bytes, partial(read_snapshot, volume, guid))

    def own_snapshot(self, driver: Driver, name: str) -> None:
        with Volume.open(driver.location, writable=True) as volume:
            volume.snapshot(name)

    def sound(self, driver: Driver) -> None:
        found = check_volume(Path(driver.location))
        assert found.findings == [] and found.images > 0


def _digest(size_bytes: int, read: Callable[[int, int], bytes]) -> str:
    """Of a content that is mostly zeroes: to hash them takes longer than to read the rest."""
    whole = hashlib.sha256(b"%d" % size_bytes)
    for offset in range(0, size_bytes, _PIECE):
        piece = read(offset, _PIECE)
        for at in range(0, len(piece), len(_ZEROES)):
            if not piece.startswith(_ZEROES, at):
                whole.update(b"%d:" % (offset + at))
                whole.update(piece[at : at + len(_ZEROES)])
    return whole.hexdigest()
