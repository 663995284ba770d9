"""The scheduler's timers, by APScheduler on the daemon's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.base import STATE_STOPPED
from apscheduler.triggers.date import DateTrigger

from mirrord.schedules.schedule import Schedule
from mirrord.schedules.triggers import MirrorTrigger
from mirrord.system import clock


class ApTimers:
    """See `mirrord.scheduler.scheduler.Timers`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduler = AsyncIOScheduler(
            event_loop=loop,
            timezone=UTC,
            # Times missed while the machine slept are made up for once, however late.
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )

    def start(self) -> None:
        """Start."""
        self._scheduler.start()

    def stop(self) -> None:
        """Stop."""
        if self._scheduler.state != STATE_STOPPED:
            self._scheduler.shutdown(wait=False)

    def follow(self, key: str, schedule: Schedule, seed: str, fire: Callable[[], object]) -> None:
        """See `Timers.follow`."""
        self._scheduler.add_job(
            _calling(fire), MirrorTrigger(schedule, seed), id=key, replace_existing=True
        )

    def at(self, key: str, at_ns: int, fire: Callable[[], object]) -> None:
        """See `Timers.at`."""
        moment = datetime.fromtimestamp(max(at_ns, clock.now_ns()) / 1e9, UTC)
        self._scheduler.add_job(_calling(fire), DateTrigger(moment), id=key, replace_existing=True)

    def cancel(self, key: str) -> None:
        """See `Timers.cancel`."""
        if self._scheduler.get_job(key) is not None:
            self._scheduler.remove_job(key)

    def next_ns(self, key: str) -> int | None:
        """See `Timers.next_ns`."""
        job = self._scheduler.get_job(key)
        moment = getattr(job, "next_run_time", None)
        return round(moment.timestamp() * 1e9) if moment is not None else None

    def retime(self) -> None:
        """See `Timers.retime`: what a clock that went back would hold up comes at its new time."""
        now = datetime.fromtimestamp(clock.now_ns() / 1e9, UTC)
        for job in self._scheduler.get_jobs():
            if isinstance(job.trigger, MirrorTrigger):
                if job.next_run_time is not None and job.next_run_time > now:
                    job.modify(next_run_time=job.trigger.get_next_fire_time(None, now))
            elif job.next_run_time is not None:
                # Set by a duration from then: nobody knows how much of it is left.
                job.modify(next_run_time=now)
        self._scheduler.wakeup()

    def wake(self) -> None:
        """See `Timers.wake`: the loop sleeps by a clock that stood still with the machine."""
        self._scheduler.wakeup()


def _calling(fire: Callable[[], object]) -> Callable[[], object]:
    """A coroutine function, so that APScheduler calls it on the loop and not in a thread."""

    async def call() -> None:
        fire()

    return call
