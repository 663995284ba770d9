"""The scheduler alone, with thousands of mirrors: jobs are only times that pass, by seed."""

from __future__ import annotations

import hashlib
import random
import time
from dataclasses import dataclass

from mirrord.config.schedules import _parsed
from mirrord.core.errors import MirrordError, TransferFailed
from mirrord.core.model import Caps, Definition, Endpoint, Promise
from mirrord.core.results import UpdateNumbers
from mirrord.scheduler.clockwatch import ClockWatch
from mirrord.scheduler.jobs import Job, Outcome
from mirrord.scheduler.scheduler import Scheduler
from mirrord.scheduler.watched import Standing
from mirrord.system import clock
from tests.sim import mixture
from tests.sim.rules import AlarmBook, Running, Slots, hold, lag_is_within, witnessed
from tests.sim.timers import SimTimers
from tests.sim.world import Sim

_BEAT_S = 60.0
_STEP_S = 0.5
_SETTLE_S = 3600.0
#: By how much a lag may be off where the clock was stepped in the middle of a run.
_CLOCK_S = 2.5


@dataclass(frozen=True, slots=True)
class AlonePlan:
    """A simulation. troubled: runs fail and the clock is set, in the first two thirds of it."""

    seed: int
    mirrors: int = 1000
    hours: float = 24.0
    troubled: bool = False
    caps: tuple[int, int, int] = (64, 64, 4)
    mean_s: float = 2.0


@dataclass(frozen=True, slots=True)
class AloneReport:
    """What came of it."""

    digest: str
    runs: int
    slots: int
    failed: int
    longest_wait_s: float
    most: int
    alarms: dict[str, int]
    cpu_s: float


