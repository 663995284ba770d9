"""The scheduler: due times in, jobs out.

SnapMirror, FAST'02, 3.2.4. It keeps what it needs to know of each mirror, sets timers, fills the
queue and starts what may run; who it is wired to runs the jobs and tells how they ended. The
daemon wires it to APScheduler and threads, the simulation to its own time. Not thread-safe: it is
called by one thread (the daemon's event loop).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Protocol

from mirrord.core.model import Caps, Definition
from mirrord.core.records import AlarmKind, Finding
from mirrord.core.results import UpdateNumbers, has_acted
from mirrord.core.states import TRANSFERS
from mirrord.core.status import Reading
from mirrord.scheduler.clockwatch import WallTimes
from mirrord.scheduler.health import Change, assess
from mirrord.scheduler.jobs import Job, Outcome, Queue, pause_s
from mirrord.scheduler.periods import closed_s, open_period_s
from mirrord.scheduler.watched import Standing, Watched, is_held, plainly_well
from mirrord.schedules.lag import Run, next_runs, plan_lag
from mirrord.schedules.schedule import Schedule, missed
from mirrord.system import clock

#: Verbs that end with an update: only they judge the last run.
_UPDATES = frozenset(verb.value for verb in TRANSFERS)


class Timers(Protocol):
    """Timers with callbacks; a key has one timer."""

    def follow(self, key: str, schedule: Schedule, seed: str, fire: Callable[[], object]) -> None:
        """Call at each time of a schedule; several that were missed together: once."""

    def at(self, key: str, at_ns: int, fire: Callable[[], object]) -> None:
        """Call once, at that wall time or at once when it is past."""

    def cancel(self, key: str) -> None:
        """Cancel a timer."""

    def next_ns(self, key: str) -> int | None:
        """When the next call is due, or None."""

    def retime(self) -> None:
        """The wall clock was stepped: recompute all next times."""

    def wake(self) -> None:
        """The machine was suspended: call now what came due meanwhile."""


class Scheduler:
    """See the module. start: is given each job that may run, and returns at once."""

    def __init__(
        self,
        timers: Timers,
        start: Callable[[Job], None],
        *,
        caps: Caps,
        chance: random.Random | None = None,
        told: Callable[[str, Change], None] = lambda _name, _change: None,
    ) -> None:
        """told: called with each alarm that is raised or cleared, and the mirror's name."""
        self.timers, self.queue = timers, Queue(caps)
        self.mirrors: dict[str, Watched] = {}
        self._start, self._told = start, told
        self._chance = chance or random.Random()  # noqa: S311 - spreads retries, hides nothing
        self.stopping = False
        self._wall = WallTimes(clock.now_ns(), clock.boottime_s())

    # Definitions

    def define(
        self,
        definition: Definition,
        schedule: Schedule | None,
        standing: Standing,
        *,
        host: str = "",
        filesystem: str = "",
        runs: Iterable[Run] = (),
    ) -> Watched:
        """Begin to look after a mirror, or take its changed definition.

        runs: what earlier transfers took, oldest first, for a lag target. A time that passed
        while nobody looked (downtime) is made up for once.
        """
        name = definition.name
        watched = self.mirrors.get(name)
        fresh = watched is None or watched.definition.id != definition.id
        if watched is None or fresh:
            self._forget_alarms(name)
            self.queue.waiting.pop(name, None)
            self.timers.cancel(_retry(name))
            watched = self.mirrors[name] = Watched(definition, schedule)
            watched.runs.extend(runs)
        changed = fresh or watched.schedule != schedule
        watched.definition, watched.schedule = definition, schedule
        if changed:
            watched.open_period_s = open_period_s(schedule) if schedule is not None else None
        watched.host, watched.filesystem = host, filesystem
        self.stands(name, standing)
        if changed:
            self._set_timer(watched, first=fresh)
        return watched

    def remove(self, name: str) -> None:
        """Remove a mirror; its running job is not disturbed."""
        self._forget_alarms(name)
        self.mirrors.pop(name, None)
        self.queue.waiting.pop(name, None)
        self.timers.cancel(name)
        self.timers.cancel(_retry(name))
        self.timers.cancel(_missed(name))

    def _forget_alarms(self, name: str) -> None:
        """A mirror is no more: nothing is wrong with it, and nobody would ever judge that again."""
        watched = self.mirrors.get(name)
        if watched is not None:
            for change in watched.alarms.update([]):
                self._told(name, change)

    def stands(self, name: str, standing: Standing) -> None:
        """Update what is recorded of a mirror."""
        watched = self.mirrors.get(name)
        if watched is None:
            return
        if standing.confirmed_ns != watched.standing.confirmed_ns:
            self._look_at_clock()
            watched.confirmed_boot_s = self._wall.boot_s(
                standing.confirmed_ns, since_s=watched.started_boot_s
            )
        begins = standing.mirrored and not watched.standing.mirrored
        ends = watched.standing.mirrored and not standing.mirrored
        watched.standing = standing
        if ends:  # it was broken off: no run goes on, and why the last one failed is over
            watched.number, watched.error, watched.gives_up = 0, "", False
            self._no_retry(watched)
        waits = self.queue.waiting.get(name)
        if waits and waits.cause != "asked" and (standing.quiesced or not standing.mirrored):
            self.queue.waiting.pop(name, None)  # it would be refused
            self._plan_lag_later(watched)
        if begins and watched.schedule is not None and watched.schedule.lag_s is not None:
            self._set_timer(watched, first=False)

    def found(self, name: str, reading: Reading) -> None:
        """Store what a probe of both ends and the records found."""
        watched = self.mirrors.get(name)
        if watched is not None:
            watched.base_risk, watched.faults = reading.base_risk, reading.faults
            self.stands(name, Standing.of(reading))
            self.check(name)

    def hold(self, name: str) -> Job | None:
        """A command ends what goes on with a mirror: no run begins until `release`, and a run that
        waits for its turn or is to be retried is dropped. Returns the one that waited.
        """
        watched = self.mirrors.get(name)
        if watched is None:
            return None
        watched.held += 1
        if watched.retry_pending:
            watched.held_back = "retry"
        self._no_retry(watched)
        dropped = self.queue.waiting.pop(name, None)
        if dropped is not None:
            cause = watched.replaced if dropped.cause == "asked" else dropped.cause
            watched.held_back, watched.replaced = cause or watched.held_back, ""
        return dropped

    def release(self, name: str, *, again: bool) -> None:
        """That command has ended. again: it failed, so what it held back is due after all."""
        watched = self.mirrors.get(name)
        if watched is None or not watched.held:
            return
        watched.held -= 1
        if watched.held:
            return
        cause, watched.held_back = watched.held_back, ""
        if cause and again:
            self.due(name, cause, "the command that delayed it has failed")
        else:
            self._plan_lag_later(watched)

    def inherit(self, name: str, findings: Iterable[Finding]) -> None:
        """Alarms that were active when the previous daemon stopped remain until judged.

        Those about the last run are judged by the next one.
        """
        watched = self.mirrors[name]
        watched.alarms.up |= {finding.kind: finding for finding in findings}
        watched.inherited += [
            watched.alarms.up[kind]
            for kind in (AlarmKind.FAILURE, AlarmKind.PRUNE)
            if kind in watched.alarms.up
        ]

    def pruned(self, name: str) -> None:
        """The owner has resolved what pruning refused."""
        watched = self.mirrors.get(name)
        if watched is not None:
            watched.prune_refused = ""
            watched.inherited = [f for f in watched.inherited if f.kind is not AlarmKind.PRUNE]
            self.check(name)

    # Times

    def _set_timer(self, watched: Watched, *, first: bool) -> None:
        name, schedule = watched.definition.name, watched.schedule
        self.timers.cancel(name)
        self.timers.cancel(_missed(name))
        watched.target = ""
        if schedule is None:
            return
        if schedule.lag_s is not None:
            self._plan_lag(watched)
            return
        self.timers.follow(
            name, schedule, watched.definition.id, lambda: self.due(name, "schedule", "")
        )
        standing = watched.standing
        if first and standing.mirrored and standing.confirmed_ns:
            late = missed(
                schedule, standing.confirmed_ns, clock.now_ns(), seed=watched.definition.id
            )
            if late is None:
                return
            why = late.why
            if late.at_ns <= clock.now_ns():
                self.due(name, "missed", why)
            else:
                self.timers.at(_missed(name), late.at_ns, lambda: self.due(name, "missed", why))

    def _plan_lag(self, watched: Watched) -> None:
        """Set the time of the next run of a mirror with a lag target."""
        schedule, name = watched.schedule, watched.definition.name
        if schedule is None or schedule.lag_s is None or not watched.standing.mirrored:
            return
        plan = plan_lag(schedule.lag_s, list(watched.runs))
        watched.target = "" if plan.feasible else plan.why
        # Not from `confirmed_ns`: a clock that went back since would put it off by as much.
        left_s = max(0.0, plan.wait_s - (watched.lag_s() or 0.0))
        run = next(next_runs(plan, schedule, clock.now_ns() + round(left_s * 1e9)))
        self.timers.at(name, run.at_ns, lambda: self.due(name, "lag", run.why))

    # Jobs

    def due(self, name: str, cause: str, why: str, *, verb: str = "update") -> bool:
        """A mirror is due. False when it cannot run or is queued already.

        While a retry is pending the next scheduled time does not overtake it: pauses that grow
        would otherwise mean nothing to a short interval.
        """
        watched = self.mirrors.get(name)
        if watched is None or self.stopping:
            return False
        if cause == "retry":
            # It is due now, whatever becomes of it: its timer is done.
            watched.retry_pending = False
        if cause != "asked":
            if watched.held:
                watched.held_back = cause
            if not watched.standing.mirrored or watched.standing.quiesced or is_held(watched):
                self._plan_lag_later(watched)
                return False
            if watched.retry_pending and cause != "retry":
                return False
            if cause in ("retry", "lag", "missed") and self._held_back(watched, cause, why):
                return False
        number = watched.number + 1 if cause == "retry" else 1
        job = Job(
            name,
            verb,
            cause,
            why,
            number,
            watched.host,
            watched.filesystem,
            watched.definition.id,
        )
        added = self.queue.add(job)
        self.pump()
        return added

    def ask(self, name: str, verb: str) -> None:
        """Somebody asks for a verb: it goes first, and in place of a run that waits. That one is
        due again if the verb turns out to have transferred nothing.
        """
        waits = self.queue.waiting.pop(name, None)
        if waits is not None and waits.cause != "asked":
            self.mirrors[name].replaced = waits.cause
        self.due(name, "asked", "asked for", verb=verb)

    def _held_back(self, watched: Watched, cause: str, why: str) -> bool:
        """Whether a window or blackout holds this run back; then it is due when that is over.

        It was due when it was allowed, but it waited in the queue, the machine was suspended, or a
        clock that was stepped brings it early.
        """
        schedule, name = watched.schedule, watched.definition.name
        now_ns = clock.now_ns()
        if schedule is None or schedule.allowed(now_ns):
            return False
        if watched.retry_pending:
            return True  # which does what this run was to do
        open_ns = schedule.next_allowed(now_ns)
        if cause == "schedule":
            next_ns = self.timers.next_ns(name)
            if next_ns is not None and next_ns <= open_ns:
                return True  # the schedule makes up for it by itself
            cause, why = "missed", "1 run was missed; one makes up for it"
        key = {"retry": _retry(name), "missed": _missed(name)}.get(cause, name)
        watched.retry_pending = cause == "retry"
        self.timers.at(key, open_ns, lambda: self.due(name, cause, why))
        return True

    def _plan_lag_later(self, watched: Watched) -> None:
        """A lag target that may not run now is checked again after a quarter of it."""
        schedule = watched.schedule
        if schedule is not None and schedule.lag_s is not None and watched.standing.mirrored:
            name = watched.definition.name
            at_ns = clock.now_ns() + round(max(1.0, schedule.lag_s / 4) * 1e9)
            self.timers.at(name, at_ns, lambda: self.due(name, "lag", ""))

    def pump(self) -> None:
        """Start the jobs that may run."""
        if self.stopping:
            return
        ready = self.queue.ready(self._is_held_back)
        if ready:
            self._look_at_clock()
        for job in ready:
            watched = self.mirrors.get(job.name)
            if watched is not None:
                watched.started_boot_s = clock.boottime_s()
            if watched is not None and job.verb == "update":
                watched.number = job.number
                self._no_retry(watched)
            self._start(job)

    def _is_held_back(self, job: Job) -> bool:
        """Whether a job whose turn has come may not begin now."""
        watched = self.mirrors.get(job.name)
        if watched is None or job.cause == "asked":
            return False
        return self._held_back(watched, job.cause, job.why)

    def _no_retry(self, watched: Watched) -> None:
        """What a retry was to do is done by another run."""
        if watched.retry_pending:
            watched.retry_pending = False
            self.timers.cancel(_retry(watched.definition.name))

    def finished(self, name: str, outcome: Outcome) -> None:
        """A job ended."""
        job = self.queue.running.pop(name, None)
        watched = self.mirrors.get(name)
        if watched is not None and job is not None and watched.definition.id == job.mirror_id:
            watched.moved_s = None
            replaced, watched.replaced = watched.replaced, ""
            if outcome.error is None:
                self._succeeded(watched, job, outcome)
            else:
                self._failed(watched, job, outcome)
            if replaced and _is_idle(outcome):
                self.due(name, replaced, "the command that took its place transferred nothing")
            self.check(name)
        self.pump()

    def _succeeded(self, watched: Watched, job: Job, outcome: Outcome) -> None:
        # Another verb says nothing about updates: neither one that only showed its plan, nor one
        # that restored something.
        if outcome.update is not None or (job.verb in _UPDATES and has_acted(outcome.status)):
            watched.number, watched.error, watched.gives_up = 0, "", False
            watched.inherited.clear()
            self._no_retry(watched)
        if outcome.update is not None:
            self._updated(watched, outcome.duration_s, outcome.update)
        if watched.schedule is not None and watched.schedule.lag_s is not None:
            self._plan_lag(watched)

    def _updated(self, watched: Watched, duration_s: float, update: UpdateNumbers) -> None:
        before_ns, before_s = watched.standing.confirmed_ns, watched.confirmed_boot_s
        watched.prune_refused, watched.base_risk = update.prune_refused, ""
        # The command that failed before is over with it: the next probe does not find it again.
        watched.faults = tuple(
            fault for fault in watched.faults if fault.kind is not AlarmKind.FAILURE
        )
        self.stands(
            watched.definition.name,
            watched.standing._replace(mirrored=True, confirmed_ns=update.confirmed_ns),
        )
        if before_ns:
            elapsed_s = max(0.0, watched.confirmed_boot_s - before_s)
            watched.runs.append(Run(elapsed_s, duration_s, update.stream_bytes))

    def _failed(self, watched: Watched, job: Job, outcome: Outcome) -> None:
        assert outcome.error is not None
        name, error = watched.definition.name, outcome.error
        if error.code == "diverged":
            watched.base_risk = str(error)
        idle = watched.standing.quiesced or not watched.standing.mirrored
        asked = job.cause == "asked"
        held = watched.held > 0 and error.code in ("aborted", "busy")
        misdirected = asked and (job.verb != "update" or error.code in ("busy", "refused"))
        if error.code == "aborted" or held or misdirected or (error.code == "refused" and idle):
            # A person stopped it, or requested the impossible and has the error: no alarm.
            self._plan_lag_later(watched)
            return
        watched.error, watched.number = str(error), job.number
        pause = None
        if not asked:  # the requester decides whether to retry
            pause = pause_s(error, job.number, watched.definition.retries, self._chance)
        watched.gives_up = pause is None
        if pause is None:
            self._plan_lag_later(watched)
            return
        watched.retry_pending = True
        at_ns = clock.now_ns() + round(pause * 1e9)
        if watched.schedule is not None:
            at_ns = watched.schedule.next_allowed(at_ns)
        self.timers.at(_retry(name), at_ns, lambda: self.due(name, "retry", str(error)))

    def _look_at_clock(self) -> None:
        self._wall.look(clock.now_ns(), clock.boottime_s())

    # Health

    def _expected_s(self, watched: Watched) -> float | None:
        """The lag that the schedule allows now: its period, and the time it was not to run in."""
        schedule = watched.schedule
        if schedule is None or (not schedule.windows and not schedule.blackouts):
            return watched.open_period_s
        held_s = closed_s(schedule, watched.standing.confirmed_ns, clock.now_ns())
        allowed_s = open_period_s(schedule) + held_s
        # The period of a lag target is the target, as if nothing ever held it back.
        return allowed_s if schedule.lag_s is not None else min(schedule.period_s, allowed_s)

    def check(self, *names: str) -> None:
        """Judge mirrors now; reports each change."""
        now_s = clock.boottime_s()
        for name in names:
            watched = self.mirrors.get(name)
            if watched is None or (not watched.alarms.up and plainly_well(watched, now_s)):
                continue
            for change in watched.alarms.update(assess(watched, self._expected_s(watched))):
                self._told(name, change)


def _is_idle(outcome: Outcome) -> bool:
    """Whether a job did nothing: it only planned, or it was refused."""
    if outcome.error is not None:
        return outcome.error.code in ("busy", "refused")
    return not has_acted(outcome.status)


def _retry(name: str) -> str:
    return f"{name}/retry"


def verification(name: str) -> str:
    """The timer of a mirror's scheduled verifications."""
    return f"{name}/verify"


def _missed(name: str) -> str:
    return f"{name}/missed"
