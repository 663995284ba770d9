"""The service of a fleet: the real scheduler, wired to simulated workers as the daemon wires it to
its own (mirrord/daemon/daemon.py, watch.py). It crashes, and starts again from the catalogue.
"""

from __future__ import annotations

import random

from mirrord.control import timing
from mirrord.core.errors import MirrordError
from mirrord.core.model import Caps
from mirrord.core.records import Finding
from mirrord.core.results import Result
from mirrord.daemon.running import Running as Watching
from mirrord.engine import report
from mirrord.scheduler.clockwatch import ClockWatch
from mirrord.scheduler.health import Change
from mirrord.scheduler.jobs import Job, Outcome
from mirrord.scheduler.scheduler import Scheduler
from mirrord.scheduler.watched import Standing
from mirrord.schedules.lag import Run
from mirrord.system import clock
from tests.sim.checks import require
from tests.sim.faults import Attempt, Crash
from tests.sim.fleet import Fleet, Node
from tests.sim.rules import AlarmBook, Running, Slots, hold, lag_is_within, witnessed
from tests.sim.timers import SimTimers
from tests.sim.world import Worker

_STEP_S = 0.5
_TOLERANCE_S = 5.0
#: By how much a lag may be off where the clock was stepped in the middle of a run.
_CLOCK_S = 2.5
_EXACT_S = 0.001


