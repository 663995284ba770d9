"""What the scheduler knows of one mirror."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from mirrord.core.model import Definition
from mirrord.core.records import AlarmKind, Finding
from mirrord.core.states import State
from mirrord.core.status import Reading, lag_level
from mirrord.scheduler.health import Alarms
from mirrord.schedules.lag import Run
from mirrord.schedules.schedule import Schedule
from mirrord.system import clock

_RUNS_KEPT = 24


class Standing(NamedTuple):
    """What is recorded of a mirror. confirmed_ns: wall time; 0: never up to date."""

    mirrored: bool
    quiesced: bool
    confirmed_ns: int

    @classmethod
    def of(cls, reading: Reading) -> Standing:
        """By what was read of it."""
        return cls(reading.state is State.MIRRORED, reading.quiesced, reading.confirmed_ns)

    def limited(self, state: State, *, quiesced: bool) -> Standing:
        """The same, unless the catalogue forbids runs: only a probe of the ends allows them."""
        mirrored = self.mirrored and state is State.MIRRORED
        return self._replace(mirrored=mirrored, quiesced=self.quiesced or quiesced)


_UNKNOWN = Standing(False, False, 0)


@dataclass(slots=True)
class Watched:
    """What the scheduler knows of one mirror."""

    definition: Definition
    schedule: Schedule | None
    host: str = ""
    filesystem: str = ""
    standing: Standing = _UNKNOWN
    confirmed_boot_s: float = 0.0
    #: The longest gap between runs while nothing holds them back; None without a schedule.
    open_period_s: float | None = None
    #: When its last run began (boot time).
    started_boot_s: float = -math.inf
    runs: deque[Run] = field(default_factory=lambda: deque(maxlen=_RUNS_KEPT))
    alarms: Alarms = field(default_factory=Alarms)
    #: What was wrong with its last run when the previous daemon stopped, until it runs.
    inherited: list[Finding] = field(default_factory=list)
    #: The run that goes on or failed last: which try it is, why it failed, whether it is over.
    number: int = 0
    error: str = ""
    gives_up: bool = False
    retry_pending: bool = False
    base_risk: str = ""
    #: What the last look at its ends and its records found; see `Scheduler.found`.
    faults: tuple[Finding, ...] = ()
    #: How many commands hold it: nothing of it begins but what was asked for.
    held: int = 0
    #: The cause of a run that did not begin for that, or "".
    held_back: str = ""
    #: The cause of a run whose place in the queue a command took, until that has ended; or "".
    replaced: str = ""
    prune_refused: str = ""
    #: Why its last scheduled verification could not be done, or "".
    verify_error: str = ""
    target: str = ""
    #: When the running job last moved a byte (monotonic), None while none transfers.
    moved_s: float | None = None

    def lag_s(self) -> float | None:
        """The lag by the monotonic clock; None when it was never up to date."""
        if not self.standing.confirmed_ns:
            return None
        return max(0.0, clock.boottime_s() - self.confirmed_boot_s)


def plainly_well(watched: Watched, now_s: float) -> bool:
    """Whether nothing can be wrong, at a glance: thousands of mirrors are looked at all the time.
    now_s: boot time.

    False when it takes a closer look to tell.
    """
    if (
        watched.error
        or watched.base_risk
        or watched.faults
        or watched.prune_refused
        or watched.verify_error
        or watched.target
        or watched.moved_s is not None
    ):
        return False
    standing, promise = watched.standing, watched.definition.promise
    promised_s = promise.rpo_s if promise.rpo_s is not None else watched.open_period_s
    if not promised_s or not standing.confirmed_ns or not standing.mirrored:
        return True
    return lag_level(now_s - watched.confirmed_boot_s, promised_s, promise.warn) is None


def is_held(watched: Watched) -> bool:
    """Whether no run may begin by itself: a command holds the mirror, or an interrupted operation
    waits for a decision. A run would only fail on that, every time.
    """
    return watched.held > 0 or any(fault.kind is AlarmKind.INTERRUPTED for fault in watched.faults)
