"""A verb is interrupted after the confirmation, and the volume is written to before recovery."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.errors import Diverged, MirrordError, Refused, Undecided
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.contract import Driver
from mirrord.system import steps
from tests.failover.volumes import lose, replace
from tests.support.places import driver_at
from tests.support.service import until
from tests.support.snapshots import delete_by_force
from tests.support.world import NAME, World

CONFIRMED = "ENGINE:SWITCH:CONFIRMED"


class Crash(BaseException):
    """Stands for the end of the process."""


def crash_at(world: World, label: str, work: Callable[[], object]) -> None:
    stopped_at(label, work)
    world.again()


def stopped_at(label: str, work: Callable[[], object]) -> None:
    """Work that a crash ends at a step."""

    def observer(seen: str) -> None:
        if seen == label:
            raise Crash(label)

    steps.observe(observer)
    try:
        with pytest.raises(Crash):
            work()
    finally:
        steps.observe(None)


def end(world: World, which: str) -> Driver:
    """The driver of an end as the definition names it now."""
    return driver_at(world.lab, world.status()[which])


def kept(world: World, driver: Driver) -> list[str]:
    """What the diverged snapshots at an end hold."""
    found = [one for one in driver.snapshots() if one.kind is SnapshotKind.DIVERGED]
    return [world.lab.snapshot_content(driver, one.guid) for one in found]


def begin_resync(world: World) -> tuple[str, Callable[[], object]]:
    world.service.break_off(NAME)
    return "destination", lambda: world.service.resync(NAME, yes=True)


def begin_restore(world: World) -> tuple[str, Callable[[], object]]:
    return "source", lambda: world.service.restore_all(NAME, snapshot=None, yes=True)


def begin_reverse(world: World) -> tuple[str, Callable[[], object]]:
    """A reverse of a mirror that is broken off: both ends are live."""
    world.service.break_off(NAME)
    world.lab.change(world.lab.destination(), 50)
    return "source", lambda: world.service.reverse(NAME, yes=True)


LOSING = {"resync": begin_resync, "restore": begin_restore}


@pytest.mark.on_machine
@pytest.mark.parametrize("verb", LOSING)
@pytest.mark.parametrize("way_on", ["resume-operation", "abort --hard"])
def test_later_work_stops_an_interrupted_verb(world: World, verb: str, way_on: str) -> None:
    world.initialized()
    losing, work = LOSING[verb](world)
    crash_at(world, CONFIRMED, work)
    driver = end(world, losing)
    world.lab.change(driver, 60)
    later = world.lab.content(driver)
    for attempt in (
        lambda: world.service.update(NAME),
        lambda: world.service.recover(NAME),  # what the daemon does when it starts
        lambda: world.service.abort(NAME, hard=False),
    ):
        with pytest.raises(Undecided, match="waits for a decision") as refused:
            attempt()
        assert "resume-operation" in refused.value.hint and "--hard" in refused.value.hint
        world.again()
        assert world.lab.content(driver) == later and driver.facts().role is Role.LIVE
    assert not world.status()["healthy"]
    if way_on == "abort --hard":
        world.service.abort(NAME, hard=True)
        assert world.lab.content(driver) == later and driver.facts().role is Role.LIVE
        assert kept(world, driver) == []
    else:
        asked = world.service.resume_operation(NAME, yes=False)
        assert asked.status == "confirmation-required" and world.lab.content(driver) == later
        done = world.service.resume_operation(NAME, yes=True)
        assert done.data["kept_as"] in done.text and kept(world, driver) == [later]
        world.service.update(NAME)
        assert world.in_step() and world.status()["healthy"]
    assert world.service.abort(NAME, hard=True).status == "already_idle"


@pytest.mark.on_machine
@pytest.mark.parametrize("verb", LOSING)
def test_without_later_work_the_next_command_finishes_it(world: World, verb: str) -> None:
    world.initialized()
    losing, work = LOSING[verb](world)
    world.lab.change(end(world, losing), 60)
    own = world.lab.content(end(world, losing))
    crash_at(world, CONFIRMED, work)
    world.service.update(NAME)
    assert world.in_step() and world.status()["state"] == "mirrored"
    assert kept(world, end(world, losing)) == [own]


@pytest.mark.on_machine
def test_a_planned_reverse_that_had_switched_nothing_is_given_up(world: World) -> None:
    world.initialized()
    crash_at(world, CONFIRMED, lambda: world.service.reverse(NAME, yes=True))
    driver = end(world, "source")
    world.lab.change(driver, 60)
    later = world.lab.content(driver)
    assert world.service.recover(NAME) == "reverse"
    assert world.lab.content(driver) == later and not driver.facts().frozen
    world.service.update(NAME)
    assert world.in_step() and world.status()["state"] == "mirrored"


@pytest.mark.on_machine
def test_work_at_both_ends_after_half_a_reverse_is_kept(world: World) -> None:
    """The destination was made live already; both ends are worked on."""
    world.initialized()
    _losing, work = begin_reverse(world)
    old_source, new_source = world.lab.source(), world.lab.destination()
    crash_at(world, "CATALOGUE:OPERATION:SWAPPED", work)
    world.lab.change(old_source, 60)
    world.lab.change(new_source, 61)
    contents = world.lab.content(old_source), world.lab.content(new_source)
    with pytest.raises(Undecided):
        world.service.update(NAME)
    world.again()
    assert contents == (world.lab.content(old_source), world.lab.content(new_source))
    world.service.resume_operation(NAME, yes=True)
    world.again().update(NAME)
    assert world.lab.content(new_source) == contents[1] == world.lab.content(old_source)
    assert kept(world, old_source) == [contents[0]]


@pytest.mark.on_machine
@pytest.mark.parametrize("way_on", ["resume-operation", "abort --hard"])
def test_work_at_both_ends_after_half_a_planned_reverse_is_kept(world: World, way_on: str) -> None:
    """The destination was made live, but that is not recorded yet."""
    world.initialized()
    world.lab.change(world.lab.source(), 59)
    crash_at(world, "CATALOGUE:OPERATION:PROMOTED", lambda: world.service.reverse(NAME, yes=True))
    old_source, new_source = world.lab.source(), world.lab.destination()
    until(lambda: not old_source.facts().frozen)  # the freeze ends with the process
    world.lab.change(old_source, 60)
    world.lab.change(new_source, 61)
    contents = world.lab.content(old_source), world.lab.content(new_source)
    with pytest.raises(Undecided):
        world.service.update(NAME)
    world.again()
    assert contents == (world.lab.content(old_source), world.lab.content(new_source))
    if way_on == "abort --hard":
        world.service.abort(NAME, hard=True)
        assert contents == (world.lab.content(old_source), world.lab.content(new_source))
        assert world.status()["state"] == "broken-off"
        return
    world.service.resume_operation(NAME, yes=True)
    world.again().update(NAME)
    assert world.lab.content(new_source) == contents[1] == world.lab.content(old_source)
    assert kept(world, old_source) == [contents[0]]


def test_the_same_command_again_finishes_a_reverse_and_does_not_turn_it_back(world: World) -> None:
    """It failed after the definition was swapped: its disk was full, say."""
    world.initialized()
    source, work = begin_reverse(world)
    before = world.status()[source]
    crash_at(world, "CATALOGUE:OPERATION:END", work)
    now = world.status()["source"]
    result = world.service.reverse(NAME, yes=True)
    assert "was finished" in result.text
    assert world.status()["source"] == now != before
    assert world.status()["state"] == "mirrored"


def test_a_planned_reverse_that_is_given_up_after_its_last_update(world: World) -> None:
    """Somebody wrote just before the source was frozen."""
    world.initialized()

    def observer(label: str) -> None:
        if label == CONFIRMED:
            world.lab.change(world.lab.source(), 63)
        elif label == "CATALOGUE:TRANSFER:FINISH":
            raise Crash(label)

    steps.observe(observer)
    try:
        with pytest.raises(Crash):
            world.service.reverse(NAME, yes=True)
    finally:
        steps.observe(None)
    world.again()
    world.service.abort(NAME, hard=True)
    assert world.status()["state"] == "mirrored" and world.status()["problems"] == []


def test_the_same_command_again_finishes_a_reverse_whose_direction_only_the_ends_know(
    world: World,
) -> None:
    world.initialized()
    before = world.status()["source"]
    world.lab.change(world.lab.source(), 62)
    crash_at(world, "CATALOGUE:DIRECTION:SET", lambda: world.service.reverse(NAME, yes=True))
    result = world.service.reverse(NAME, yes=True)
    assert "was finished" in result.text
    assert world.status()["source"] != before and world.status()["state"] == "mirrored"
    assert world.lab.source().facts().role is Role.MIRROR, "nobody can write there any more"


@pytest.mark.parametrize("verb", LOSING)
def test_a_catalogue_of_before_is_not_obeyed(world: World, verb: str) -> None:
    """It has an operation that was settled since, and the mirror has gone on; the base of that is
    still at both ends.
    """
    world.initialized(keep_source=9, keep_destination=9)
    _losing, work = LOSING[verb](world)
    crash_at(world, CONFIRMED, work)
    world.service.close()
    state = world.paths.state
    shutil.copytree(state, state.with_name("older"))
    world.again().abort(NAME, hard=True)
    if verb == "resync":
        world.service.resync(NAME, yes=True)
    for seed in (70, 71):
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
    world.lab.change(world.lab.source(), 72)
    content = world.source_content()
    world.service.close()
    shutil.rmtree(state)
    state.with_name("older").rename(state)
    world.again().update(NAME)
    assert world.source_content() == content == world.view_content()
    events = [one.text for one in world.service.history(NAME, limit=50).events]
    assert any("older than the volumes" in text for text in events)


def test_an_update_in_a_catalogue_of_before_a_break_is_over(world: World) -> None:
    """It was interrupted after its commit, and no later number tells that more has happened."""
    world.initialized()
    world.lab.change(world.lab.source(), 70)
    crash_at(world, "CATALOGUE:OPERATION:END", lambda: world.service.update(NAME))
    world.service.close()
    state = world.paths.state
    shutil.copytree(state, state.with_name("older"))
    world.again().break_off(NAME)
    world.service.close()
    shutil.rmtree(state)
    state.with_name("older").rename(state)
    world.again().resync(NAME, yes=True)
    assert world.in_step() and world.status()["problems"] == []
    world.lab.change(world.lab.source(), 71)
    world.service.update(NAME)
    assert world.in_step()


@pytest.mark.parametrize("verb", LOSING)
def test_a_catalogue_of_before_a_reverse_does_not_turn_it_back(world: World, verb: str) -> None:
    """It has an interrupted operation, and the roles that the sites had then."""
    world.initialized(keep_source=9, keep_destination=9)
    _losing, work = LOSING[verb](world)
    crash_at(world, CONFIRMED, work)
    world.service.close()
    state = world.paths.state
    shutil.copytree(state, state.with_name("older"))
    world.again().abort(NAME, hard=True)
    if verb == "resync":
        world.service.resync(NAME, yes=True)
    world.service.reverse(NAME, yes=True)
    source = world.status()["source"]
    for seed in (70, 71):
        world.lab.change(world.lab.destination(), seed)
        world.service.update(NAME)
    world.lab.change(world.lab.destination(), 72)
    content = world.view_content()
    world.service.close()
    shutil.rmtree(state)
    state.with_name("older").rename(state)
    world.again().update(NAME)
    assert world.status()["source"] == source
    assert world.source_content() == content == world.view_content()
    events = [one.text for one in world.service.history(NAME, limit=50).events]
    assert any("is the source" in text for text in events)


def test_a_catalogue_that_is_lost_between_any_two_verbs(world: World) -> None:
    world.initialized(keep_source=5, keep_destination=5)
    steps_of_life: list[Callable[[], object]] = [
        lambda: world.service.update(NAME),
        lambda: world.service.break_off(NAME),
        lambda: world.service.resync(NAME, yes=True),
        lambda: world.service.reverse(NAME, yes=True),
        lambda: world.service.reverse(NAME, yes=True),
        lambda: world.service.restore_all(NAME, snapshot=None, yes=True),
        lambda: world.service.update(NAME),
    ]
    for seed, verb in enumerate(steps_of_life):
        status = world.status()
        if status["state"] == "mirrored":
            world.lab.change(end(world, "source"), seed)
        world.service.close()
        shutil.rmtree(world.paths.state)
        world.again()
        verb()
    assert world.in_step() and world.status()["state"] == "mirrored"


@pytest.mark.on_machine
def test_a_lost_source_whose_restore_was_interrupted(world: World) -> None:
    world.initialized()
    content = world.view_content()
    source = world.lab.source()
    lose(world.lab, source)
    for label in (CONFIRMED, "CATALOGUE:TRANSFER:BEGIN", "CATALOGUE:TRANSFER:FINISH"):
        crash_at(world, label, lambda: world.service.restore_all(NAME, snapshot=None, yes=True))
    world.service.restore_all(NAME, snapshot=None, yes=True)
    assert world.source_content() == content
    world.lab.change(world.lab.source(), 1)
    world.service.update(NAME)
    assert world.in_step()


@pytest.mark.parametrize("older", [False, True])
def test_a_lost_source_that_returns_during_its_restore_is_kept_and_named(
    world: World, older: bool
) -> None:
    """Its disk is mounted again, with what was written after the last update; or an older copy of
    it, which does not have the snapshot that is restored.
    """
    world.initialized(keep_source=3)
    source = world.lab.source()
    if older:
        world.lab.change(source, 3)
        world.service.update(NAME)
        delete_by_force(source, source.snapshots()[-1].guid)
    content = world.view_content()
    place = Path(source.location)
    both = [one for one in (place, place.parent / ".mirrord" / place.name) if one.exists()]

    def move(was: str, now: str) -> None:
        for one in both:
            one.with_name(one.name + was).rename(one.with_name(one.name + now))

    world.lab.change(source, 1)
    newer = world.source_content()
    move("", "-away")
    restore = begin_restore(world)[1]
    crash_at(world, "CATALOGUE:TRANSFER:BEGIN", restore)
    for one in both:
        if one.exists():
            one.rename(one.with_name(one.name + "-begun"))
    move("-away", "")
    with pytest.raises(Undecided):
        restore()
    if older and source.kind == "block":  # whose blocks have fixed places
        with pytest.raises(Refused, match="blocks that are in use") as caught:
            world.service.resume_operation(NAME, yes=True)
        assert "delete it" in caught.value.hint
        [name] = [one.name for one in source.snapshots() if one.kind is SnapshotKind.DIVERGED]
        world.service.delete_diverged(NAME, name)
        restore()
        assert world.source_content() == content
        return
    done = world.service.resume_operation(NAME, yes=True)
    assert world.source_content() == content
    [name] = [one.name for one in source.snapshots() if one.kind is SnapshotKind.DIVERGED]
    assert kept(world, source) == [newer]
    assert name in done.text
    assert done.data["kept_as"] == name


@pytest.mark.on_machine
def test_the_source_dies_during_its_restore_and_the_destination_is_needed(world: World) -> None:
    world.initialized()
    content = world.view_content()
    lose(world.lab, world.lab.source())
    crash_at(
        world,
        "CATALOGUE:TRANSFER:BEGIN",
        lambda: world.service.restore_all(NAME, snapshot=None, yes=True),
    )
    lose(world.lab, world.lab.source())
    assert world.service.break_off(NAME).status == "done"
    assert world.view_content() == content
    assert end(world, "destination").facts().role is Role.LIVE
    world.service.restore_all(NAME, snapshot=None, yes=True)
    assert world.source_content() == content


@pytest.mark.parametrize(
    "label",
    ["CATALOGUE:TRANSFER:BEGIN", "CATALOGUE:OPERATION:TRANSFERRED", "CATALOGUE:OPERATION:END"],
)
def test_a_source_that_is_lost_again_during_its_restore_is_created_again(
    world: World, label: str
) -> None:
    world.initialized()
    content = world.view_content()
    restore = begin_restore(world)[1]
    lose(world.lab, world.lab.source())
    crash_at(world, label, restore)
    lose(world.lab, world.lab.source())
    restore()
    assert world.source_content() == content
    world.lab.change(world.lab.source(), 1)
    world.service.update(NAME)
    assert world.in_step()


@pytest.mark.parametrize("label", ["CATALOGUE:OPERATION:TRANSFERRED", "CATALOGUE:OPERATION:END"])
def test_a_crash_after_a_source_that_was_lost_again_has_been_created(
    world: World, label: str
) -> None:
    """It was rolled back, or complete, when it was lost: the new one has nothing of that."""
    world.initialized(keep_source=3)
    content = world.view_content()
    world.lab.change(world.lab.source(), 1)
    crash_at(world, label, begin_restore(world)[1])
    lose(world.lab, world.lab.source())

    def resume() -> object:
        return world.service.resume_operation(NAME, yes=True)

    crash_at(world, "CATALOGUE:TRANSFER:BEGIN", resume)
    resume()
    assert world.source_content() == content
    world.lab.change(world.lab.source(), 2)
    world.service.update(NAME)
    assert world.in_step()


@pytest.mark.on_machine
def test_another_volume_in_the_place_of_the_source_is_not_mirrored(world: World) -> None:
    world.initialized(keep_destination=3)
    content = world.view_content()
    source = world.lab.source()
    replace(world.lab, source)
    before = [one.guid for one in world.lab.destination().snapshots()]
    for _ in range(5):
        with pytest.raises(Diverged):
            world.service.update(NAME)
        world.again()
    assert world.view_content() == content
    assert [one.guid for one in world.lab.destination().snapshots()] == before
    with pytest.raises(MirrordError):
        world.service.prune(NAME, dry_run=False, accept=False)
        world.service.update(NAME)
    assert not world.status()["healthy"]


def test_a_restore_that_was_killed_is_named_first_when_the_catalogue_is_lost(world: World) -> None:
    """The record at the ends shows that the mirror was not reversed."""
    world.initialized()
    world.lab.change(world.lab.source(), 5)
    crash_at(
        world,
        "CATALOGUE:OPERATION:PREPARED",
        lambda: world.service.restore_all(NAME, snapshot=None, yes=True),
    )
    world.forget_catalogue()
    world.service.break_off(NAME)
    with pytest.raises(Refused, match="source is read-only") as refused:
        world.service.resync(NAME, yes=True)
    assert refused.value.hint.startswith("If a 'restore --all' was given up, run it again")
    world.service.restore_all(NAME, snapshot=None, yes=True)
    world.service.resync(NAME, yes=True)
    assert world.in_step()
