"""Who controls a mirror, and in which epoch: by the relationship records at its two ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.control.opening import Opener
from mirrord.core.errors import Diverged, Fenced, MirrordError, NotFound, Refused
from mirrord.core.model import Endpoint, Role
from mirrord.core.relationship import Intent, Relationship
from mirrord.drivers.contract import Driver
from mirrord.system import steps
from tests.contract.lab import Lab
from tests.support.records import raised
from tests.support.world import NAME, World

#: Each verb that looks at the ends, with what comes of it while the mirror works: the status, or
#: the class of the error.
VERBS: dict[str, tuple[Callable[[World], object], str]] = {
    "initialize": (lambda world: world.service.initialize(NAME), "refused"),
    "update": (lambda world: world.service.update(NAME), "done"),
    "abort": (lambda world: world.service.abort(NAME, hard=False), "already_idle"),
    "break": (lambda world: world.service.break_off(NAME), "done"),
    "resync": (lambda world: world.service.resync(NAME, yes=True), "done"),
    "reverse": (lambda world: world.service.reverse(NAME, yes=True), "done"),
    "restore": (
        lambda world: world.service.restore_all(NAME, snapshot=None, yes=True), "done"
    ),
    "prune": (lambda world: world.service.prune(NAME, dry_run=False, accept=True), "done"),
    "change-source": (lambda world: world.service.change_source(NAME, world.end("source")), "done"),
    "resume-operation": (
        lambda world: world.service.resume_operation(NAME, yes=True), "already_idle"
    ),
    "release": (lambda world: world.service.release(NAME), "refused"),
    "delete": (lambda world: world.service.delete(NAME, yes=True, keep_snapshots=False), "done"),
}  # fmt: skip
#: All but `abort`, which looks at no end while nothing is under way.
LOOKING = [verb for verb in VERBS if verb != "abort"]
RAISING = {"break", "resync", "reverse", "restore", "change-source"}


def record(driver: Driver) -> Relationship:
    [found] = driver.relationships().values()
    assert found is not None
    return found


def records(world: World) -> tuple[Relationship, Relationship]:
    return record(world.lab.source()), record(world.lab.destination())


def put_back(driver: Driver, older: Relationship) -> None:
    """The volume's own record is one of an earlier time, as after a restore of the whole disk."""
    driver.unrelate(older.mirror_id)
    driver.relate(older, 0)


def other_world(world: World, lab: Lab, home: Path) -> World:
    """Another host with the same definition."""
    other = World(lab, home)
    other.paths.make()
    shutil.copy(world.paths.mirrors / f"{NAME}.toml", other.paths.mirrors)
    if world.paths.hosts.exists():
        shutil.copytree(world.paths.hosts, other.paths.hosts, dirs_exist_ok=True)
    return other


def status_of(call: Callable[[World], object], world: World) -> str:
    try:
        return str(getattr(call(world), "status", ""))
    except MirrordError as error:
        return error.code


def in_third_epoch(world: World) -> World:
    """A mirror that was broken off and mirrored again."""
    world.initialized()
    world.service.break_off(NAME)
    world.service.resync(NAME, yes=True)
    world.lab.change(world.lab.source(), 30)
    assert [one.epoch for one in records(world)] == [3, 3]
    return world


@pytest.mark.on_machine
def test_each_change_of_roles_begins_an_epoch_at_both_ends(world: World) -> None:
    world.initialized()
    assert record(world.lab.source()) == record(world.lab.destination())
    assert record(world.lab.source()).epoch == 1
    world.lab.change(world.lab.source(), 3)
    world.service.update(NAME)
    assert [one.epoch for one in records(world)] == [1, 1]
    primary = record(world.lab.source()).source
    expected: list[tuple[Callable[[], object], Intent, bool]] = [
        (lambda: world.service.break_off(NAME), Intent.BROKEN_OFF, True),
        (lambda: world.service.resync(NAME, yes=True), Intent.MIRRORED, True),
        (lambda: world.service.reverse(NAME, yes=True), Intent.MIRRORED, False),
        (lambda: world.service.reverse(NAME, yes=True), Intent.MIRRORED, True),
        (
            lambda: world.service.restore_all(NAME, snapshot=None, yes=True),
            Intent.MIRRORED,
            True,
        ),
    ]
    for number, (verb, intent, is_primary) in enumerate(expected, 2):
        verb()
        here, there = records(world)
        assert here == there
        assert (here.epoch, here.intent) == (number, intent)
        assert (here.source == primary) == is_primary


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", ["old", "lost"])
def test_no_verb_needs_the_catalogue(world: World, verb: str, what: str) -> None:
    world.initialized()
    old = world.home / "old"
    world.close()
    shutil.copytree(world.paths.state, old)
    world.again()
    world.service.break_off(NAME)
    world.service.resync(NAME, yes=True)
    world.lab.change(world.lab.source(), 30)
    world.forget_catalogue()
    if what == "old":
        world.close()
        shutil.copytree(old, world.paths.state, dirs_exist_ok=True)
        world.again()
    _as_ever(world, verb)


