"""Replicated user snapshots, which the owner deletes at any time: found by a fleet."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.faults import Attempt
from tests.sim.fleet import Fleet, Node, Plan
from tests.sim.link import Trouble
from tests.sim.memory import MemoryDriver
from tests.sim.place import scratch


class Case:
    """One mirror whose owner's snapshot is on its way."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.node: Node = fleet.nodes[0]
        self.node.definition = self.node.definition._replace(snapshots=("daily.*",))
        self.source = MemoryDriver(fleet.disk, "/source/0")
        assert fleet.attempt(self.node) == "done"
        self.write(100)
        self.own = self.source.own_snapshot("daily.1")
        self.write(100)

    def write(self, blocks: int) -> None:
        draw = self.fleet.disk.draw
        self.fleet.disk.volumes["/source/0"].write([(n + 1, draw()) for n in range(blocks)])

    def cut(self, after_bytes: int) -> str:
        """An attempt whose link is cut then (each of the two transfers has 400 KiB)."""
        attempt = Attempt(self.node.definition.name, 0, "cut", Trouble(after_bytes))
        draw = self.fleet.faults.draw
        self.fleet.faults.draw = lambda name, number: attempt  # type: ignore[method-assign]
        try:
            return self.fleet.attempt(self.node)
        finally:
            self.fleet.faults.draw = draw  # type: ignore[method-assign]

    def resumed(self) -> int:
        rows = self.fleet.catalogue().transfers(self.node.definition.id, limit=9)
        return sum(row.resumed_bytes for row in rows)


def run(work: Callable[[Case], None]) -> None:
    with scratch() as folder, Fleet(Plan(1, mirrors=1, fault_rate=0), folder) as fleet:
        fleet.writers[0].stopped = True
        fleet.sim.spawn(lambda: work(Case(fleet)))
        fleet.sim.run(100_000)


def test_the_transfer_of_an_own_snapshot_goes_on_from_its_checkpoint() -> None:
    def work(case: Case) -> None:
        assert case.cut(300 << 10) == "transfer"
        assert case.fleet.attempt(case.node) == "done"
        assert case.resumed() > 0
        case.fleet.checks.in_step(case.node.definition)
        there = MemoryDriver(case.fleet.disk, "/destination/0").snapshots()
        assert case.own.guid in {snapshot.guid for snapshot in there}

    run(work)


def test_a_checkpoint_whose_base_its_owner_deleted_is_given_up() -> None:
    """It could never go on, and each update failed on it: 'diverged', until a hard abort."""

    def work(case: Case) -> None:
        assert case.cut(700 << 10) == "transfer", "the second of the two, based on the first"
        case.source.delete_own(case.own.guid)
        assert case.fleet.attempt(case.node) == "done"
        case.fleet.checks.in_step(case.node.definition)

    run(work)


def test_an_own_snapshot_that_vanishes_on_the_way_is_no_divergence() -> None:
    def work(case: Case) -> None:
        take = MemoryDriver.delta

        def vanish(driver: MemoryDriver, base: str | None, incremental: str) -> object:
            if base == case.own.guid:
                case.source.delete_own(case.own.guid)
            return take(driver, base, incremental)

        MemoryDriver.delta = vanish  # type: ignore[assignment,method-assign]
        try:
            assert case.fleet.attempt(case.node) == "transfer"
        finally:
            MemoryDriver.delta = take  # type: ignore[method-assign]
        assert case.fleet.attempt(case.node) == "done"
        case.fleet.checks.in_step(case.node.definition)

    run(work)
