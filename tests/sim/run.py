"""A whole simulation: fleet, service, the people around it, and an end at which all is well."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from mirrord.core.states import State
from mirrord.system import clock
from tests.sim.checks import require
from tests.sim.fleet import Fleet, Node, Plan
from tests.sim.rules import hold
from tests.sim.service import Service

_ROUND_S = 120.0
#: Mirrors without a schedule are updated by people, about so often.
_BY_HAND_S = 3600.0
#: After the last fault: retries, stalled transfers and a service that is down are over.
_GRACE_S = 3600.0
_SETTLE_S = 900.0
_TURNS = 40


class People:
    """Operators: they initialize, update what has no schedule, quiesce and resume, and look at
    what pruning doubts.
    """

    def __init__(self, service: Service) -> None:
        self.service, self.fleet, self.sim = service, service.fleet, service.sim
        self._chance = random.Random(f"people {self.fleet.plan.seed}")
        self._quiesced: dict[str, float] = {}
        self.sim.at(0.0, self._round)

    def _round(self) -> None:
        service, sim, chance = self.service, self.sim, self._chance
        sim.at(sim.now_s + _ROUND_S, self._round)
        if not service.up:
            return
        for name, node in service.nodes.items():
            watched = service.scheduler.mirrors[name]
            if watched.standing.quiesced:
                continue
            if not watched.standing.mirrored:
                service.ask(name, "initialize")
            elif watched.prune_refused:
                service.prune(name)
            elif node.schedule is None and chance.random() < _ROUND_S / _BY_HAND_S:
                service.ask(name)
        if not service.calm and sim.now_s < self.fleet.faults.until_s and chance.random() < 0.1:
            node = chance.choice(self.fleet.nodes)
            name, waiting = node.definition.name, service.queue.waiting
            mirrored = service.scheduler.mirrors[name].standing.mirrored
            asked = name in waiting and waiting[name].cause == "asked"
            if mirrored and not asked and name not in self._quiesced:
                self._quiesced[name] = sim.now_s + chance.uniform(60, 7200)
                self._quiesce(node, True)
        for name, until_s in list(self._quiesced.items()):
            if sim.now_s >= min(until_s, self.fleet.faults.until_s):
                del self._quiesced[name]
                self._quiesce(service.nodes[name], False)

    def _quiesce(self, node: Node, quiesced: bool) -> None:
        if self.fleet.book.mirror(node.definition.id) is not None:
            self.fleet.book.set_quiesced(node.definition.id, quiesced)
            self.service.refresh(node)


@dataclass(frozen=True, slots=True)
class Report:
    """What a simulation came to. slots: times of schedules, each of which came at its time."""

    digest: str
    outcomes: dict[str, int]
    faults: dict[str, int]
    alarms: dict[str, int]
    carried_bytes: int
    checks: int
    slots: int
    crashes: int
    waits: int
    longest_wait_s: float
    cpu_s: float

    @property
    def attempts(self) -> int:
        """How many runs of verbs there were."""
        return sum(self.outcomes.values())


def simulate(plan: Plan, folder: Path) -> Report:
    """Run a plan. Raises `Violation` where a rule does not hold."""
    begun_s = time.process_time()
    with Fleet(plan, folder) as fleet:
        service = Service(fleet)
        People(service)
        fleet.sim.run(plan.end_s)
        _settle(service, folder)
        return Report(
            fleet.digest(),
            dict(sorted(fleet.outcomes.items())),
            dict(sorted(fleet.faults_met.items())),
            dict(sorted(service.raised.items())),
            fleet.wire.carried_bytes,
            fleet.checks.made,
            service.slots.met if service.slots else 0,
            service.crashes,
            service.waits,
            service.longest_wait_s,
            time.process_time() - begun_s,
        )


def _settle(service: Service, folder: Path) -> None:
    """Long after the last fault all must be well; after one more run of each, perfectly so."""
    fleet, sim = service.fleet, service.sim
    hold(service.up, "service", "it is down at the end")
    for node in fleet.nodes:
        _check_fresh(service, node)
    if service.slots is not None:
        service.slots.over()
    fleet.still()
    for name in service.nodes:
        service.ask(name)
    for _ in range(_TURNS):
        sim.run(sim.now_s + _SETTLE_S)
        waiting = [job for job in service.queue.waiting.values() if job.cause == "asked"]
        if not waiting and not service.running.jobs:
            break
    for node in fleet.nodes:
        name, definition = node.definition.name, node.definition
        fleet.checks.in_step(definition)
        fleet.checks.history(definition, fleet.book)
        watched = service.scheduler.mirrors[name]
        require(not watched.alarms.up, definition, f"alarms stay up: {watched.alarms.up}")
        require(not watched.retry_pending, definition, "a retry is pending for ever")
    hold(not service.alarms.up, "alarms", f"some were never cleared: {service.alarms.up}")
    hold(not fleet.book.alarms(up=True), "alarms", "the catalogue has some that are up")
    left = [path.name for path in folder.glob("*.progress*")]
    assert not left or service.running.jobs, f"progress files are left over: {left}"


def _check_fresh(service: Service, node: Node) -> None:
    """Faults are over for long: without anybody's help it is in step, and nothing is wrong."""
    well_s = service.sim.now_s - service.fleet.faults.until_s
    schedule, definition = node.schedule, node.definition
    if schedule is None or well_s < 2 * schedule.period_s + _GRACE_S:
        return
    watched = service.scheduler.mirrors[definition.name]
    row = service.fleet.book.mirror(definition.id)
    require(row is not None and row.state is State.MIRRORED, definition, "it is not mirrored")
    allowed_s = schedule.period_s + schedule.jitter_s + 600.0
    lag_s = watched.lag_s() or 0.0
    require(lag_s <= allowed_s, definition, f"it fell behind: {lag_s:.0f} of {allowed_s:.0f} s")
    require(not watched.alarms.up, definition, f"alarms are active: {watched.alarms.up}")
    due_ns = service.timers.next_ns(definition.name)
    waits = definition.name in (service.queue.waiting | service.running.jobs)
    require(waits or (due_ns or 0) >= clock.now_ns() - 10**6, definition, "it has no next time")
