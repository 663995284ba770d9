"""Fleets in the simulated world, and single mirrors that the simulation found trouble with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import TransferFailed
from mirrord.engine import prune, update
from mirrord.system import steps
from tests.sim.faults import Crash
from tests.sim.fleet import Fleet, Plan
from tests.sim.link import Trouble
from tests.sim.place import scratch
from tests.sim.run import simulate


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch() as made:
        yield made


def alone(folder: Path, work: Callable[[Fleet], None]) -> None:
    """Work on a fleet of one mirror, without faults but those that the work makes."""
    with Fleet(Plan(1, mirrors=1, fault_rate=0), folder) as fleet:
        fleet.writers[0].stopped = True
        fleet.sim.spawn(lambda: work(fleet))
        fleet.sim.run(100_000)


def test_a_fleet_survives_hours_of_trouble_and_is_in_step_afterwards(folder: Path) -> None:
    report = simulate(Plan(seed=1, mirrors=60, hours=6), folder)
    assert report.attempts > 400
    assert {"done", "unchanged", "crash", "transfer"} <= report.outcomes.keys()
    assert {"crash", "cut", "damage", "stall", "slow"} <= report.faults.keys()
    assert {"failure", "lag"} <= report.alarms.keys()
    assert report.crashes > 20


def test_without_trouble_each_time_comes_and_no_copy_is_too_old(folder: Path) -> None:
    report = simulate(Plan(seed=2, mirrors=60, hours=6, fault_rate=0), folder)
    assert report.outcomes.keys() == {"done", "unchanged"}
    assert report.slots > 500
    assert not report.alarms


def test_few_turns_for_many_mirrors_let_each_have_its_own(folder: Path) -> None:
    """All at once at half past eleven, on one slow link: who waits gets its turn."""
    plan = Plan(seed=3, mirrors=80, hours=4, fault_rate=0, caps=(2, 2, 1), rate_bps=1e6)
    report = simulate(plan, folder)
    assert report.waits > 50
    assert report.longest_wait_s > 1


def test_one_seed_is_one_run(tmp_path: Path) -> None:
    digests = []
    for number, seed in enumerate((5, 5, 6)):
        place = tmp_path / str(number)
        place.mkdir()
        digests.append(simulate(Plan(seed, mirrors=12, hours=5), place).digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_transfer_that_failed_leaves_no_record_of_its_snapshot(folder: Path) -> None:
    """Found by a fleet: the record stayed until the next update that had something to carry."""

    def work(fleet: Fleet) -> None:
        [node] = fleet.nodes
        assert fleet.attempt(node) == "done"
        known = fleet.catalogue().snapshots(node.definition.id)
        source = fleet.disk.volumes[node.definition.source.location]
        source.write([(1, fleet.disk.draw())])
        mirror = fleet.mirror(node)
        node.link.begin(Trouble(cut_after_bytes=1))
        with pytest.raises(TransferFailed):
            update.update(mirror)
        assert len(source.entries) == 1
        assert fleet.catalogue().snapshots(node.definition.id) == known

    alone(folder, work)


def test_a_crash_before_pruning_is_mended_also_when_nothing_changes_any_more(folder: Path) -> None:
    """Found by a fleet: with room at the source, the destination kept one too many for ever."""

    def work(fleet: Fleet) -> None:
        [node] = fleet.nodes
        node.definition = node.definition._replace(keep_source=3, keep_destination=1)
        assert fleet.attempt(node) == "done"
        fleet.disk.volumes["/source/0"].write([(1, fleet.disk.draw())])

        def crash(label: str) -> None:
            if label == "MEMORY:SNAPSHOT:DELETE":
                raise Crash(label)

        steps.observe(crash)
        with pytest.raises(Crash):
            update.update(fleet.mirror(node))
        steps.observe(None)
        assert len(fleet.disk.volumes["/destination/0"].entries) == 2
        assert fleet.attempt(node) == "unchanged"
        assert len(fleet.disk.volumes["/destination/0"].entries) == 1

    alone(folder, work)


def test_an_abort_that_comes_too_late_does_not_stop_pruning(folder: Path) -> None:
    """Found by a fleet: the update was done, and a warning said that pruning had been aborted."""

    def work(fleet: Fleet) -> None:
        [node] = fleet.nodes
        node.definition = node.definition._replace(keep_source=1)
        assert fleet.attempt(node) == "done"
        source = fleet.disk.volumes["/source/0"]
        source.write([(1, fleet.disk.draw())])
        mirror = fleet.mirror(node)

        def abort(label: str) -> None:
            if label == "MEMORY:COMMIT:SHOW":
                mirror.run.request_abort()

        steps.observe(abort)
        assert update.update(mirror).status == "done"
        steps.observe(None)
        assert len(source.entries) == 1
        assert fleet.catalogue().events(mirror.id, limit=9) == []

    alone(folder, work)


def crowded(fleet: Fleet) -> None:
    """Crashes of a mirror before it prunes, so that too much is to go at once after them."""
    [node] = fleet.nodes
    node.definition = node.definition._replace(keep_source=1, keep_destination=1)
    assert fleet.attempt(node) == "done"

    def crash(label: str) -> None:
        if label == "MEMORY:SNAPSHOT:DELETE":
            raise Crash(label)

    steps.observe(crash)
    for _ in range(3):
        fleet.disk.volumes["/source/0"].write([(1, fleet.disk.draw())])
        with pytest.raises(Crash):
            update.update(fleet.mirror(node))
    steps.observe(None)
    fleet.disk.volumes["/source/0"].write([(1, fleet.disk.draw())])
    assert "prune_share" in update.update(fleet.mirror(node)).data["prune_refused"]


def test_pruning_that_is_refused_is_said_also_when_nothing_has_changed(folder: Path) -> None:
    """Found with the real scheduler: its alarm was cleared although nothing had been pruned."""

    def work(fleet: Fleet) -> None:
        crowded(fleet)
        result = update.update(fleet.mirror(fleet.nodes[0]))
        assert result.status == "unchanged"
        assert "prune_share" in result.data["prune_refused"]

    alone(folder, work)


def test_pruning_by_hand_forgets_what_it_deletes(folder: Path) -> None:
    """Found by a fleet: the records of what it had deleted stayed until the next update."""

    def work(fleet: Fleet) -> None:
        crowded(fleet)
        mirror = fleet.mirror(fleet.nodes[0])
        prune.prune_now(mirror, dry_run=False, accept=True)
        assert len(fleet.catalogue().snapshots(mirror.id)) == 1

    alone(folder, work)
