"""A -> B -> C: what B shows goes on to C, and C goes on from A when B is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.core.errors import Refused
from mirrord.core.model import SnapshotKind
from mirrord.drivers.contract import Driver
from tests.contract.lab import Lab
from tests.support.places import beside, driver_at
from tests.support.verbs import Service
from tests.support.world import NAME, World


@pytest.fixture
def last(world: World, lab: Lab) -> Driver:
    """The place of C; the mirror 'far' from B to it is defined."""
    world.initialized()
    place = beside(lab.destination(), "far")
    world.service.create("far", str(lab.destination()), place)
    world.service.initialize("far")
    return driver_at(lab, place)


def test_a_cascade_replicates_what_its_middle_shows(world: World, lab: Lab, last: Driver) -> None:
    assert lab.content(last) == lab.content(lab.destination())
    assert world.service.update("far").status == "unchanged"
    for seed in range(6):
        lab.change(lab.source(), seed)
        world.service.update(NAME)
        if seed % 2:
            result = world.service.update("far")
            assert result.status == "done" and result.data["transfers"] == 1
            assert lab.content(last) == lab.content(lab.source())
    # Identity is kept on the way: all three have the very same snapshot.
    assert last.facts().shown == lab.destination().facts().shown
    assert last.facts().shown in {s.guid for s in lab.source().snapshots()}


def test_the_base_of_the_last_stays_at_both_others(world: World, lab: Lab, last: Driver) -> None:
    base = last.facts().shown
    for seed in range(14):  # more than keep_source, and than keep_destination
        lab.change(lab.source(), seed)
        world.service.update(NAME)
    for driver in (lab.source(), lab.destination()):
        assert base in {s.guid for s in driver.snapshots() if s.intact}
    result = world.service.update("far")
    assert result.status == "done"
    assert lab.content(last) == lab.content(lab.source())
    world.service.update(NAME)
    lab.change(lab.source(), 99)
    for name in (NAME, "far", NAME, "far"):
        world.service.update(name)
    assert base not in {s.guid for s in lab.source().snapshots()}, "it is needed no more"
    assert len(lab.source().snapshots()) <= 4


def test_the_last_keeps_what_its_definition_says(world: World, lab: Lab) -> None:
    """It is more than what its mirror would keep at the middle, which another mirror prunes."""
    world.initialized()
    place = beside(lab.destination(), "far")
    world.service.create("far", str(lab.destination()), place, keep_source=1, keep_destination=4)
    world.service.initialize("far")
    for seed in range(8):
        lab.change(lab.source(), seed)
        for name in (NAME, "far"):
            world.service.update(name)
    assert 2 <= len(driver_at(lab, place).snapshots()) <= 4
    assert lab.destination().facts().shown == driver_at(lab, place).facts().shown


def test_the_last_goes_on_from_the_first_when_the_middle_is_lost(
    world: World, lab: Lab, last: Driver
) -> None:
    for seed in range(4):
        lab.change(lab.source(), seed)
        world.service.update(NAME)
    result = world.service.change_source("far", str(lab.source()))
    assert str(lab.source()) in result.text
    lab.change(lab.source(), 50)
    done = world.service.update("far")
    assert done.status == "done" and done.data["transfers"] == 1
    last_transfer = world.service.history("far", limit=1).transfers[0]
    assert last_transfer.base, "it was incremental"
    assert lab.content(last) == lab.content(lab.source())
    assert world.service.status("far")[0].healthy


@pytest.mark.parametrize("before", ["break", "change-source"])
def test_the_mirror_to_the_middle_is_deleted_once_the_last_does_not_need_it(
    world: World, lab: Lab, last: Driver, before: str
) -> None:
    with pytest.raises(Refused, match="the source of another mirror"):
        world.service.delete(NAME, yes=True, keep_snapshots=False)
    assert world.service.update("far").status == "unchanged"
    if before == "break":
        world.service.break_off(NAME)
        source = lab.destination()
    else:
        world.service.change_source("far", str(lab.source()))
        source = lab.source()
    world.service.delete(NAME, yes=True, keep_snapshots=False)
    lab.change(source, 7)
    assert world.service.update("far").status == "done"
    assert world.service.history("far", limit=1).transfers[0].base, "it was incremental"
    assert lab.content(last) == lab.content(source)


@pytest.mark.parametrize("switch", ["reverse", "restore"])
def test_a_mirror_that_is_behind_continues_from_a_volume_that_began_as_a_later_snapshot(
    world: World, lab: Lab, switch: str
) -> None:
    """That snapshot alone shows that the volume descends from the other mirror's base."""
    world.initialized(keep_source=1, keep_destination=1)
    source = lab.destination() if switch == "reverse" else lab.source()
    place = beside(lab.destination(), "far")
    world.service.create("far", str(source), place, keep_source=1)
    world.service.initialize("far")
    lab.change(lab.source(), 1)
    world.service.update(NAME)
    if switch == "reverse":
        world.service.reverse(NAME, yes=True)
    else:
        lab.change(lab.source(), 2)
        world.service.restore_all(NAME, snapshot=None, yes=True)
    for seed in (3, 4, 5):
        lab.change(source, seed)
        world.service.update(NAME)
    assert world.service.update("far").status == "done"
    assert world.service.history("far", limit=1).transfers[0].base, "it was incremental"
    assert lab.content(driver_at(lab, place)) == lab.content(source)
    for seed in (6, 7, 8):
        lab.change(source, seed)
        for name in (NAME, "far"):
            world.service.update(name)
    kept = [one for one in source.snapshots() if one.kind is not SnapshotKind.DIVERGED]
    assert len(kept) <= 3, "no more is kept then"


