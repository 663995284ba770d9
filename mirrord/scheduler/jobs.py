"""Queued and running jobs: one per mirror, with limits on how many run at once; their retries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from mirrord.core.errors import MirrordError
from mirrord.core.model import Caps
from mirrord.core.results import UpdateNumbers

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0


class Job(NamedTuple):
    """One run of a verb on one mirror.

    cause: schedule, missed, lag, retry or asked. number: 1 for the first try of a run.
    host, filesystem: whose limits it counts against. mirror_id: another mirror may have the name
    by the time the job ends.
    """

    name: str
    verb: str
    cause: str
    why: str
    number: int = 1
    host: str = ""
    filesystem: str = ""
    mirror_id: str = ""


class Outcome(NamedTuple):
    """How a job ended.

    status: of its `Result`, or "" when it failed. update: of its `Result`.
    """

    status: str
    duration_s: float
    update: UpdateNumbers | None
    error: MirrordError | None = None


class Queue:
    """First come, first served, but a job that cannot run yet delays no other.

    SnapMirror, FAST'02, 3.2.4: "If a transfer is in progress when another scheduled time has been
    reached, the next transfer will start when the current transfer is complete": one waits for
    each mirror, however many times have passed.
    """

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.waiting: dict[str, Job] = {}
        self.running: dict[str, Job] = {}

    def add(self, job: Job) -> bool:
        """Queue a job; False when one of that mirror is queued already.

        One that was requested by a person goes first.
        """
        if job.name in self.waiting:
            return False
        if job.cause == "asked":
            self.waiting = {job.name: job, **self.waiting}
        else:
            self.waiting[job.name] = job
        return True

    def ready(self, is_held_back: Callable[[Job], bool] = lambda _job: False) -> list[Job]:
        """The jobs that may start now; they count as running from here on.

        is_held_back: is asked about each that has a place; one that is held back waits no longer.
        """
        if not self.waiting or len(self.running) >= self.caps.transfers:
            return []
        started: list[Job] = []
        hosts = Counter(job.host for job in self.running.values())
        filesystems = Counter(job.filesystem for job in self.running.values())
        for job in list(self.waiting.values()):
            if len(self.running) >= self.caps.transfers:
                break
            if job.name in self.running:
                continue
            if job.host and hosts[job.host] >= self.caps.per_host:
                continue
            if job.filesystem and filesystems[job.filesystem] >= self.caps.per_filesystem:
                continue
            del self.waiting[job.name]
            if is_held_back(job):
                continue
            self.running[job.name] = job
            hosts[job.host] += 1
            filesystems[job.filesystem] += 1
            started.append(job)
        return started


def pause_s(error: MirrordError, number: int, retries: int, chance: random.Random) -> float | None:
    """How long to wait after try `number` failed; None when it is not to be tried again.

    Doubles with each try; a fifth of it is chance, so that mirrors that failed together (a link
    that was cut) do not come back together.
    """
    if not error.retryable or number > retries:
        return None
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(number - 1, 16))
    return float(pause * chance.uniform(0.8, 1.2))
