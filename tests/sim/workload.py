"""Users at work on the sources, by seed: most do little, some much, some much at once."""

from __future__ import annotations

import random

from tests.sim.memory import MemoryDriver
from tests.sim.volume import Disk, Volume
from tests.sim.world import Sim

KINDS = ("idle", "slow", "steady", "steady", "burst")
#: How many of the owner's own snapshots stay.
_OWN_KEPT = 3


class Writer:
    """One volume's users. kind: one of `KINDS`."""

    def __init__(self, sim: Sim, disk: Disk, volume: Volume, kind: str, seed: str) -> None:
        self.kind = kind
        self.stopped = False
        self._sim = sim
        self._disk = disk
        self._volume = volume
        self._chance = random.Random(seed)
        self._next()

    def _next(self) -> None:
        mean_s = {"idle": 86_400, "slow": 10_800, "steady": 900, "burst": 14_400}[self.kind]
        self._sim.at(self._sim.now_s + self._chance.expovariate(1 / mean_s), self._work)

    def _work(self) -> None:
        if self.stopped:
            return
        chance, volume, disk = self._chance, self._volume, self._disk
        many = chance.randint(100, 600) if self.kind == "burst" else chance.randint(1, 20)
        room = 4 * max(64, len(volume.live)) if self.kind == "burst" else len(volume.live) + 8
        changes = [(chance.randint(1, min(room, 2000)), disk.draw()) for _ in range(many)]
        if chance.random() < 0.2 and len(volume.live) > 40:
            changes += [(block, 0) for block in list(volume.live)[: chance.randint(1, 20)]]
        volume.write(changes)
        self._next()


class Owner:
    """Takes user snapshots of a source that are replicated, and deletes old ones, even in use."""

    def __init__(self, sim: Sim, source: MemoryDriver, every_s: float) -> None:
        self.stopped = False
        self._sim = sim
        self._source = source
        self._every_s = every_s * 1.7
        self._taken = 0
        sim.at(self._every_s, self._work)

    def _work(self) -> None:
        if self.stopped:
            return
        self._taken += 1
        self._source.own_snapshot(f"daily.{self._taken}")
        for old in self._source.own_snapshots(("daily.*",))[:-_OWN_KEPT]:
            self._source.delete_own(old.guid)
        self._sim.at(self._sim.now_s + self._every_s, self._work)
