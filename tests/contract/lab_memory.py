"""The lab of memory volumes (tests/sim/memory.py): the simulation stands on a driver that keeps the
contract. It is no kind of the product, so only the contract suite runs on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.core.errors import Busy
from mirrord.core.model import Role
from mirrord.drivers.contract import Driver
from tests.contract.lab import Lab
from tests.sim.memory import MemoryDriver
from tests.sim.stream import Geometry
from tests.sim.volume import Disk, digest_of

_BLOCKS = 200
#: The block for the number 0 of a program that writes.
_WRITTEN = 100_000


class MemoryLab:
    """See `tests.contract.lab.Lab`. Blocks are small, and as large in the stream as they count."""

    kind = "memory"

    def __init__(self) -> None:
        self._disk = Disk(Geometry(block_bytes=64, stride=64, frame_blocks=8))
        self._disk.create("/source", _BLOCKS)
        self._disk.foreign.add("/foreign")

    def source(self) -> Driver:
        return MemoryDriver(self._disk, "/source")

    def destination(self) -> Driver:
        return MemoryDriver(self._disk, "/destination")

    def foreign(self) -> Driver:
        return MemoryDriver(self._disk, "/foreign")

    def change(self, driver: Driver, seed: int) -> None:
        made = random.Random(f"change {seed}")
        volume = self._disk.volumes[driver.location]
        volume.write((made.randrange(1, _BLOCKS * 2), self._disk.draw()) for _ in range(30))
        present = sorted(volume.live)
        volume.write((block, 0) for block in made.sample(present, 5))

    def change_much(self, driver: Driver, seed: int) -> None:
        volume = self._disk.volumes[driver.location]
        volume.write((block, self._disk.draw()) for block in range(1, _BLOCKS))

    def overwrite(self, driver: Driver, seed: int) -> None:
        volume = self._disk.volumes[driver.location]
        if volume.frozen:
            raise Busy("the volume is frozen")
        volume.write([(1 + seed % _BLOCKS, self._disk.draw())])

    @contextmanager
    def writing(self, driver: Driver) -> Iterator[Callable[[int], bool]]:
        """A block for each number."""
        volume = self._disk.volumes[driver.location]

        def write(number: int) -> bool:
            if volume.role is not Role.LIVE or volume.frozen:
                return False
            volume.write([(_WRITTEN + number, self._disk.draw())])
            return True

        yield write

    def written(self, driver: Driver, guid: str | None = None) -> set[int]:
        volume = self._disk.volumes[driver.location]
        blocks = volume.view() if guid is None else volume.entries[guid].blocks
        return {block - _WRITTEN for block in blocks if block >= _WRITTEN}

    def freeze_and_die(self, driver: Driver) -> None:
        """(What a process holds ends with it: that is what `detach` stands for.)"""
        again = MemoryDriver(self._disk, driver.location)
        again.freeze()
        again.detach()

    def content(self, driver: Driver) -> str:
        return str(digest_of(self._disk.volumes[driver.location].view()))

    def snapshot_content(self, driver: Driver, guid: str) -> str:
        return str(digest_of(self._disk.volumes[driver.location].entries[guid].blocks))

    def own_snapshot(self, driver: Driver, name: str) -> None:
        assert isinstance(driver, MemoryDriver)
        driver.own_snapshot(name)

    def sound(self, driver: Driver) -> None:
        """Every digest that is carried along is that of the content."""
        volume = self._disk.volumes[driver.location]
        assert all(digest_of(entry.blocks) == entry.digest for entry in volume.entries.values())
        assert digest_of(volume.live) == volume.digest


@contextmanager
def lab(_folder: Path, *, large: bool = False) -> Iterator[Lab]:
    yield MemoryLab()