@pytest.mark.parametrize("verb", LOOKING)
@pytest.mark.parametrize("which", ["source", "destination"])
def test_an_end_that_was_put_back_is_brought_up(world: World, verb: str, which: str) -> None:
    world.initialized()
    older = record(world.lab.source())
    world.service.break_off(NAME)
    world.service.resync(NAME, yes=True)
    world.lab.change(world.lab.source(), 30)
    put_back(getattr(world.lab, which)(), older)
    world.forget_catalogue()
    _as_ever(world, verb)


def _as_ever(world: World, verb: str) -> None:
    """The verb does what it does; both ends agree then, in the epoch that follows from it."""
    call, expected = VERBS[verb]
    content = world.source_content()
    assert status_of(call, world) == expected
    if verb == "delete":
        assert not world.lab.source().relationships()
        assert not world.lab.destination().relationships()
        return
    here, there = records(world)
    assert here == there
    assert here.epoch == (4 if verb in RAISING else 3)
    if verb == "break":
        world.service.resync(NAME, yes=True)
    if verb != "reverse":
        world.service.update(NAME)
    assert world.in_step()
    if verb != "restore":
        assert world.source_content() == content


@pytest.mark.parametrize("verb", LOOKING)
def test_another_controller_changes_nothing(world: World, verb: str, tmp_path: Path) -> None:
    in_third_epoch(world)
    other = other_world(world, world.lab, tmp_path / "other")
    before = _all(world)
    with pytest.raises(Fenced, match="another host controls the mirror") as refused:
        VERBS[verb][0](other)
    assert f"mirrord takeover {NAME}" in refused.value.hint
    assert _all(world) == before
    other.close()


def _all(world: World) -> object:
    ends = world.lab.source(), world.lab.destination()
    return [
        (
            end.facts().role,
            end.facts().shown,
            end.snapshots(),
            end.relationships(),
            world.lab.content(end),
            end.stagings(),
        )
        for end in ends
    ]


@pytest.mark.on_machine
def test_a_takeover_relieves_the_controller(world: World, tmp_path: Path) -> None:
    in_third_epoch(world)
    other = other_world(world, world.lab, tmp_path / "other")
    planned = other.service.takeover(NAME, yes=False)
    assert planned.status == "confirmation-required"
    assert [one.epoch for one in records(world)] == [3, 3]
    assert other.service.takeover(NAME, yes=True).data["epoch"] == 4
    assert other.service.takeover(NAME, yes=True).status == "already_controls"
    assert [one.epoch for one in records(world)] == [4, 4]
    with pytest.raises(Fenced):
        world.service.update(NAME)
    other.service.update(NAME)
    assert world.in_step()
    world.service.takeover(NAME, yes=True)
    with pytest.raises(Fenced):
        other.service.update(NAME)
    other.close()


def test_the_former_controller_reports_the_other_host(world: World, tmp_path: Path) -> None:
    in_third_epoch(world)
    other = other_world(world, world.lab, tmp_path / "other")
    other.service.takeover(NAME, yes=True)
    assert world.status()["problems"] == []
    other.service.update(NAME)
    for _ in range(2):  # the destination shows what the other host committed; then it is live
        [problem] = world.status()["problems"]
        assert "another host controls the mirror" in problem and "epoch" in problem
        other.service.break_off(NAME)
    other.close()


