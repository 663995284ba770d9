"""Mirrors that different hosts know leave each other's bases: what each needs is pinned there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.core.errors import Refused
from mirrord.drivers.contract import Driver
from mirrord.system.paths import Paths
from tests.contract import lab_block
from tests.contract.lab import Lab
from tests.crash.faults import EACH, FAULTS, Crash, broken_at, points
from tests.support.places import beside, driver_at
from tests.support.snapshots import delete_by_force
from tests.support.verbs import Service
from tests.support.world import NAME, World

pytestmark = pytest.mark.in_process
ONE: dict[str, Any] = {"keep_source": 1, "keep_destination": 1}


class Elsewhere:
    """Another host with a catalogue of its own, and its service."""

    def __init__(self, home: Path) -> None:
        self.service = Service(Paths(home / "etc", home / "state", home / "run"))


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Service]:
    made = Elsewhere(tmp_path / "other").service
    yield made
    made.close()


@pytest.fixture
def third(tmp_path: Path) -> Iterator[Service]:
    made = Elsewhere(tmp_path / "third").service
    yield made
    made.close()


def guids(driver: Driver) -> set[str]:
    return {one.guid for one in driver.snapshots() if one.intact}


def identity(service: Service, name: str) -> str:
    return str(service.status(name)[0].reading.id)


def advance(world: World, lab: Lab, seed: int) -> None:
    lab.change(lab.source(), seed)
    assert world.service.update(NAME).status == "done"


def pinned(driver: Driver, mirror_id: str) -> set[str]:
    return {guid for guid, ids in driver.pins().items() if mirror_id in ids}


def test_nothing_is_deleted_before_both_ends_have_their_pins(
    world: World, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remote end deletes while the source is still at work."""
    world.initialized(**ONE)
    mirror_id, seen = identity(world.service, NAME), []
    begin = Driver.begin_delete

    def noted(driver: Driver, guid: str) -> Any:
        newest = lab.destination().facts().shown
        seen.append([newest in pinned(end, mirror_id) for end in (lab.source(), lab.destination())])
        return begin(driver, guid)

    monkeypatch.setattr(type(lab.destination()), "begin_delete", noted, raising=False)
    advance(world, lab, 1)
    advance(world, lab, 2)
    assert len(seen) >= 4 and all(map(all, seen)), seen


# Two catalogues


