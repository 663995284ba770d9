"""A schedule as a trigger of APScheduler 3."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from apscheduler.triggers.base import BaseTrigger

from mirrord.schedules.schedule import Schedule

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