def test_a_verb_at_work_is_fenced_out_by_a_takeover(world: World) -> None:
    """The link to the ends broke, so that their locks were free, and another host took over."""
    in_third_epoch(world)
    taken = record(world.lab.destination())
    before = world.view_content()
    seen: list[str] = []

    def take_over(label: str) -> None:
        if label.endswith("TRANSFER:BEGIN") and not seen:
            seen.append(label)
            for end in (world.lab.source(), world.lab.destination()):
                end._relate(taken._replace(epoch=4, controller="0123456789abcdef@other"))

    steps.observe(take_over)
    with pytest.raises(Fenced, match="has epoch 3, the mirror is in epoch 4"):
        world.service.update(NAME)
    steps.observe(None)
    assert seen and world.view_content() == before
    with pytest.raises(Fenced, match="another host controls the mirror"):
        world.service.update(NAME)


@pytest.mark.parametrize("verb", LOOKING)
def test_ends_that_contradict_each_other_wait_for_the_owner(world: World, verb: str) -> None:
    in_third_epoch(world)
    here, there = records(world)
    world.lab.source().relate(raised(here, Intent.MIRRORED), 3)
    world.lab.destination().relate(raised(there, Intent.BROKEN_OFF), 3)
    before = _all(world)
    call, _expected = VERBS[verb]
    if verb not in ("break", "resync", "reverse"):
        with pytest.raises(Diverged, match="different relationship records") as refused:
            call(world)
        assert "resync" in refused.value.hint and "reverse" in refused.value.hint
        assert _all(world) == before
        return
    call(world)
    if verb == "break":
        world.service.resync(NAME, yes=True)
    here, there = records(world)
    assert here == there and here.epoch >= 5
    world.service.update(NAME)
    assert world.in_step()


def test_a_catalogue_of_an_earlier_time_does_not_turn_a_mirror(world: World) -> None:
    """The mirror was reversed since the backup of the catalogue was made."""
    world.initialized()
    world.close()
    old = world.home / "old"
    shutil.copytree(world.paths.state, old)
    world.again().reverse(NAME, yes=True)
    world.forget_catalogue()
    world.close()
    shutil.copytree(old, world.paths.state, dirs_exist_ok=True)
    world.again()
    world.lab.change(world.lab.destination(), 20)
    content = world.view_content()
    world.service.update(NAME)
    assert world.status()["source"] == world.end("destination")
    assert world.in_step() and world.source_content() == content


@pytest.mark.parametrize("verb", ["resync", "reverse"])
def test_a_catalogue_and_a_destination_of_an_earlier_time(world: World, verb: str) -> None:
    """One disk had both, and was restored from a backup: the source has the newer record."""
    world.initialized()
    world.close()
    old, first = world.home / "old", record(world.lab.destination())
    shutil.copytree(world.paths.state, old)
    world.again().break_off(NAME)
    VERBS[verb][0](world)
    world.forget_catalogue()
    world.close()
    shutil.copytree(old, world.paths.state, dirs_exist_ok=True)
    put_back(world.lab.destination(), first)
    world.again()
    is_reversed = verb == "reverse"
    live = world.lab.destination() if is_reversed else world.lab.source()
    world.lab.change(live, 20)
    content = world.lab.content(live)
    world.service.update(NAME)
    assert world.status()["source"] == world.end("destination" if is_reversed else "source")
    assert world.in_step() and world.source_content() == content
    here, there = records(world)
    assert here == there and here.epoch == 3


def test_an_update_writes_no_record_to_a_source_that_has_none(world: World) -> None:
    """It may be another volume in the place of the source."""
    world.initialized()
    source = world.lab.source()
    source.unrelate(record(source).mirror_id)
    world.service.update(NAME)
    assert source.relationships() == {}


def test_sites_may_be_renamed_and_moved_in_the_definition(world: World) -> None:
    in_third_epoch(world)
    world.service.reverse(NAME, yes=True)
    file = world.paths.mirrors / f"{NAME}.toml"
    file.write_text(file.read_text().replace("site.primary", "site.berlin"))
    world.again().update(NAME)
    here, there = records(world)
    assert here == there and here.epoch == 5
    assert [site.name for site in here.sites] == ["berlin", "secondary"]
    assert world.status()["source"] == world.end("destination")
    world.forget_catalogue()
    file.write_text(file.read_text().replace("site.secondary", "site.dr"))
    world.again().update(NAME)
    here, there = records(world)
    assert here == there and (here.epoch, here.source) == (6, "dr")
    assert world.status()["source"] == world.end("destination")


