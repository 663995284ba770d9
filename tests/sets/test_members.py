"""What only a mirror with several members can meet: one of them is lost, or a crash comes between
two of them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from mirrord.core.errors import Diverged, Refused, Unsupported
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.contract import Driver
from mirrord.system import steps
from mirrord.system.paths import Paths
from tests.contract.sets import SetLab
from tests.crash.faults import attempt, labels
from tests.crash.scenes import end, sound
from tests.failover.volumes import lose, replace
from tests.support import btrfs
from tests.support.btrfs import delete_subvolume
from tests.support.labs import open_lab
from tests.support.places import away
from tests.support.verbs import Service
from tests.support.world import NAME, SetWorld

#: What shows a new set at a member, and what only commits it.
COMMIT = {"block": "BLOCK:COMMIT:ROOT:RENAME", "btrfs": "BTRFS:COMMIT:SHOW:RENAME"}


@pytest.fixture
def ready(world: SetWorld) -> SetWorld:
    """Initialized, with a change to be transferred."""
    world.initialized(keep_source=3, keep_destination=4)
    world.lab.change(world.lab.source(), 0)
    return world


def parts(world: SetWorld, which: str = "destination") -> list[str]:
    """What each member's volume holds."""
    return world.lab.content(world.driver(which)).split()


def whole(world: SetWorld, *contents: str) -> bool:
    """Whether the members of the destination show one of these, all the same one."""
    return world.view_content() in contents


def lost_catalogue(world: SetWorld) -> None:
    world.service.close()
    for file in world.paths.state.iterdir():
        file.unlink()
    world.again()


# A crash between two members


@pytest.fixture
def commits(ready: SetWorld) -> list[tuple[str, int]]:
    """Each passing of each step of a commit: they are the same in each update."""
    seen = labels(lambda: ready.service.update(NAME))
    steps = [label for label in seen if ":COMMIT:" in label]
    assert len([one for one in steps if one == COMMIT[ready.lab.kind]]) >= 3, "one of each member"
    return [(label, steps[: at + 1].count(label)) for at, label in enumerate(steps)]


def test_after_a_crash_in_a_commit_all_members_show_the_new_set_without_the_source(
    ready: SetWorld, commits: list[tuple[str, int]]
) -> None:
    """All staged is complete by then, so the way is forward, whether the source is alive or not."""
    mixed = 0
    for seed, point in enumerate(commits, 1):
        ready.lab.change(ready.lab.source(), seed)
        old, new = ready.view_content(), ready.source_content()
        attempt(ready, lambda: ready.service.update(NAME), point, "crash")
        mixed += not whole(ready, old, new)
        for number, shown in enumerate(ready.lab.destination().drivers):
            held = {one.guid for one in shown.snapshots()}
            if parts(ready)[number] == new.split()[number]:
                assert all(
                    len(one.snapshots()) == len(held) for one in ready.lab.destination().drivers
                ), "what one shows, all hold"
        with away(ready.lab, ready.lab.source().drivers[1]):
            ready.service.recover(NAME)
        assert ready.view_content() == new, point
        ready.service.update(NAME)
        assert ready.in_step() and ready.status()["healthy"], point
        sound(ready)
    assert mixed >= 1, "there were moments at which the members showed different sets"


@pytest.mark.parametrize("lost", [False, True])
def test_a_break_after_a_crash_in_a_commit_begins_as_one_set(
    ready: SetWorld, commits: list[tuple[str, int]], lost: bool
) -> None:
    """lost: the catalogue is lost as well, so that nobody knows of the transfer."""
    shows = [point for point in commits if point[0] == COMMIT[ready.lab.kind]]
    for seed, point in enumerate(shows, 1):
        ready.lab.change(ready.lab.source(), seed)
        old, new = ready.view_content(), ready.source_content()
        attempt(ready, lambda: ready.service.update(NAME), point, "crash")
        if lost:
            lost_catalogue(ready)
        with away(ready.lab, ready.lab.source().drivers[1]):
            ready.service.break_off(NAME)
        assert whole(ready, old, new), point
        assert set(ready.lab.destination().roles()) == {Role.LIVE}
        ready.service.resync(NAME, yes=True)
        assert ready.in_step(), point


def test_a_commit_that_is_running_is_no_problem(ready: SetWorld) -> None:
    """While members show different sets."""
    seen: dict[str, tuple[str, ...]] = {}

    def look(label: str) -> None:
        if label == COMMIT[ready.lab.kind]:
            with closing(Service(ready.paths)) as other:
                [found] = other.status(NAME)
                seen[found.reading.shown] = found.problems

    steps.observe(look)
    try:
        ready.service.update(NAME)
    finally:
        steps.observe(None)
    assert "" in seen and not any(seen.values())