class Service:
    """One after the other: what of it is in memory ends with a crash; the fleet stays."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.sim = fleet, fleet.sim
        self.nodes = {node.definition.name: node for node in fleet.nodes}
        self.calm = fleet.plan.fault_rate == 0
        self.slots = Slots() if self.calm else None
        self.chance = random.Random(f"service {fleet.plan.seed}")
        self.crashes = self.runs = self.waits = 0
        self.longest_wait_s = self.took_s = 0.0
        self.raised: dict[str, int] = {}
        self.up = False
        self._life = 0
        self._workers: dict[Worker, Attempt | None] = {}
        self._caps = Caps(*fleet.plan.caps)
        self._began_s = 0.0
        self.begin()

    # Life

    def begin(self) -> None:
        """Recover what a crash left, learn all mirrors, start the timers."""
        self._began_s = self.sim.real_s
        self.running, self.timers = Running(self._caps), SimTimers(self.sim)
        self.alarms = AlarmBook()
        self._failed: set[str] = set()
        book = self.fleet.book
        broken = [
            node for node in self.nodes.values() if book.operation(node.definition.id) is not None
        ]
        self._recovering = len(broken)
        life = self._life
        for node in broken:
            self.sim.spawn(lambda node=node: self._recover(life, node))  # type: ignore[misc]
        if not broken:
            self._define_all()

    def _recover(self, life: int, node: Node) -> None:
        if life != self._life:
            return
        worker = self._at_work()
        try:
            self.fleet.recover(node)
        except Crash:
            return
        except MirrordError as error:
            self.fleet.say(f"{node.definition.name} is left: {error.code}")
        finally:
            self._workers.pop(worker, None)
        if life == self._life:
            self._recovering -= 1
            if not self._recovering:
                self._define_all()

    def _define_all(self) -> None:
        self.up = True
        plan = self.fleet.plan
        self.scheduler = Scheduler(
            self.timers,
            self._start,
            caps=self._caps,
            told=self._told,
            chance=random.Random(f"retries {plan.seed} {self._life}"),
        )
        self.queue = witnessed(self.scheduler, self.slots)
        self._clock = ClockWatch(clock.now_ns(), clock.boottime_s(), tolerance_s=_TOLERANCE_S)
        self._looked_s = dict.fromkeys(self.nodes, self.sim.now_s)
        left: dict[str | None, list[Finding]] = {}
        for row in self.fleet.book.alarms(up=True, limit=1_000_000):
            left.setdefault(row.mirror_id, []).append(Finding(row.kind, row.level, row.text))
        for name, node in self.nodes.items():
            self._define(node)
            findings = left.get(node.definition.id, [])
            self.scheduler.mirrors[name].alarms.up |= {f.kind: f for f in findings}
            self.alarms.up |= {(name, f.kind): f.level for f in findings}
        self._beat(self._life)

    def _define(self, node: Node) -> None:
        """As `Daemon._define` and `Daemon.refresh` do, from what the catalogue says."""
        reading = report.status(self.fleet.mirror(node)).reading
        definition, schedule = node.definition, node.schedule
        runs: list[Run] = []
        if schedule is not None and schedule.lag_s is not None:
            runs = timing.past_runs(self.fleet.mirror(node))
        standing = Standing.of(reading)
        watched = self.scheduler.define(
            definition, schedule, standing, filesystem=node.filesystem, runs=runs
        )
        watched.base_risk = reading.base_risk
        follows = schedule is not None and schedule.lag_s is None and standing.mirrored
        if self.slots is not None and schedule is not None and follows:
            self.slots.expect(definition.name, schedule, definition.id)

    def crash(self) -> None:
        """The process ends: all that runs in it, and all that it knows."""
        self.crashes += 1
        self._life += 1
        self.up = False
        self.timers.stop()
        for worker, attempt in list(self._workers.items()):
            if attempt is not None:
                attempt.dead = True
            if worker is not self.sim.current:
                self.sim.kill(worker, Crash("the process ended"))
        self._workers.clear()
        self.fleet.say("crash of the service")
        down_s = self.chance.uniform(1, 60) if self.chance.random() < 0.8 else 1800.0
        self.sim.at(self.sim.now_s + down_s, self.begin)

    # Jobs

    def _start(self, job: Job) -> None:
        watched, life = self.scheduler.mirrors[job.name], self._life
        self.running.begin(job, watched.schedule)
        watching, waited_s = Watching(job.verb, watched), self.queue.waited_s(job.name)
        self.waits += waited_s > 0
        self.longest_wait_s = max(self.longest_wait_s, waited_s)
        self.sim.spawn(lambda: self._run(life, job, watching, waited_s))

    def _at_work(self) -> Worker:
        worker = self.sim.current
        assert worker is not None
        self._workers[worker] = None
        return worker

    def _run(self, life: int, job: Job, watching: Watching, waited_s: float) -> None:
        if life != self._life:
            return
        worker, node = self._at_work(), self.nodes[job.name]
        started_s = clock.monotonic_s()
        value: Result | None = None
        error: MirrordError | None = None
        try:
            value = self.fleet.perform(
                node, job.verb, watching, begun=lambda each: self._workers.update({worker: each})
            )
        except MirrordError as caught:
            error = caught
        except Crash:
            if life == self._life:
                self.crash()
            return
        finally:
            self._workers.pop(worker, None)
        outcome = Outcome(
            value.status if value else "",
            clock.monotonic_s() - started_s,
            value.update if value else None,
            error,
        )
        self._ended(job, outcome, waited_s)

    def _ended(self, job: Job, outcome: Outcome, waited_s: float) -> None:
        node, watched = self.nodes[job.name], self.scheduler.mirrors[job.name]
        self.runs += 1
        self.took_s += outcome.duration_s
        self.running.end(job.name)
        if self.calm and job.verb == "update":
            lag_is_within(watched, node.definition, waited_s=waited_s, took_s=outcome.duration_s)
        self.scheduler.finished(job.name, outcome)
        if outcome.error is not None:
            if watched.error:
                self._failed.add(job.name)
            self.fleet.book.add_attempt(
                node.definition.id,
                verb=job.verb,
                cause=job.cause,
                number=job.number,
                code=outcome.error.code,
                error=str(outcome.error),
            )
        else:
            self._failed.discard(job.name)
        if job.verb != "update" or outcome.error is not None:
            self.refresh(node)
        self._check_lag(node)

    def ask(self, name: str, verb: str = "update") -> None:
        """A person asks for a verb: it waits for its turn before all that the scheduler wants."""
        if not self.up or name in self.running.jobs:
            return
        waits = self.queue.waiting.get(name)
        if waits is None or waits.cause != "asked":
            self.scheduler.ask(name, verb)

    def prune(self, name: str) -> None:
        """A person looks at what pruning doubted, and says that it is right: in no queue."""
        life, node = self._life, self.nodes[name]

        def work() -> None:
            if life != self._life:
                return
            worker = self._at_work()
            try:
                self.fleet.perform(
                    node, "prune", begun=lambda each: self._workers.update({worker: each})
                )
            except MirrordError:
                return  # it runs: at the next round
            except Crash:
                if life == self._life:
                    self.crash()
                return
            finally:
                self._workers.pop(worker, None)
            self.scheduler.pruned(name)
            self.refresh(node)

        self.sim.spawn(work)

    def refresh(self, node: Node) -> None:
        """Read one mirror again and probe both of its ends."""
        self._define(node)
        self.scheduler.check(node.definition.name)

    # The watch

    def _beat(self, life: int) -> None:
        if life != self._life:
            return
        plan, now_s = self.fleet.plan, self.sim.now_s
        by_s = self._clock.look(clock.now_ns(), clock.boottime_s())
        slept_s = self._clock.slept(clock.boottime_s(), clock.monotonic_s())
        if abs(by_s) > _STEP_S:
            self.timers.retime()
        elif slept_s > _STEP_S:
            self.timers.wake()
        else:
            slack_s = _EXACT_S if self.calm else _CLOCK_S  # small steps are let pass
            hold(self.timers.overdue_s() <= slack_s, "timers", "one is overdue")
        self._clock.judge(by_s)
        self.scheduler.check(*self.nodes)
        share = max(1, round(len(self.nodes) * plan.beat_s / plan.look_every_s))
        for name in sorted(self._looked_s, key=self._looked_s.__getitem__)[:share]:
            due = now_s - self._looked_s[name] >= plan.look_every_s
            if due and name not in self.running.jobs:
                self._looked_s[name] = now_s
                self.refresh(self.nodes[name])
        self._rules(int(now_s / plan.beat_s))
        self.sim.at(now_s + plan.beat_s, lambda: self._beat(life))

    def _told(self, name: str, change: Change) -> None:
        self.alarms.told(name, change)
        book, finding = self.fleet.book, change.finding
        mirror_id = self.nodes[name].definition.id
        self.fleet.say(f"{name} {finding.kind} {finding.level} {change.raised}")
        if change.raised:
            self.raised[finding.kind] = self.raised.get(finding.kind, 0) + 1
            book.raise_alarm(mirror_id, finding.kind, finding.level, finding.text)
        else:
            book.clear_alarm(mirror_id, finding.kind)

    # Rules

    def _rules(self, beat: int) -> None:
        self.running.no_idleness(self.queue.waiting)
        for name in self._failed:
            hold((name, "failure") in self.alarms.up, name, "its last run failed without an alarm")
        for node in self.fleet.nodes[beat % 17 :: 17]:
            self._check_lag(node)
            self._check_late(node)

    def _check_lag(self, node: Node) -> None:
        """What the scheduler says of the lag is never less than what is true."""
        watched, definition = self.scheduler.mirrors[node.definition.name], node.definition
        span, said_s = self.fleet.checks.view(definition), watched.lag_s()
        if said_s is None or span is None or span.until_s is None:
            return
        true_s, slack_s = self.sim.real_s - span.until_s, _EXACT_S if self.calm else _CLOCK_S
        if said_s + slack_s >= true_s:
            return
        # After a start all that is known is the wall clock: it may have been set since.
        slack_s += self.sim.stepped_s(0.0, self._began_s)
        require(said_s + slack_s >= true_s, definition, f"lag {said_s:.1f} s, truly {true_s:.1f} s")

    def _check_late(self, node: Node) -> None:
        """A copy that is far too old has an alarm."""
        watched, schedule = self.scheduler.mirrors[node.definition.name], node.schedule
        lag_s, standing = watched.lag_s(), watched.standing
        if schedule is None or lag_s is None or not standing.mirrored:
            return
        held_back = schedule.lag_s is not None and bool(schedule.windows or schedule.blackouts)
        if lag_s > 2.6 * schedule.period_s and not held_back:
            up = (node.definition.name, "lag") in self.alarms.up
            require(up, node.definition, "it is late, and there is no alarm")