@pytest.mark.on_machine
def test_a_mirror_is_adopted_after_its_controller_was_lost(world: World, tmp_path: Path) -> None:
    in_third_epoch(world)
    other = other_world(world, world.lab, tmp_path / "other")
    (other.paths.mirrors / f"{NAME}.toml").unlink()
    mirror_id = record(world.lab.source()).mirror_id
    endpoint = world.end("destination")
    asked = other.service.adopt(endpoint, yes=False)
    assert asked.status == "confirmation-required" and not list(other.paths.mirrors.iterdir())
    assert other.service.adopt(endpoint, mirror=mirror_id, yes=True).status == "done"
    [found] = other.service.status()
    assert (found.reading.source, found.reading.destination) == (world.end("source"), endpoint)
    other.service.update(NAME)
    assert world.in_step()
    other.service.break_off(NAME)
    with pytest.raises(Refused, match="already defined here"):
        other.service.adopt(endpoint, yes=True)
    with pytest.raises(NotFound):
        other.service.adopt(endpoint, mirror="other", yes=True)
    other.close()


def test_another_volume_is_not_adopted_as_the_other_end(world: World, tmp_path: Path) -> None:
    world.initialized()
    before = records(world)
    other = other_world(world, world.lab, tmp_path / "other")
    (other.paths.mirrors / f"{NAME}.toml").unlink()
    for which, wrong in (("destination", "foreign"), ("source", "foreign")):
        endpoint, volume = world.end(which), getattr(world.lab, wrong)()
        with pytest.raises(Refused, match="not the other end"):
            other.service.adopt(endpoint, other=str(volume), yes=True)
        assert volume.relationships() == {} and records(world) == before
    assert not list(other.paths.mirrors.iterdir())
    other.service.adopt(world.end("destination"), other=world.end("source"), yes=True)
    other.service.update(NAME)
    other.close()


def test_a_volume_that_never_was_one_is_not_adopted(world: World) -> None:
    world.create()
    with pytest.raises(NotFound, match="it has none"):
        world.service.adopt(world.end("source"), yes=True)


def test_both_ends_forget_a_mirror_that_is_deleted(world: World) -> None:
    world.initialized()
    world.service.break_off(NAME)
    world.service.delete(NAME, yes=True, keep_snapshots=False)
    for end in (world.lab.source(), world.lab.destination()):
        assert end.relationships() == {} and end.facts().role is Role.LIVE


def test_a_source_that_was_restored_forgets_a_mirror_that_is_deleted(world: World) -> None:
    """Another mirror could not restore it otherwise."""
    world.initialized()
    world.lab.change(world.lab.source(), 4)
    world.service.restore_all(NAME, snapshot=None, yes=True)
    assert world.lab.source().facts().mirror_id != ""
    world.service.delete(NAME, yes=True, keep_snapshots=False)
    facts = world.lab.source().facts()
    assert (facts.role, facts.mirror_id) == (Role.LIVE, "")


def test_each_volume_that_a_command_opens_is_detached(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon keeps its session with a host: what stays open there is so until that ends."""
    world.initialized()
    other = other_world(world, world.lab, tmp_path / "other")
    (other.paths.mirrors / f"{NAME}.toml").unlink()
    opened: dict[int, str] = {}

    def watch(service: Opener) -> None:
        driver_of = service.driver

        def watched(endpoint: Endpoint) -> Driver:
            driver = driver_of(endpoint)
            opened[id(driver)], detach = str(driver), driver.detach

            def detached() -> None:
                detach()
                opened.pop(id(driver), None)

            monkeypatch.setattr(driver, "detach", detached)
            return driver

        monkeypatch.setattr(service, "driver", watched)

    watch(world.service)
    watch(other.service)
    world.service.change_source(NAME, world.end("source"))
    assert not opened
    other.service.adopt(world.end("destination"), other=world.end("source"), yes=True)
    assert not opened
    other.close()