class Alone:
    """The scheduler, and jobs that take their time and know the truth about lags."""

    def __init__(self, plan: AlonePlan, sim: Sim) -> None:
        self.plan, self.sim = plan, sim
        self._chance = random.Random(f"alone {plan.seed}")
        caps = Caps(*plan.caps)
        self.timers, self.alarms, self.running = SimTimers(sim), AlarmBook(), Running(caps)
        self.scheduler = Scheduler(
            self.timers,
            self._start,
            caps=caps,
            told=self.alarms.told,
            chance=random.Random(f"retries {plan.seed}"),
        )
        self.slots = None if plan.troubled else Slots()
        self.queue = witnessed(self.scheduler, self.slots)
        self._true_s: dict[str, float] = {}
        self._log = hashlib.sha256()
        self.runs = self.failed = 0
        self._clock = ClockWatch(clock.now_ns(), clock.boottime_s(), tolerance_s=5.0)
        self.until_s = plan.hours * 3600 * 2 / 3 if plan.troubled else 0.0
        for number in range(plan.mirrors):
            self._define(number)
        sim.at(0.0, self._beat)

    def _define(self, number: int) -> None:
        chance = random.Random(f"{self.plan.seed} {number}")
        timing = mixture.draw(chance)
        name, end = f"m{number}", Endpoint("memory", f"/{number}")
        definition = Definition(
            name,
            f"{self.plan.seed}-{number}",
            end,
            end,
            timing=timing,
            promise=Promise(rpo_s=7200.0) if number % 50 == 0 else Promise(),
        )
        schedule = _parsed(timing, "UTC") if timing.rules else None
        self._true_s[name] = self.sim.real_s
        if schedule is not None and schedule.lag_s is None and self.slots is not None:
            self.slots.expect(name, schedule, definition.id)
        self.scheduler.define(
            definition,
            schedule,
            Standing(True, False, clock.now_ns()),
            filesystem=f"disk{chance.randrange(self.plan.mirrors // 15 + 1)}",
        )

    # Jobs

    def _start(self, job: Job) -> None:
        self.running.begin(job, self.scheduler.mirrors[job.name].schedule)
        waited_s = self.queue.waited_s(job.name)
        troubled = self.sim.now_s < self.until_s
        took_s = 0.0
        if self._chance.random() < 0.7:
            took_s = self._chance.expovariate(1 / self.plan.mean_s)
        error = None
        if troubled and self._chance.random() < 0.2:
            error = self._chance.choice((TransferFailed("cut"), MirrordError("damaged")))
        self._say(f"start {job.name} {job.cause} {job.number}")
        begun_s, confirmed_ns = self.sim.real_s, clock.now_ns()
        update = UpdateNumbers(confirmed_ns, stream_bytes=int(took_s * 1e6))
        outcome = Outcome("done", took_s, update)
        if error is not None:
            outcome = Outcome("", took_s, None, error)
        self.sim.at(self.sim.now_s + took_s, lambda: self._end(job, outcome, begun_s, waited_s))

    def _end(self, job: Job, outcome: Outcome, begun_s: float, waited_s: float) -> None:
        self.runs += 1
        self.running.end(job.name)
        watched = self.scheduler.mirrors[job.name]
        if self.slots is not None:
            lag_is_within(watched, watched.definition, waited_s=waited_s, took_s=outcome.duration_s)
        if outcome.error is None:
            self._true_s[job.name] = begun_s
        else:
            self.failed += 1
        self._say(f"end {job.name} {outcome.status}")
        self.scheduler.finished(job.name, outcome)
        self._check_lag(job.name)

    # Rules

    def _check_lag(self, name: str) -> None:
        said_s = self.scheduler.mirrors[name].lag_s()
        true_s = self.sim.real_s - self._true_s[name]
        hold(said_s is not None, name, "it has no lag")
        assert said_s is not None
        slack_s = _CLOCK_S if self.plan.troubled else 0.001
        hold(said_s >= true_s - slack_s, name, f"lag {said_s:.3f} s, really {true_s:.3f} s")
        if not self.plan.troubled:  # a wall time that came twice is taken for the first
            hold(said_s <= true_s + slack_s, name, f"lag {said_s:.3f} s, really {true_s:.3f} s")

    def _beat(self) -> None:
        """As the service's watch does, and the rules that hold at any time."""
        by_s = self._clock.look(clock.now_ns(), clock.boottime_s())
        slept_s = self._clock.slept(clock.boottime_s(), clock.monotonic_s())
        if abs(by_s) > _STEP_S:
            self.timers.retime()
        elif slept_s > _STEP_S:
            self.timers.wake()
        else:
            slack_s = _CLOCK_S if self.plan.troubled else 0.001  # small steps are let pass
            hold(self.timers.overdue_s() <= slack_s, "timers", "one is overdue")
        self.scheduler.check(*self.scheduler.mirrors)
        for name in list(self.scheduler.mirrors)[int(self.sim.now_s / _BEAT_S) % 29 :: 29]:
            self._check_lag(name)
        self.running.no_idleness(self.queue.waiting)
        if self.sim.now_s < self.until_s:
            self._trouble()
        self.sim.at(self.sim.now_s + _BEAT_S, self._beat)

    def _trouble(self) -> None:
        chance = self._chance
        if chance.random() < 0.02:
            self.sim.jump(chance.choice((-1, 1)) * 10 ** chance.uniform(-1, 4))
        if chance.random() < 0.02:
            self.sim.suspend(10 ** chance.uniform(0, 3.5))

    def finish(self) -> None:
        """At the end: nothing was missed, and all is well once each mirror ran again."""
        if self.slots is not None:
            self.slots.over()
        for name in self.scheduler.mirrors:
            self.scheduler.due(name, "asked", "the end")
        self.sim.run(self.sim.now_s + _SETTLE_S)
        for name, watched in self.scheduler.mirrors.items():
            hold(not watched.alarms.up, name, f"alarms stay up: {watched.alarms.up}")
            hold(not watched.retry_pending, name, "a retry is pending for ever")
            if watched.schedule is not None:
                late_s = (clock.now_ns() - (self.timers.next_ns(name) or 0)) / 1e9
                waits = name in self.queue.waiting or name in self.queue.running
                hold(late_s <= 0.001 or waits, name, "it has no next time")
        hold(not self.alarms.up, "alarms", f"some were never cleared: {self.alarms.up}")

    def _say(self, line: str) -> None:
        self._log.update(f"{self.sim.now_s:.6f} {line}\n".encode())

    def digest(self) -> str:
        """Of all that happened."""
        return self._log.hexdigest()


def simulate_alone(plan: AlonePlan) -> AloneReport:
    """Run a plan. Raises `Violation` where a rule does not hold."""
    begun_s = time.process_time()
    with Sim() as sim:
        alone = Alone(plan, sim)
        sim.run(plan.hours * 3600)
        alone.finish()
        return AloneReport(
            alone.digest(),
            alone.runs,
            alone.slots.met if alone.slots else 0,
            alone.failed,
            alone.queue.longest_wait_s,
            alone.running.most,
            dict(alone.alarms.raised),
            time.process_time() - begun_s,
        )
