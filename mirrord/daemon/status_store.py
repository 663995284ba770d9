"""What was read of each mirror last, and its status now: judged at each query, never stored."""

from __future__ import annotations

from itertools import islice

from mirrord.core.reports import NextRun, NextRuns
from mirrord.core.status import MirrorStatus, Reading, RunningVerb, Supervision, judge, judge_lag
from mirrord.daemon.running import Running
from mirrord.scheduler.scheduler import Scheduler, verification
from mirrord.schedules.lag import next_runs, plan_lag
from mirrord.system import clock


class StatusStore:
    """The last reading of each mirror, and what this daemon runs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.readings: dict[str, Reading] = {}
        #: By mirror: what this daemon is doing with it.
        self.running: dict[str, Running] = {}

    def rows(self) -> list[MirrorStatus]:
        """All mirrors by name."""
        return [self.judged(self.readings[name]) for name in sorted(self.readings)]

    def judged(self, reading: Reading, other: RunningVerb | None = None) -> MirrorStatus:
        """The status now. other: a process that was found at work on the mirror."""
        name, now_ns = reading.name, clock.now_ns()
        watched, ours = self._scheduler.mirrors.get(name), self.running.get(name)
        running = ours.verb() if ours is not None else other
        if watched is None:
            return judge(reading, now_ns=now_ns, running=running)
        supervision = Supervision(
            watched.lag_s(),
            tuple(watched.alarms.up.values()),
            watched.error,
            name in self._scheduler.queue.waiting,
            self._scheduler.timers.next_ns(name),
            self._scheduler.timers.next_ns(verification(name)),
        )
        reading = reading._replace(confirmed_ns=watched.standing.confirmed_ns)
        return judge(reading, now_ns=now_ns, running=running, supervision=supervision)

    def planned(self, name: str, found: NextRuns) -> NextRuns:
        """The next runs of a mirror. found: without this daemon."""
        watched = self._scheduler.mirrors.get(name)
        schedule = watched.schedule if watched else None
        first_ns = self._scheduler.timers.next_ns(name)
        if watched is None or schedule is None or schedule.lag_s is None or first_ns is None:
            return found
        # By the scheduler's plan and clock, not by a second one.
        plan = plan_lag(schedule.lag_s, list(watched.runs))
        runs = islice(next_runs(plan, schedule, first_ns), len(found.times))
        return found._replace(times=tuple(NextRun(*each) for each in runs))

    def rpo_at_risk(self, name: str) -> bool:
        """Whether a mirror's promise breaks at the rate of its transfer (any thread)."""
        watched, running = self._scheduler.mirrors.get(name), self.running.get(name)
        if watched is None or running is None:
            return False
        schedule = watched.schedule
        objective_s = watched.definition.promise.rpo_s or (schedule.lag_s if schedule else None)
        left_s = running.verb().progress.left_s
        return judge_lag(watched.lag_s(), objective_s, left_s=left_s).at_risk
