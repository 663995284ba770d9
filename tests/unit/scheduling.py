"""A scheduler with what it is wired to, moved by hand."""

from __future__ import annotations

import random

from mirrord.core.errors import MirrordError, TransferFailed
from mirrord.core.model import Caps, Definition, Endpoint
from mirrord.core.records import Finding
from mirrord.core.results import UpdateNumbers
from mirrord.core.states import State
from mirrord.core.status import Reading
from mirrord.scheduler.health import Change
from mirrord.scheduler.jobs import Job, Outcome
from mirrord.scheduler.scheduler import Scheduler
from mirrord.scheduler.watched import Standing, Watched
from mirrord.schedules.schedule import Schedule
from mirrord.system import clock
from tests.unit.ticking import Hand, HandTimers

CUT = TransferFailed("the connection was lost")


def reading(standing: Standing, *faults: Finding) -> Reading:
    """What a probe finds of a mirror that stands like that."""
    return Reading(
        "a",
        state=State.MIRRORED if standing.mirrored else State.BROKEN_OFF,
        quiesced=standing.quiesced,
        confirmed_ns=standing.confirmed_ns,
        faults=faults,
    )


class Room:
    """A scheduler with what it is wired to."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.timers = HandTimers(self.hand)
        self.started: list[Job] = []
        self.told: list[tuple[str, Change]] = []
        self.scheduler = self.restarted()

    def restarted(self) -> Scheduler:
        """The scheduler of a service that has just started."""
        self.timers.set.clear()
        self.scheduler = Scheduler(
            self.timers,
            self.started.append,
            caps=Caps(4, 9, 9),
            chance=random.Random(1),
            told=lambda name, change: self.told.append((name, change)),
        )
        return self.scheduler

    def define(
        self,
        schedule: Schedule | None,
        *,
        name: str = "a",
        ident: str = "i",
        age_s: float = 0.0,
        mirrored: bool = True,
        quiesced: bool = False,
        retries: int = 5,
    ) -> Watched:
        end = Endpoint("memory", "/x")
        confirmed_ns = clock.now_ns() - round(age_s * 1e9) if mirrored else 0
        return self.scheduler.define(
            Definition(name, ident, end, end, retries=retries),
            schedule,
            Standing(mirrored, quiesced, confirmed_ns),
        )

    def end(
        self,
        *,
        error: MirrordError | None = None,
        name: str = "a",
        took_s: float = 0.0,
        size: int = 0,
        confirmed_ns: int | None = None,
        prune_refused: str = "",
    ) -> None:
        """The running job ends after so long; its snapshot was taken when it began."""
        confirmed_ns = clock.now_ns() if confirmed_ns is None else confirmed_ns
        self.hand.sleep_s(took_s)
        update = None
        if error is None:
            update = UpdateNumbers(confirmed_ns, prune_refused, stream_bytes=size)
        self.scheduler.finished(name, Outcome("" if error else "done", took_s, update, error))

    def causes(self) -> list[str]:
        """Why each run since the last question began."""
        found = [each.cause for each in self.started]
        self.started.clear()
        return found
