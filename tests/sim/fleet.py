"""A fleet of mirrors in a simulated world: the real engine and the real catalogue, by seed.

`Fleet.attempt` is one run of a mirror, with its faults and checks; it is to be called in a job of
the simulation. What calls it, and when, is up to a scheduler: `Periodic` is the simplest.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.core.errors import MirrordError
from mirrord.core.model import Definition, Endpoint
from mirrord.core.results import Silent
from mirrord.core.states import State
from mirrord.engine import update
from mirrord.engine.mirror import Mirror
from mirrord.engine.progress import RunFiles
from mirrord.system import clock, steps
from tests.sim.checks import HEALTHY, Checks, require
from tests.sim.faults import Attempt, Crash, Faults
from tests.sim.link import Link, Wire
from tests.sim.memory import MemoryDriver
from tests.sim.stream import Geometry
from tests.sim.volume import Disk
from tests.sim.workload import KINDS, Owner, Writer
from tests.sim.world import Sim

#: What runs at the end of a simulation has this time to finish.
_SETTLE_S = 900.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A simulation. faulty: the part of the time in which faults happen; the rest is to recover.

    fault_rate: of the attempts. shared: each n-th mirror has the source of the one before it.
    """

    seed: int
    mirrors: int = 60
    hours: float = 6.0
    faulty: float = 0.7
    fault_rate: float = 0.3
    shared: int = 10
    periods_s: tuple[float, ...] = (1800.0, 2700.0, 3600.0)
    rate_bps: float = 20e6
    round_trip_s: float = 0.04

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.hours * 3600


@dataclass(slots=True)
class Node:
    """A mirror of the fleet."""

    definition: Definition
    period_s: float
    link: Link
    attempts: int = 0
    busy: bool = False


