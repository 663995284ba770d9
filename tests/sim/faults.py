"""What goes wrong, by seed: on the link, on the disks, with the process, with the wall clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.sim.link import Trouble
from tests.sim.volume import Disk
from tests.sim.world import Sim

#: Labelled steps that a short update passes; a crash comes at one of them, or not at all.
_STEPS_OF_AN_UPDATE = 18
_EVERY_S = 600.0


class Crash(BaseException):
    """The process of an update ends here."""


@dataclass(slots=True)
class Attempt:
    """One run of a verb, and what shall happen to it. crash_at: the number of the step.

    since_s: when it succeeds, the destination has the source as of then.
    """

    name: str
    since_s: float
    fault: str = ""
    trouble: Trouble = field(default_factory=Trouble)
    crash_at: int = 0
    abort_after_s: float = 0.0
    passed: int = 0
    dead: bool = False

    def step(self, label: str) -> None:
        """A labelled step is reached. After the crash nothing has an effect any more, also not
        what is done on the way out.
        """
        self.passed += 1
        if self.dead or self.passed == self.crash_at:
            self.dead = True
            raise Crash(label)


class Faults:
    """Draws faults until `until_s`; then all is well. rate: of attempts that get one. crashes:
    how much of the usual part of them ends the process.
    """

    def __init__(
        self,
        sim: Sim,
        disk: Disk,
        places: list[str],
        *,
        seed: int,
        rate: float,
        until_s: float,
        crashes: float = 1.0,
    ) -> None:
        self.until_s = until_s
        self._sim = sim
        self._disk = disk
        self._places = places
        self._seed = seed
        self._rate, self._crashes = rate, crashes
        self._chance = random.Random(f"faults {seed}")
        self._full: dict[str, float] = {}
        if rate > 0:
            sim.at(0, self._happen)

    def draw(self, name: str, number: int) -> Attempt:
        """What shall happen to a mirror's attempt of that number."""
        attempt = Attempt(name, self._sim.real_s)
        chance = random.Random(f"{self._seed} {name} {number}")
        if self._sim.now_s >= self.until_s or chance.random() >= self._rate:
            return attempt
        kinds = ("crash", "cut", "damage", "stall", "slow", "abort")
        attempt.fault = chance.choices(kinds, (6 * self._crashes, 4, 2, 1, 1, 1))[0]
        # Most updates are small, some are not: a size of any magnitude.
        size = int(2 ** chance.uniform(6, 19))
        if attempt.fault == "crash":
            attempt.crash_at = chance.randrange(1, _STEPS_OF_AN_UPDATE)
        elif attempt.fault == "cut":
            attempt.trouble.cut_after_bytes = size
        elif attempt.fault == "damage":
            attempt.trouble.damage_after_bytes = size
        elif attempt.fault == "stall":
            attempt.trouble.stall_after_bytes = size
            attempt.trouble.stall_s = chance.uniform(60, 5400)
        elif attempt.fault == "abort":
            attempt.abort_after_s = chance.uniform(0.01, 0.3)
        else:
            attempt.trouble.slowness = chance.uniform(2, 500)
        return attempt

    def _happen(self) -> None:
        """Disks fill up and are emptied again; now and then somebody sets the clock."""
        now_s, over = self._sim.now_s, self._sim.now_s >= self.until_s
        for place, full_until_s in list(self._full.items()):
            if over or now_s >= full_until_s:
                self._disk.full.discard(place)
                del self._full[place]
        if over:
            return
        self._sim.at(min(now_s + _EVERY_S, self.until_s), self._happen)
        for place in self._places:
            if self._chance.random() < self._rate * 0.02:
                self._disk.full.add(place)
                self._full[place] = now_s + self._chance.uniform(300, 3600)
        if self._chance.random() < 0.03:
            self._sim.jump(self._chance.choice((-1, 1)) * 10 ** self._chance.uniform(-2, 4))
        if self._chance.random() < 0.02:
            self._sim.suspend(10 ** self._chance.uniform(0, 4))