@pytest.mark.parametrize("verb", ["delete", "release"])
def test_what_shows_the_descent_to_a_mirror_that_is_behind_outlives_the_other_mirror(
    world: World, lab: Lab, verb: str
) -> None:
    world.initialized(keep_source=1, keep_destination=1)
    source, place = lab.source(), beside(lab.destination(), "far")
    world.service.create("far", str(source), place, keep_source=1)
    world.service.initialize("far")
    lab.change(source, 1)
    world.service.update(NAME)
    lab.change(source, 2)
    world.service.restore_all(NAME, snapshot=None, yes=True)
    world.service.break_off(NAME)
    if verb == "delete":
        world.service.delete(NAME, yes=True, keep_snapshots=False)
    else:
        world.service.release(NAME)
    lab.change(source, 3)
    assert world.service.update("far").status == "done"
    assert world.service.history("far", limit=1).transfers[0].base, "it was incremental"
    assert lab.content(driver_at(lab, place)) == lab.content(source)
    for seed in (4, 5, 6):
        lab.change(source, seed)
        world.service.update("far")
    kept = [one for one in source.snapshots() if one.kind is not SnapshotKind.DIVERGED]
    assert len(kept) <= 2, "no more is kept then"


def test_a_scheduled_update_is_from_the_source_that_it_has_now(
    world: World, lab: Lab, last: Driver
) -> None:
    """It may begin before the service has read that the source was changed."""
    scheduled = Service(world.paths)
    before = scheduled.definition("far")
    world.service.change_source("far", str(lab.source()))
    lab.change(lab.source(), 51)
    assert scheduled.update_known(before).status == "done"
    scheduled.close()
    assert lab.content(last) == lab.content(lab.source()) != lab.content(lab.destination())


def test_a_source_without_the_base_is_refused(world: World, lab: Lab, last: Driver) -> None:
    before = (world.paths.mirrors / "far.toml").read_text()
    with pytest.raises(
        Refused, match=r"cannot continue from that source|not there|not a volume|no volume"
    ):
        world.service.change_source("far", str(lab.foreign()))
    assert (world.paths.mirrors / "far.toml").read_text() == before
    [far] = world.service.status("far")
    assert not far.problems, "the mirror is as it was"


def test_the_middle_of_a_cascade_cannot_be_reversed_or_rolled_back(
    world: World, lab: Lab, last: Driver
) -> None:
    with pytest.raises(Refused, match="cannot become a destination"):
        world.service.reverse("far", yes=True)
    before = lab.content(lab.destination())
    with pytest.raises(Refused, match="cannot be rolled back"):
        world.service.restore_all("far", snapshot=None, yes=True)
    facts = lab.destination().facts()
    base = next(one.guid for one in lab.destination().snapshots())
    with pytest.raises(Refused, match="belongs to another mirror"):
        lab.destination().rollback(base, mirror_id="far", keep_as="diverged.x")
    assert lab.destination().facts().mirror_id == facts.mirror_id
    assert lab.content(lab.destination()) == before
    assert world.service.update(NAME).status in ("done", "unchanged")
    world.service.break_off("far")
    world.service.delete("far", yes=True, keep_snapshots=False)
    assert lab.destination().facts().shown in {s.guid for s in lab.destination().snapshots()}
    lab.change(lab.source(), 3)
    assert world.service.update(NAME).status == "done"


@pytest.mark.in_process
def test_a_mirror_to_the_source_that_never_began_is_only_deleted(world: World, lab: Lab) -> None:
    world.initialized()
    place = beside(lab.destination(), "other")
    world.service.create("other", str(lab.destination()), place)
    file = world.service.definitions.file("other")
    ends = str(lab.destination()), place, str(lab.source())
    text = file.read_text().replace(ends[1], ends[2]).replace(ends[0], place)
    file.write_text(text)
    with pytest.raises(Refused, match="cannot become a destination") as caught:
        world.service.reverse(NAME, yes=True)
    assert "mirrord break" not in caught.value.hint
    world.service.delete("other", yes=False, keep_snapshots=False)
    assert world.service.reverse(NAME, yes=True).status == "done"


