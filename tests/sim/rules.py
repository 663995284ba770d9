"""What must hold of a scheduler at work, whatever runs the jobs."""

from __future__ import annotations

from collections import Counter

from mirrord.core.model import Caps, Definition
from mirrord.scheduler.health import Change
from mirrord.scheduler.jobs import Job, Queue
from mirrord.scheduler.scheduler import Scheduler
from mirrord.scheduler.watched import Watched
from mirrord.schedules.schedule import Schedule
from mirrord.system import clock
from tests.sim.checks import Violation

#: Timers come a moment after their time, never before.
_LATE_S = 0.001
#: A lag target is to be held once the scheduler had so many runs to learn from.
_LEARNT = 3


def hold(holds: bool, name: str, rule: str) -> None:
    """Stop the simulation where a rule does not hold."""
    if not holds:
        raise Violation(f"{name}: {rule}")


class Witness(Queue):
    """The queue, with a note of who began to wait when, and a look at each that is due."""

    def __init__(self, caps: Caps, slots: Slots | None) -> None:
        super().__init__(caps)
        self._slots = slots
        self.since_s: dict[str, float] = {}
        self.waits = 0
        self.longest_wait_s = 0.0

    def add(self, job: Job) -> bool:
        """As the queue does."""
        if self._slots is not None and job.cause == "schedule":
            self._slots.came(job.name)
        added = super().add(job)
        if added:
            self.since_s[job.name] = clock.monotonic_s()
        return added

    def waited_s(self, name: str) -> float:
        """How long the job that starts now had to wait."""
        waited_s = clock.monotonic_s() - self.since_s.pop(name, clock.monotonic_s())
        self.waits += 1
        self.longest_wait_s = max(self.longest_wait_s, waited_s)
        return waited_s


class Slots:
    """That each time of each schedule comes, in order and at its time, and no other.

    Only where the clock is left alone and no run fails: else times are skipped rightly.
    """

    def __init__(self) -> None:
        self._schedules: dict[str, tuple[Schedule, str]] = {}
        self._next_ns: dict[str, int] = {}
        self.met = 0

    def expect(self, name: str, schedule: Schedule, seed: str) -> None:
        """From now on, unless it is expected already."""
        if name in self._schedules:
            return
        self._schedules[name] = schedule, seed
        self._next_ns[name] = clock.now_ns()
        self._advance(name)

    def came(self, name: str) -> None:
        """A mirror is due by its schedule, now."""
        expected_ns = self._next_ns.get(name)
        if expected_ns is None:
            return
        late_s = (clock.now_ns() - expected_ns) / 1e9
        hold(0 <= late_s <= _LATE_S, name, f"a time of its schedule came {late_s:.6f} s late")
        self.met += 1
        self._advance(name)

    def over(self) -> None:
        """None is missing until now."""
        for name, expected_ns in self._next_ns.items():
            hold(expected_ns > clock.now_ns() - 10**6, name, "a time of its schedule was missed")

    def _advance(self, name: str) -> None:
        schedule, seed = self._schedules[name]
        following = schedule.next_after(self._next_ns[name], seed=seed)
        assert following is not None
        self._next_ns[name] = following.at_ns


class Running:
    """Who runs now: by the starts and ends of jobs alone, not by what the queue says."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self.jobs: dict[str, Job] = {}
        self._filesystems: Counter[str] = Counter()
        self.most = 0

    def begin(self, job: Job, schedule: Schedule | None) -> None:
        """A job starts: never more than the limits say, never two of one mirror, and by itself
        never when its windows and blackouts do not permit it.
        """
        is_allowed = schedule is None or job.cause == "asked" or schedule.allowed(clock.now_ns())
        hold(is_allowed, job.name, f"a run ({job.cause}) begins outside of its windows")
        hold(job.name not in self.jobs, job.name, "two jobs of one mirror run")
        self.jobs[job.name] = job
        self._filesystems[job.filesystem] += 1
        self.most = max(self.most, len(self.jobs))
        hold(len(self.jobs) <= self._caps.transfers, job.name, "too many jobs run")
        used = self._filesystems[job.filesystem]
        hold(used <= self._caps.per_filesystem, job.name, "too many jobs run on a file system")

    def end(self, name: str) -> None:
        """A job is over."""
        self._filesystems[self.jobs.pop(name).filesystem] -= 1

    def no_idleness(self, waiting: dict[str, Job]) -> None:
        """Nobody waits who could run."""
        if len(self.jobs) >= self._caps.transfers:
            return
        for name, job in waiting.items():
            blocked = (
                name in self.jobs or self._filesystems[job.filesystem] >= self._caps.per_filesystem
            )
            hold(blocked, name, "it waits although it could run")


class AlarmBook:
    """All alarms that were told: each is raised, may change its level, and is cleared once."""

    def __init__(self) -> None:
        self.up: dict[tuple[str, str], str] = {}
        self.raised: Counter[str] = Counter()

    def told(self, name: str, change: Change) -> None:
        """The scheduler's `told`."""
        key, level = (name, change.finding.kind), change.finding.level
        if change.raised:
            hold(self.up.get(key) != level, name, f"the alarm {key[1]} was raised twice")
            self.up[key] = level
            self.raised[key[1]] += 1
        else:
            hold(key in self.up, name, f"the alarm {key[1]} was cleared and was not up")
            del self.up[key]


def lag_is_within(
    watched: Watched, definition: Definition, *, waited_s: float, took_s: float
) -> None:
    """Just before a run without trouble commits: what the copy shows is no older than the schedule
    promises and the wait for a turn explains.
    """
    schedule, lag_s = watched.schedule, watched.lag_s()
    if schedule is None or lag_s is None or not watched.runs:
        return  # a time may have come during its first transfer, which was not the schedule's
    if schedule.lag_s is None:
        allowed_s = schedule.period_s + schedule.jitter_s + waited_s + took_s
    else:
        if len(watched.runs) < _LEARNT or watched.target:
            return
        closed_s = 86_400.0 if schedule.windows or schedule.blackouts else 0.0
        allowed_s = schedule.lag_s + waited_s + closed_s
    hold(
        lag_s <= allowed_s + _LATE_S,
        definition.name,
        f"the copy is {lag_s:.3f} s old, {allowed_s:.3f} s are allowed",
    )


def witnessed(scheduler: Scheduler, slots: Slots | None) -> Witness:
    """Put the witness into the place of its queue."""
    witness = Witness(scheduler.queue.caps, slots)
    scheduler.queue = witness
    return witness
