"""The scheduler's timers, by APScheduler on the daemon's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.base import STATE_STOPPED
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.date import DateTrigger

from mirrord.schedules.schedule import Schedule
from mirrord.system import clock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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


class MirrorTrigger(BaseTrigger):  # type: ignore[misc]  # APScheduler 3 has no types
    """Fires by the schedule of the mirror with the id `seed`."""

    def __init__(self, schedule: Schedule, seed: str) -> None:
        self.schedule = schedule
        self.seed = seed

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        """The first run after `now`, whenever the previous one was; UTC.

        Missed times (the machine slept, the clock jumped ahead) are made up for by one call:
        listing them, as APScheduler would, takes minutes when a clock jumps by a year. A previous
        run in the future means that the clock was set back.
        """
        after_ns = (now - _EPOCH) // _MICROSECOND * 1000
        following = self.schedule.next_after(after_ns, seed=self.seed)
        if following is None:
            return None
        # Rounded up: a time rounded down would be before the run and return the same run again.
        return _EPOCH + -(-following.at_ns // 1000) * _MICROSECOND

    def __str__(self) -> str:
        return f"mirror[{', '.join(self.schedule.rules)}]"

    def __repr__(self) -> str:
        return f"<MirrorTrigger {self.schedule.rules!r} {self.schedule.zone} seed={self.seed!r}>"