class Fleet:
    """Mirrors, their volumes, their users and their troubles. A context manager."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.sim = Sim()
        self.outcomes: Counter[str] = Counter()
        self.faults_met: Counter[str] = Counter()
        self._folder = folder
        self._settled = False
        self._log = hashlib.sha256()
        self._definitions = Definitions(folder)
        self._catalogues: dict[int, Catalogue] = {}

    def __enter__(self) -> Self:
        """Make all of it."""
        plan, sim = self.plan, self.sim.__enter__()
        steps.observe(self._step)
        self.wire = Wire(plan.rate_bps, plan.round_trip_s)
        self.disk = Disk(Geometry(frame_blocks=16))
        self.checks = Checks(sim, self.disk)
        self.nodes = [self._node(number) for number in range(plan.mirrors)]
        self.writers = [
            Writer(sim, self.disk, volume, KINDS[number % len(KINDS)], f"{plan.seed} {number}")
            for number, volume in enumerate(self.disk.volumes.values())
        ]
        self.owners = [
            Owner(sim, MemoryDriver(self.disk, node.definition.source.location), node.period_s)
            for node in self.nodes
            if node.definition.snapshots
        ]
        self.faults = Faults(
            sim, self.disk, [node.definition.destination.location for node in self.nodes],
            seed=plan.seed, rate=plan.fault_rate, until_s=plan.end_s * plan.faulty,
        )  # fmt: skip
        sim.at(0, self._probe)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the threads, and with them their catalogues."""
        self.sim.__exit__(kind, error, trace)
        steps.observe(None)

    # For schedulers

    def mirror(self, node: Node) -> Mirror:
        """The mirror as a process would have it that begins now. To be called in a job."""
        definition = node.definition
        return Mirror(
            definition=definition,
            definitions=self._definitions,
            catalogue=self.catalogue(),
            run=RunFiles(self._folder, definition.name),
            watcher=Silent(),
            source=MemoryDriver(self.disk, definition.source.location, node.link),
            destination=MemoryDriver(self.disk, definition.destination.location, node.link),
        )

    def catalogue(self) -> Catalogue:
        """The catalogue, as the thread of this job has it open."""
        worker = self.sim.current
        assert worker is not None, "the catalogue is asked for in jobs"
        known = self._catalogues.get(worker.number)
        if known is None:
            known = Catalogue(self._folder / "catalogue.sqlite")
            self._catalogues[worker.number] = known
            worker.at_end.append(known.close)
        return known

    def attempt(self, node: Node) -> str:
        """Initialize or update a mirror, whatever happens to it; returns how that ended: a status,
        the code of an error, or "crash".
        """
        worker = self.sim.current
        assert worker is not None, "an attempt is a job"
        node.attempts += 1
        attempt = self.faults.draw(node.definition.name, node.attempts)
        worker.context = attempt
        node.link.begin(attempt.trouble)
        if attempt.abort_after_s:
            run = RunFiles(self._folder, node.definition.name)
            self.sim.at(self.sim.now_s + attempt.abort_after_s, run.request_abort)
        try:
            outcome = self._run(node, attempt)
        except Crash:
            outcome = "crash"
        finally:
            worker.context = None
        if outcome == "crash":  # all that the process had in its memory is gone
            self._catalogues.pop(worker.number).close()
            worker.at_end.clear()
        self.outcomes[outcome] += 1
        self.faults_met[attempt.fault] += 1
        self.say(f"{node.definition.name} {outcome} {attempt.fault} {node.link.moved_bytes}")
        self.checks.after(node.definition, self.catalogue(), outcome, attempt.since_s)
        return outcome

    def _run(self, node: Node, attempt: Attempt) -> str:
        mirror = self.mirror(node)
        try:
            fresh = mirror.row().state is State.UNINITIALIZED
            if fresh:
                attempt.since_s = 0.0  # a first transfer that goes on shows what it began with
            return (update.initialize if fresh else update.update)(mirror).status
        except MirrordError as error:
            return error.code

    # The run

    def say(self, line: str) -> None:
        """Add to the log of what happened when; its digest tells runs apart."""
        self._log.update(f"{self.sim.now_s:.6f} {line}\n".encode())

    def digest(self) -> str:
        """Of all that happened until now."""
        return self._log.hexdigest()

    def settle(self) -> None:
        """After the last fault and the last write: each mirror once more, then all must be well."""
        for writer in self.writers:
            writer.stopped = True
        for owner in self.owners:
            owner.stopped = True
        self.sim.spawn(self._settle_all)
        while not self._settled:
            self.sim.run(self.sim.now_s + 60)

    def _settle_all(self) -> None:
        for node in self.nodes:
            self._check_fresh(node)
        clock.sleep_s(_SETTLE_S)
        for node in self.nodes:
            outcome = self.attempt(node)
            require(outcome in HEALTHY, node.definition, f"ended with '{outcome}' without a fault")
            self.checks.in_step(node.definition)
            self.checks.history(node.definition, self.catalogue())
        left = [path.name for path in self._folder.glob("*.progress*")]
        assert not left, f"progress files are left over: {left}"
        self._settled = True

    def _check_fresh(self, node: Node) -> None:
        """Faults are over for long: a confirmation is no older than two turns."""
        row = self.catalogue().mirror(node.definition.id)
        age_s = self.sim.now_s - self.sim.earliest_s(row.confirmed_ns) if row else float("inf")
        well_s = self.sim.now_s - self.faults.until_s
        if well_s > 2 * node.period_s + 600:
            require(age_s <= 2 * node.period_s + 600, node.definition, "it fell behind")

    def _probe(self) -> None:
        """Views and lags are right at any moment, also in the middle of transfers."""
        for node in self.nodes[int(self.sim.now_s) % 7 :: 7]:
            self.checks.view(node.definition)
        self.sim.at(self.sim.now_s + 601.0, self._probe)

    def _step(self, label: str) -> None:
        worker = self.sim.current
        attempt = worker.context if worker is not None else None
        if isinstance(attempt, Attempt):
            self._log.update(f"{self.sim.now_s:.6f} {attempt.name} {label}\n".encode())
            attempt.step(label)

    def _node(self, number: int) -> Node:
        chance = random.Random(f"node {self.plan.seed} {number}")
        shared = self.plan.shared and number % self.plan.shared == self.plan.shared - 1
        source = f"/source/{number - 1 if shared else number}"
        if not shared:
            self.disk.create(source, chance.randint(20, 150))
        definition = Definition(
            name=f"m{number}",
            id=f"i{number}",
            source=Endpoint("memory", source),
            destination=Endpoint("memory", f"/destination/{number}"),
            keep_source=chance.randint(1, 3),
            keep_destination=chance.randint(1, 8),
            snapshots=("daily.*",) if number % 7 == 3 else (),
        )
        return Node(definition, chance.choice(self.plan.periods_s), Link(self.wire))


class Periodic:
    """The simplest scheduler: each mirror once in its period, never twice at a time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        chance = random.Random(f"periodic {fleet.plan.seed}")
        for node in fleet.nodes:
            self._at(chance.uniform(0, node.period_s), node)

    def _at(self, time_s: float, node: Node) -> None:
        self._fleet.sim.at(time_s, lambda: self._turn(node))

    def _turn(self, node: Node) -> None:
        sim = self._fleet.sim
        if sim.now_s >= self._fleet.plan.end_s:
            return
        self._at(sim.now_s + node.period_s, node)
        if not node.busy:
            node.busy = True
            sim.spawn(lambda: self._run(node))

    def _run(self, node: Node) -> None:
        self._fleet.attempt(node)
        node.busy = False


@dataclass(frozen=True, slots=True)
class Report:
    """What a simulation came to."""

    digest: str
    outcomes: dict[str, int]
    faults: dict[str, int]
    carried_bytes: int
    checks: int
    cpu_s: float

    @property
    def attempts(self) -> int:
        """How many runs of verbs there were."""
        return sum(self.outcomes.values())


def simulate(plan: Plan, folder: Path) -> Report:
    """Run a plan with the simplest scheduler. Raises `Violation` where a rule does not hold."""
    begun_s = time.process_time()
    with Fleet(plan, folder) as fleet:
        Periodic(fleet)
        fleet.sim.run(plan.end_s)
        fleet.settle()
        return Report(
            fleet.digest(), dict(sorted(fleet.outcomes.items())),
            dict(sorted(fleet.faults_met.items())), fleet.wire.carried_bytes,
            fleet.checks.made, time.process_time() - begun_s,
        )  # fmt: skip
