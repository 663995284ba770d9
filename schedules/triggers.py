"""A schedule as a trigger of APScheduler 3."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from apscheduler.triggers.base import BaseTrigger

from mirrord.schedules.schedule import Schedule

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class MirrorTrigger(BaseTrigger):  # type: ignore[misc]  # APScheduler 3 has no types
    """Fires as the schedule of the mirror with the id `seed` says."""

    def __init__(self, schedule: Schedule, seed: str) -> None:
        self.schedule = schedule
        self.seed = seed

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        """The first run after `now`, whenever the previous one was; UTC.

        Times that passed unheeded (the machine slept, the clock leapt ahead) are made up for by
        the one call that they bring: to list them, as APScheduler would, takes minutes when a
        clock leaps a year. And a previous run in the future means that the clock was set back.
        """
        after_ns = (now - _EPOCH) // _MICROSECOND * 1000
        following = self.schedule.next_after(after_ns, seed=self.seed)
        if following is None:
            return None
        # Rounded up: a time rounded down would lie before the run and bring the same run again.
        return _EPOCH + -(-following.at_ns // 1000) * _MICROSECOND

    def __str__(self) -> str:
        return f"mirror[{', '.join(self.schedule.rules)}]"

    def __repr__(self) -> str:
        return f"<MirrorTrigger {self.schedule.rules!r} {self.schedule.zone} seed={self.seed!r}>"