def test_an_update_after_a_crash_in_a_commit_needs_no_catalogue(
    ready: SetWorld, commits: list[tuple[str, int]]
) -> None:
    for seed, point in enumerate(commits, 1):
        ready.lab.change(ready.lab.source(), seed)
        attempt(ready, lambda: ready.service.update(NAME), point, "crash")
        lost_catalogue(ready)
        ready.service.update(NAME)
        assert ready.in_step(), point
        assert ready.status()["healthy"], point
    ready.lab.change(ready.lab.source(), 99)
    ready.service.update(NAME)
    assert ready.lab.destination().stagings() == []


def test_what_a_crash_in_a_deletion_left_goes_with_the_next_prune(ready: SetWorld) -> None:
    for seed in range(4):
        ready.lab.change(ready.lab.source(), seed)
        seen = labels(lambda: ready.service.update(NAME))
    deleting = [one for one in seen if "DELETE" in one or "DROP" in one]
    assert deleting, seen
    label = deleting[0]
    for number in range(1, deleting.count(label) + 1):
        ready.lab.change(ready.lab.source(), 10 + number)
        attempt(ready, lambda: ready.service.update(NAME), (label, number), "crash")
        ready.lab.change(ready.lab.source(), 20 + number)
        ready.service.update(NAME)
        assert ready.in_step()
        counts = {len(one.snapshots()) for one in ready.lab.source().drivers}
        assert counts == {3}, (label, number)
        counts = {len(one.snapshots()) for one in ready.lab.destination().drivers}
        assert counts == {4}, (label, number)


# A member is lost


def test_a_lost_member_of_the_destination_is_named_and_nothing_is_changed(ready: SetWorld) -> None:
    before = ready.view_content()
    lost = ready.lab.destination().drivers[1]
    with away(ready.lab, lost):
        with pytest.raises(Refused, match="the destination is missing") as caught:
            ready.service.update(NAME)
        assert lost.location in str(caught.value)
        status = ready.status()
        assert not status["healthy"] and lost.location in status["problems"][0]
        assert status["lag_s"] is None
        with pytest.raises(Refused, match="the destination is missing"):
            ready.service.resync(NAME, yes=True)
    assert ready.view_content() == before
    ready.service.update(NAME)
    assert ready.in_step()


def test_a_lost_member_of_the_source_is_named(ready: SetWorld) -> None:
    lost = ready.lab.source().drivers[2]
    with away(ready.lab, lost):
        with pytest.raises(Refused, match="no volume at the source") as caught:
            ready.service.update(NAME)
        assert "source-3" in str(caught.value) or "home-3" in str(caught.value)
        assert any("source" in one for one in ready.status()["problems"])
    ready.service.update(NAME)
    assert ready.in_step()


def test_break_with_a_lost_member_begins_as_the_newest_set_that_was_complete(
    ready: SetWorld,
) -> None:
    ready.service.update(NAME)
    shown = parts(ready)
    ready.lab.change(ready.lab.source(), 5)
    attempt(ready, lambda: ready.service.update(NAME), (COMMIT[ready.lab.kind], 2), "crash")
    lost = ready.lab.destination().drivers[1]
    with away(ready.lab, lost):
        done = ready.service.break_off(NAME)
        assert lost.location in done.text and "lost" in done.text
        kept = [ready.lab.destination().drivers[number] for number in (0, 2)]
        assert {one.facts().role for one in kept} == {Role.LIVE}
        names = {one.snapshots()[0].name for one in kept}
        began = {_name(one, one.facts().origin) for one in kept}
        assert len(began) == 1 and len(names) == 1
    assert shown, "something was shown before"
    again = ready.service.break_off(NAME)
    assert again.status == "done", "the member that came back is made live as well"
    assert set(ready.lab.destination().roles()) == {Role.LIVE}
    assert {_name(one, one.facts().origin) for one in ready.lab.destination().drivers} == began
    ready.service.resync(NAME, yes=True)
    assert ready.in_step()


def _name(driver: Driver, guid: str | None) -> str:
    [name] = [one.name for one in driver.snapshots() if one.guid == guid]
    return name