def test_two_hosts_mirror_one_source_in_turns(world: World, lab: Lab, other: Service) -> None:
    world.initialized(**ONE)
    place = beside(lab.destination(), "second")
    other.create("second", str(lab.source()), place, **ONE)
    other.initialize("second")
    for seed in range(8):
        lab.change(lab.source(), seed)
        for service, name in ((world.service, NAME), (other, "second"))[:: 1 if seed % 2 else -1]:
            for _ in range(1 + seed % 3 // 2):
                service.update(name)
            lab.change(lab.source(), 100 + seed)
        for driver in (lab.destination(), driver_at(lab, place)):
            assert driver.facts().shown in guids(lab.source())
    assert len(lab.source().snapshots()) == 2
    for service, name in ((world.service, NAME), (other, "second")):
        transfer = service.history(name, limit=1).transfers[0]
        assert transfer.base and service.status(name)[0].healthy


def test_a_mirror_that_changed_to_the_source_leaves_the_bases_of_the_one_there(
    world: World, lab: Lab, other: Service
) -> None:
    """It carried that one's snapshots, so it counts them as its own."""
    world.initialized(**ONE)
    place = beside(lab.destination(), "far")
    other.create("far", str(lab.destination()), place, **ONE)
    other.initialize("far")
    other.change_source("far", str(lab.source()))
    base = lab.destination().facts().shown
    for seed in range(3):
        lab.change(lab.source(), seed)
        assert other.update("far").data["transfers"] == 1
        assert base in guids(lab.source()), "the base of the other host's mirror"
    assert world.service.update(NAME).status == "done" and world.in_step()
    for seed in range(3, 6):
        advance(world, lab, seed)
    assert base not in guids(lab.source()), "it is needed no more"
    lab.change(lab.source(), 9)
    assert other.update("far").status == "done"
    assert lab.content(driver_at(lab, place)) == lab.content(lab.source())
    assert len(lab.source().snapshots()) <= 3


def test_the_last_of_a_cascade_goes_on_from_the_first(
    world: World, lab: Lab, other: Service
) -> None:
    world.initialized(**ONE)
    place = beside(lab.destination(), "far")
    other.create("far", str(lab.destination()), place, **ONE)
    other.initialize("far")
    far = driver_at(lab, place)
    base = far.facts().shown
    for seed in range(4):
        advance(world, lab, seed)
        for driver in (lab.source(), lab.destination()):
            assert base in guids(driver), "the base of the other host's mirror"
    other.update("far")
    assert other.update("far").status == "unchanged"  # it looks what is still needed
    advance(world, lab, 5)
    assert base not in guids(lab.source()) | guids(lab.destination()), "it is needed no more"
    advance(world, lab, 6)
    other.change_source("far", str(lab.source()))
    lab.change(lab.source(), 7)
    assert other.update("far").data["transfers"] == 1
    assert other.history("far", limit=1).transfers[0].base, "it was incremental"
    assert lab.content(far) == lab.content(lab.source())


def test_pins_are_passed_on_up_a_long_cascade(
    world: World, lab: Lab, other: Service, third: Service
) -> None:
    """A -> B -> C -> D by three hosts: what D needs stays at A, of which only B is known there."""
    world.initialized(**ONE)
    middle = beside(lab.destination(), "middle")
    last = beside(lab.destination(), "last")
    other.create("second", str(lab.destination()), middle, **ONE)
    other.initialize("second")
    third.create("third", middle, last, **ONE)
    third.initialize("third")
    base = driver_at(lab, last).facts().shown
    other.update("second")  # it sees what is pinned below it
    for seed in range(4):
        advance(world, lab, seed)
        other.update("second")
    assert base in guids(lab.source())
    third.change_source("third", str(lab.source()))
    assert third.update("third").data["transfers"] == 1
    assert lab.content(driver_at(lab, last)) == lab.content(lab.source())


# What is pinned, and when


def test_the_newest_two_are_pinned_at_both_ends(world: World, lab: Lab) -> None:
    world.initialized(keep_source=3, keep_destination=3)
    mirror_id = identity(world.service, NAME)
    for seed in range(5):
        advance(world, lab, seed)
        newest = [one.guid for one in lab.source().snapshots()][-2:]
        for driver in (lab.source(), lab.destination()):
            assert pinned(driver, mirror_id) == set(newest)
            assert len(driver.snapshots()) == min(3, seed + 2)
    # What a crash, or an older mirrord, left unpinned is pinned by the next update.
    for driver in (lab.source(), lab.destination()):
        driver.pin(mirror_id, [])
    assert world.service.update(NAME).status == "unchanged"
    for driver in (lab.source(), lab.destination()):
        assert pinned(driver, mirror_id) == set(newest)


@pytest.mark.parametrize("fault", EACH)
def test_at_no_step_of_an_update_the_pins_are_too_few(world: World, lab: Lab, fault: str) -> None:
    world.initialized(**ONE)
    mirror_id = identity(world.service, NAME)
    lab.change(lab.source(), 99)
    for seed, point in enumerate(points(lambda: world.service.update(NAME))):
        lab.change(lab.source(), seed)
        try:
            with broken_at(point, FAULTS[fault]):
                world.service.update(NAME)
        except (Crash, Exception):
            pass
        both = pinned(lab.source(), mirror_id) & pinned(lab.destination(), mirror_id)
        assert both & guids(lab.source()) & guids(lab.destination()), point
        world.again().update(NAME)
        newest = lab.destination().facts().shown
        for driver in (lab.source(), lab.destination()):
            assert newest in pinned(driver, mirror_id), point
        world.service.update(NAME)
        for driver in (lab.source(), lab.destination()):
            assert pinned(driver, mirror_id) == {newest}, point


def test_the_bases_stay_pinned_through_every_switch(world: World, lab: Lab) -> None:
    world.initialized(keep_source=2, keep_destination=2)
    mirror_id = identity(world.service, NAME)

    def holds() -> None:
        shown = world.driver("destination").facts().shown
        for driver in (lab.source(), lab.destination()):
            assert shown in pinned(driver, mirror_id)

    advance(world, lab, 1)
    world.service.break_off(NAME)
    lab.change(lab.destination(), 2)
    world.service.resync(NAME, yes=True, force=True)
    holds()
    world.service.reverse(NAME, yes=True, force=True)
    holds()
    lab.change(lab.destination(), 3)
    world.service.update(NAME)
    holds()
    world.service.reverse(NAME, yes=True, force=True)
    holds()
    lab.change(lab.source(), 4)
    world.service.restore_all(NAME, snapshot=None, yes=True, force=True)
    holds()


# The end of a mirror


@pytest.mark.parametrize("verb", ["release", "delete"])
def test_a_mirror_that_ends_has_pinned_nothing(world: World, lab: Lab, verb: str) -> None:
    world.initialized()
    mirror_id = identity(world.service, NAME)
    advance(world, lab, 1)
    world.service.break_off(NAME)
    if verb == "release":
        world.service.release(NAME)
    else:
        world.service.delete(NAME, yes=False, keep_snapshots=True)
    for driver in (lab.source(), lab.destination()):
        assert pinned(driver, mirror_id) == set()


def test_a_mirror_that_ends_leaves_no_file_of_pins_whose_writing_was_interrupted(
    tmp_path: Path,
) -> None:
    with lab_block.lab(tmp_path) as lab:
        world = World(lab, tmp_path / "home").initialized()
        lab.change(lab.source(), 1)
        with broken_at(("BLOCK:PIN:RENAME", 1), FAULTS["crash"]), pytest.raises(Crash):
            world.service.update(NAME)
        world.again().delete(NAME, yes=True, keep_snapshots=False)
        world.close()
        for end in ("source", "destination"):
            assert list((tmp_path / end / "pins").iterdir()) == []


def test_what_a_lost_mirror_has_pinned_is_named_and_can_be_unpinned(
    world: World, lab: Lab, other: Service, tmp_path: Path
) -> None:
    world.initialized(**ONE)
    place = beside(lab.destination(), "far")
    other.create("far", str(lab.destination()), place, **ONE)
    other.initialize("far")
    lost, base = identity(other, "far"), driver_at(lab, place).facts().shown
    other.close()
    for seed in range(3):
        advance(world, lab, seed)
    planned = world.service.prune(NAME, dry_run=True, accept=False)
    assert planned.text.count(f"pinned by mirror {lost}") == 2
    with pytest.raises(Refused, match="still defined"):
        world.service.unpin(NAME, identity(world.service, NAME))
    done = world.service.unpin(NAME, lost)
    assert done.status == "done" and "1 snapshot unpinned" in done.text
    world.service.prune(NAME, dry_run=False, accept=False)
    assert base not in guids(lab.source()) | guids(lab.destination())
    assert lost not in world.service.prune(NAME, dry_run=True, accept=False).text


def test_an_end_that_is_not_there_is_named_when_its_pins_cannot_be_removed(
    world: World, lab: Lab
) -> None:
    world.initialized()
    mirror_id = identity(world.service, NAME)
    world.service.break_off(NAME)
    place = Path(lab.source().location)
    away = place.rename(place.with_name("away"))
    done = world.service.delete(NAME, yes=True, keep_snapshots=True)
    assert f"--unpin {mirror_id}" in done.text and str(place) in done.text
    away.rename(place)
    assert pinned(lab.source(), mirror_id) != set()
    for one in lab.source().snapshots():
        delete_by_force(lab.source(), one.guid)


@pytest.mark.parametrize("option", ["--dry-run", "--accept"])
def test_unpin_cannot_be_combined_with_other_options(world: World, lab: Lab, option: str) -> None:
    world.initialized()
    lab.source().pin("0a1b2c3d", [one.guid for one in lab.source().snapshots()])
    refused = world.cli("prune", NAME, "--unpin", "0a1b2c3d", option)
    assert refused.returncode == 2 and "cannot be combined" in refused.stderr
    assert pinned(lab.source(), "0a1b2c3d")