@pytest.mark.in_process
def test_the_last_becomes_the_source_of_the_middle_once_the_first_mirror_is_deleted(
    world: World, lab: Lab, last: Driver
) -> None:
    for first in (f"'mirrord break {NAME}', then ", ""):
        with pytest.raises(Refused, match=f"it is the destination of '{NAME}'") as refused:
            world.service.reverse("far", yes=True)
        assert f"any more: {first}'mirrord delete {NAME}'" in refused.value.hint
        world.service.break_off(NAME)
    world.service.delete(NAME, yes=False, keep_snapshots=False)
    lab.change(lab.destination(), 1)
    content = lab.content(lab.destination())
    assert world.service.reverse("far", yes=True).status == "done"
    assert lab.content(last) == lab.content(lab.destination()) == content


@pytest.mark.in_process
def test_a_source_that_is_fed_by_the_destination_is_refused(
    world: World, lab: Lab, last: Driver
) -> None:
    with pytest.raises(Refused, match="gets its content from the destination of this mirror"):
        world.service.change_source(NAME, str(last))
    lab.change(lab.source(), 1)
    for name in (NAME, "far"):
        world.service.update(name)
    assert lab.content(last) == lab.content(lab.source())


@pytest.mark.in_process
def test_the_writable_destination_under_another_name_is_no_source(
    world: World, lab: Lab, tmp_path: Path
) -> None:
    world.initialized()
    world.service.break_off(NAME)
    place = Path(lab.destination().location)
    (tmp_path / "other").symlink_to(place.parent)
    with pytest.raises(Refused, match="are the same volume"):
        world.service.change_source(NAME, f"{lab.kind}:{tmp_path}/other/{place.name}")


@pytest.mark.in_process
def test_the_middle_of_which_another_host_deleted_the_mirror_is_made_a_volume_again(
    world: World, lab: Lab, tmp_path: Path
) -> None:
    """That host does not know who replicates its destination."""
    world.initialized()
    place, other = beside(lab.destination(), "far"), World(lab, tmp_path / "other")
    other.service.create("far", str(lab.destination()), place)
    other.service.initialize("far")
    world.service.delete(NAME, yes=True, keep_snapshots=False)
    if lab.kind == "btrfs":  # (a block volume continues to show what it has)
        with pytest.raises(Refused) as refused:
            other.service.update("far")
        assert "'mirrord restore far --all'" in refused.value.hint
    other.service.restore_all("far", snapshot=None, yes=True)
    lab.change(lab.destination(), 1)
    assert other.service.update("far").status == "done"
    assert lab.content(driver_at(lab, place)) == lab.content(lab.destination())
    other.clean_up()


@pytest.mark.in_process
def test_a_broken_off_middle_that_was_restored_is_known_without_the_catalogue(
    world: World, lab: Lab, last: Driver
) -> None:
    """It has no snapshot that is named after its own mirror."""
    world.service.create("end", str(last), beside(last, "end"))
    world.service.initialize("end")
    world.service.break_off("far")
    lab.change(last, 1)
    world.service.restore_all("end", snapshot=None, yes=True)
    world.forget_catalogue()
    assert world.service.resync("far", yes=True).status == "done"
    lab.change(lab.source(), 2)
    for name in (NAME, "far", "end"):
        world.service.update(name)
    assert lab.content(driver_at(lab, beside(last, "end"))) == lab.content(lab.source())


def test_a_cascade_continues_from_an_older_snapshot_of_its_middle(
    world: World, lab: Lab, last: Driver
) -> None:
    older = lab.destination().facts().shown
    world.service.break_off(NAME)
    lab.change(lab.destination(), 1)
    world.service.update("far")
    world.service.resync(NAME, yes=True)
    assert lab.destination().facts().shown == older != last.facts().shown
    with pytest.raises(Refused, match="rolled back to an older") as refused:
        world.service.update("far")
    assert "'mirrord resync far'" in refused.value.hint
    world.service.resync("far", yes=True)
    assert lab.content(last) == lab.content(lab.source())


def test_what_the_last_took_of_the_middle_while_that_was_live_is_pruned(
    world: World, lab: Lab, last: Driver
) -> None:
    middle = lab.destination()
    for seed in range(2):
        world.service.break_off(NAME)
        lab.change(middle, 100 + seed)
        world.service.update("far")
        taken = middle.snapshots()[-1].name
        world.service.resync(NAME, yes=True)
        for one in middle.snapshots():
            if one.kind is SnapshotKind.DIVERGED:
                middle.delete_snapshot(one.guid)
        for later in range(3):
            lab.change(lab.source(), 10 * seed + later)
            for name in (NAME, "far"):
                world.service.update(name)
        assert taken not in {one.name for one in middle.snapshots()}
        assert lab.content(last) == lab.content(lab.source())