def test_a_source_that_lost_a_member_goes_back_or_is_made_again(ready: SetWorld) -> None:
    ready.service.update(NAME)
    wanted = ready.view_content()
    lose(ready.lab, ready.lab.source().drivers[1])
    with pytest.raises(Refused, match="a member of the source is lost") as caught:
        ready.service.restore_all(NAME, snapshot=None, yes=True)
    assert ready.lab.source().drivers[1].location in str(caught.value)
    for number in (0, 2):
        lose(ready.lab, ready.lab.source().drivers[number])
    ready.service.restore_all(NAME, snapshot=None, yes=True)
    assert ready.source_content() == wanted
    ready.lab.change(ready.lab.source(), 9)
    ready.service.update(NAME)
    assert ready.in_step()


def test_a_member_that_was_replaced_is_named_with_what_is_possible(ready: SetWorld) -> None:
    ready.service.update(NAME)
    member = ready.lab.source().drivers[1]
    replace(ready.lab, member)
    with pytest.raises(Diverged, match="taken the place of the source") as caught:
        ready.service.update(NAME)
    assert caught.value.where == str(member)
    assert "change-source" not in caught.value.hint and "'mirrord resync" in caught.value.hint


def test_members_of_the_source_that_were_renamed_are_made_again(ready: SetWorld) -> None:
    """As the refusal says; on btrfs their snapshots, which the mirror has pinned, stay behind."""
    ready.service.update(NAME)
    wanted = ready.view_content()
    lose(ready.lab, ready.lab.source().drivers[1])
    with pytest.raises(Refused) as caught:
        ready.service.restore_all(NAME, snapshot=None, yes=True)
    assert "Rename the volumes of the other members" in caught.value.hint
    for number in (0, 2):
        place = Path(ready.lab.source().drivers[number].location)
        place.rename(place.with_name(f"{place.name}.old"))
    ready.service.restore_all(NAME, snapshot=None, yes=True)
    assert ready.source_content() == wanted
    ready.lab.change(ready.lab.source(), 9)
    ready.service.update(NAME)
    assert ready.in_step()


# Only some members are changed


