"""A fleet of mirrors in a simulated world: the real engine and the real catalogue, by seed.

`Fleet.perform` is one run of a mirror, with its faults and checks; it is to be called in a job of
the simulation. What calls it, and when, is up to the service (service.py), with the real scheduler.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.config.schedules import Schedules
from mirrord.core.errors import MirrordError
from mirrord.core.model import Definition, Endpoint
from mirrord.core.results import Result, Silent, Watcher
from mirrord.core.states import State, Verb
from mirrord.engine import prune, recovery, update
from mirrord.engine.mirror import Mirror
from mirrord.engine.parts import Relation, RunContext, ends_of
from mirrord.engine.progress import RunFiles
from mirrord.schedules.schedule import Schedule
from mirrord.system import steps
from tests.sim import mixture
from tests.sim.checks import Checks
from tests.sim.faults import Attempt, Crash, Faults
from tests.sim.link import Link, Trouble, Wire
from tests.sim.memory import MemoryDriver
from tests.sim.stream import Geometry
from tests.sim.volume import Disk
from tests.sim.workload import KINDS, Owner, Writer
from tests.sim.world import Sim, Worker

#: In a fleet of more mirrors than that each one crashes the service more seldom.
_FEW = 60
_OWNERS_EVERY_S = 2700.0
_ON_A_DISK = 15


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
    caps: tuple[int, int, int] = (16, 16, 4)
    beat_s: float = 10.0
    look_every_s: float = 600.0
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
    schedule: Schedule | None
    filesystem: str
    link: Link
    attempts: int = 0


class Fleet:
    """Mirrors, their volumes, their users and their troubles. A context manager."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.sim = Sim()
        self.outcomes: Counter[str] = Counter()
        self.faults_met: Counter[str] = Counter()
        self._folder = folder
        self._log = hashlib.sha256()
        self._definitions = Definitions(folder)
        self._schedules = Schedules(folder / "schedules.d")
        self._catalogues: dict[int, Catalogue] = {}

    def __enter__(self) -> Self:
        """Make all of it."""
        plan, sim = self.plan, self.sim.__enter__()
        #: For those who only look; the verbs have connections of their own.
        self.book = Catalogue(self._folder / "catalogue.sqlite")
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
            Owner(sim, MemoryDriver(self.disk, node.definition.source.location), _OWNERS_EVERY_S)
            for node in self.nodes
            if node.definition.snapshots
        ]
        self.faults = Faults(
            sim,
            self.disk,
            [node.definition.destination.location for node in self.nodes],
            seed=plan.seed,
            rate=plan.fault_rate,
            until_s=plan.end_s * plan.faulty,
            crashes=min(1.0, (_FEW / plan.mirrors) ** 1.5),
        )
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
        self.book.close()
        steps.observe(None)

    # For schedulers

    def mirror(self, node: Node, watcher: Watcher | None = None) -> Mirror:
        """The mirror as a process would have it that begins now."""
        definition = node.definition

        def opened(endpoint: Endpoint) -> MemoryDriver:
            return MemoryDriver(self.disk, endpoint.location, node.link)

        return Mirror(
            Relation(definition, self._definitions, self.catalogue(), "c0ffee@sim"),
            ends_of(definition, opened),
            RunContext(RunFiles(self._folder, definition.name), watcher or Silent()),
        )

    def catalogue(self) -> Catalogue:
        """The catalogue, as the thread of this job has it open; in the loop: `book`."""
        worker = self.sim.current
        if worker is None:
            return self.book
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
        fresh = self.mirror(node).row().state is State.UNINITIALIZED
        try:
            return self.perform(node, "initialize" if fresh else "update").status
        except MirrordError as error:
            return error.code
        except Crash:
            return "crash"

    def perform(
        self,
        node: Node,
        verb: str,
        watcher: Watcher | None = None,
        *,
        begun: Callable[[Attempt], object] = lambda _attempt: None,
    ) -> Result:
        """One run of a verb with its faults and checks. Raises what it raises, and `Crash`.

        begun: is told what shall happen to it.
        """
        worker = self.sim.current
        assert worker is not None, "a verb runs in a job"
        node.attempts += 1
        attempt = self.faults.draw(node.definition.name, node.attempts)
        if verb != "update":
            attempt.since_s = 0.0  # what goes on from a checkpoint shows what it began with
        worker.context = attempt
        begun(attempt)
        node.link.begin(attempt.trouble)
        if attempt.abort_after_s:
            run = RunFiles(self._folder, node.definition.name)
            self.sim.at(self.sim.now_s + attempt.abort_after_s, run.request_abort)
        result: Result | None = None
        outcome = "crash"
        try:
            result = self._verb(node, verb, watcher)
            outcome = result.status
            return result
        except MirrordError as error:
            outcome = error.code
            raise
        finally:
            worker.context = None
            if outcome == "crash":
                self._let_go(worker)
            self.outcomes[outcome] += 1
            self.faults_met[attempt.fault] += 1
            self.say(f"{node.definition.name} {outcome} {attempt.fault} {node.link.moved_bytes}")
            doubted = bool(result and result.data.get("prune_refused"))
            self.checks.after(node.definition, self.book, outcome, attempt.since_s, doubted=doubted)

    def recover(self, node: Node) -> None:
        """What a service does before all else with a mirror of which a verb was interrupted."""
        worker = self.sim.current
        assert worker is not None, "a recovery is a job"
        worker.context = Attempt(node.definition.name, 0.0)
        node.link.begin(Trouble())
        mirror = self.mirror(node)
        try:
            with mirror.hold(Verb.ABORT):
                recovery.recover(mirror)
        except Crash:
            self._let_go(worker)
            raise
        finally:
            worker.context = None

    def _verb(self, node: Node, verb: str, watcher: Watcher | None) -> Result:
        mirror = self.mirror(node, watcher)
        if verb == "prune":
            return prune.prune_now(mirror, dry_run=False, accept=True)
        return (update.initialize if verb == "initialize" else update.update)(mirror)

    def _let_go(self, worker: Worker) -> None:
        """All that the process had in its memory is gone."""
        known = self._catalogues.pop(worker.number, None)
        if known is not None:
            known.close()
        worker.at_end.clear()

    # The run

    def say(self, line: str) -> None:
        """Add to the log of what happened when; its digest tells runs apart."""
        self._log.update(f"{self.sim.now_s:.6f} {line}\n".encode())

    def digest(self) -> str:
        """Of all that happened until now."""
        return self._log.hexdigest()

    def still(self) -> None:
        """No user writes any more."""
        for writer in self.writers:
            writer.stopped = True
        for owner in self.owners:
            owner.stopped = True

    def _probe(self) -> None:
        """Views are right at any moment, also in the middle of transfers."""
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
            timing=mixture.draw(chance),
        )
        filesystem = f"disk{chance.randrange(self.plan.mirrors // _ON_A_DISK + 1)}"
        schedule = self._schedules.of(definition)
        return Node(definition, schedule, filesystem, Link(self.wire))