def test_only_the_members_that_were_changed_have_something_to_keep(ready: SetWorld) -> None:
    ready.service.break_off(NAME)
    destination = ready.lab.destination()
    ready.lab.labs[1].change(destination.drivers[1], 7)
    losing = ready.lab.labs[1].content(destination.drivers[1])  # (to read the others changes them)
    done = ready.service.resync(NAME, yes=True)
    [kept] = [s for s in ready.lab.destination().snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert kept.name == done.data["kept_as"]
    assert [bool(part) for part in kept.guid.split("+")] == [False, True, False]
    assert ready.lab.snapshot_content(ready.lab.destination(), kept.guid) == losing
    assert ready.in_step()
    ready.service.delete_diverged(NAME, kept.name)
    assert all(s.kind is SnapshotKind.REFERENCE for s in ready.lab.destination().snapshots())


@pytest.mark.parametrize("given_up_by", ["abort", "break", "break without catalogue"])
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_switch_that_is_given_up_puts_back_each_member(
    ready: SetWorld, changed: int, given_up_by: str
) -> None:
    """Whichever was changed, and between whichever members the crash came."""
    ready.service.update(NAME)
    ready.service.break_off(NAME)
    lab, one = ready.lab.labs[changed], ready.lab.destination().drivers[changed]
    lab.change(one, 70)
    seen = labels(lambda: ready.service.resync(NAME, yes=True, force=True))
    rolling = [label for label in seen if ":ROLLBACK:" in label]
    label = next(one for one in rolling if rolling.count(one) >= 3)

    def work() -> object:
        return ready.service.resync(NAME, yes=True, force=True)

    for number in (1, 2, 3):
        ready.service.break_off(NAME)
        lab.change(ready.lab.destination().drivers[changed], 71 + number)
        ready.lab.change(ready.lab.source(), number)
        losing = ready.view_content()
        attempt(ready, work, (label, number), "crash")
        if given_up_by == "abort":
            ready.service.abort(NAME, hard=True)
        else:
            if given_up_by != "break":
                lost_catalogue(ready)
            ready.service.break_off(NAME)
        assert set(ready.lab.destination().roles()) == {Role.LIVE}, number
        if given_up_by == "abort" or number < 3:  # (all were set aside: they are of one moment)
            assert ready.view_content() == losing, number
        work()
        assert ready.in_step()


def test_an_update_of_one_changed_member_leaves_the_others_as_they_are(ready: SetWorld) -> None:
    ready.service.update(NAME)
    before = parts(ready)
    ready.lab.labs[2].change(ready.lab.source().drivers[2], 33)
    ready.service.update(NAME)
    after = parts(ready)
    assert ready.in_step() and after[:2] == before[:2] and after[2] != before[2]


# What is not for several members


def test_what_is_done_with_one_volume_is_refused_plainly(ready: SetWorld, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="several members"):
        ready.service.begin_test(NAME)
    with pytest.raises(Unsupported, match="single files") as caught:
        ready.service.restore_files(NAME, ["x"], snapshot=None, into=tmp_path, overwrite=False)
    if ready.lab.kind == "btrfs":
        places = caught.value.hint.rstrip(".").split(": ")[1].split(", ")
        assert len(places) == 3 and all(Path(one).is_dir() for one in places)
    with pytest.raises(Refused, match="more than one source volume"):
        ready.service.change_source(NAME, f"{end(ready, 'source').kind}:/elsewhere")
    assert ready.status()["healthy"]


def test_a_set_that_is_needed_at_one_member_stays_whole(ready: SetWorld) -> None:
    for seed in range(3):
        ready.lab.change(ready.lab.source(), seed)
        ready.service.update(NAME)
    for end_of in (ready.lab.source(), ready.lab.destination()):
        oldest = end_of.snapshots()[0]
        last = end_of.parts(oldest.guid)[2]
        end_of.drivers[2].pin("feed", [last])
        assert "feed" in end_of.snapshots()[0].pinned
        with pytest.raises(Refused, match="pinned"):
            end_of.delete_snapshot(oldest.guid)
        for seed in range(3):
            ready.lab.change(ready.lab.source(), 10 + seed)
            ready.service.update(NAME)
        left = {one.guid: one.intact for one in end_of.snapshots()}
        assert left[oldest.guid], "all of it is there"
        end_of.drivers[2].pin("feed", [])
    assert ready.in_step()


def test_a_restore_that_lost_what_one_member_had_received_sends_that_again(
    ready: SetWorld,
) -> None:
    ready.service.update(NAME)
    wanted = ready.view_content()
    lose(ready.lab, ready.lab.source())

    def restore() -> object:
        return ready.service.restore_all(NAME, snapshot=None, yes=True, force=True)

    label = {"block": "BLOCK:COMMIT:ROOT:RENAME", "btrfs": "BTRFS:COMMIT:MOVE"}[ready.lab.kind]
    attempt(ready, restore, (label, 3), "crash")
    last = ready.lab.source().drivers[2]
    for staging in last.stagings():
        last.discard(staging.transfer_id)
    ready.service.abort(NAME, hard=False)
    if ready.lab.source().facts().role is not Role.LIVE:
        restore()
    assert ready.source_content() == wanted
    ready.lab.change(ready.lab.source(), 3)
    ready.service.update(NAME)
    assert ready.in_step()


def test_members_with_one_destination_by_a_link_are_refused(tmp_path: Path) -> None:
    with btrfs.folders() as (here, there):
        sources = [btrfs.make_subvolume(here / name) for name in ("a", "b")]
        (there / "real").mkdir()
        (there / "link").symlink_to("real")
        ends = [there / "real/v", there / "link/v"]
        pairs = [f"btrfs:{a}=btrfs:{b}" for a, b in zip(sources, ends, strict=True)]
        home = tmp_path / "home"
        service = Service(Paths(home / "etc", home / "state", home / "run"))
        with pytest.raises(Refused, match="have the same destination") as caught:
            service.create("m", members=tuple(pairs))
        assert str(ends[1]) in caught.value.where and str(ends[0]) in caught.value.why
        service.close()


def test_a_destination_without_a_complete_set_is_filled_again(tmp_path: Path) -> None:
    """Of the only set one member's snapshot was deleted by hand: no break could begin with it."""
    with open_lab("lab_set_btrfs", tmp_path) as lab:
        assert isinstance(lab, SetLab)
        world = SetWorld(lab, tmp_path / "home")
        world.initialized(keep_source=1, keep_destination=1)
        lab.change(lab.source(), 1)
        world.service.update(NAME)
        for driver in (lab.source().drivers[0], lab.destination().drivers[1]):
            for one in driver.snapshots():
                delete_subvolume(Path(one.path))
        world.service.update(NAME)
        assert world.in_step()
        [last] = world.service.history(NAME, limit=1).transfers
        assert last.base is None
        assert last.full_reason == "the destination has no complete snapshot to update from"
        assert any(
            last.full_reason in line for line in world.service.explain(NAME).data["findings"]
        )
        world.clean_up()
