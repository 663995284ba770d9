"""A switch was killed between two members: what the next command makes live is of one moment,
whatever else was lost, and whichever command that is.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from mirrord.core.errors import Aborted, Refused
from mirrord.core.model import Role, SnapshotKind
from mirrord.core.states import Activity
from mirrord.drivers.block.volume import Volume
from mirrord.engine.members import Members
from mirrord.engine.progress import RunFiles
from mirrord.system import locks
from tests.contract.sets import SetLab
from tests.crash.faults import attempt, labels
from tests.crash.scenes import restore, resync, reverse
from tests.support.btrfs import make_subvolume
from tests.support.labs import open_lab
from tests.support.mounts import unmount
from tests.support.places import away
from tests.support.service import until
from tests.support.world import NAME, SetWorld

#: What makes a member live, and what sets it aside.
PROMOTE = {"block": "BLOCK:PROMOTE:ROOT:RENAME", "btrfs": "BTRFS:PROMOTE:EXCHANGE"}
SET_ASIDE = {"block": "BLOCK:ROLLBACK:ROOT:RENAME", "btrfs": "BTRFS:ROLLBACK:EXCHANGE"}


@pytest.fixture
def ready(world: SetWorld) -> SetWorld:
    """Initialized."""
    world.initialized(keep_source=4, keep_destination=5)
    return world


def broken_off(world: SetWorld, seed: int = 1) -> str:
    """Both ends are live and were changed; what the destination has."""
    world.service.break_off(NAME)
    world.lab.change(world.lab.source(), 500 + seed)
    world.lab.change(world.lab.destination(), seed)
    return world.view_content()


def broken_off_in(world: SetWorld, changed: tuple[int, ...], seed: int) -> str:
    """The same, but only these members of the destination were changed."""
    wanted = world.view_content().split()
    world.service.break_off(NAME)
    world.lab.change(world.lab.source(), 500 + seed)
    there = world.lab.destination()
    for number in changed:  # (to read the others would change them)
        lab, one = world.lab.labs[number], there.drivers[number]
        lab.change(one, seed)
        wanted[number] = lab.content(one)
    return " ".join(wanted)


def half_set_aside(world: SetWorld, number: int) -> None:
    """A resync was killed before it set that member aside."""
    attempt(world, lambda: resync(world), (SET_ASIDE[world.lab.kind], number), "crash")
    assert set(world.lab.destination().roles()) == {Role.MIRROR, Role.LIVE}


def is_live(world: SetWorld, content: str) -> bool:
    return set(world.lab.destination().roles()) == {Role.LIVE} and world.view_content() == content


def kept(world: SetWorld) -> list[str]:
    """The names of the diverged sets at the destination."""
    listed = world.lab.destination().snapshots()
    return [one.name for one in listed if one.kind is SnapshotKind.DIVERGED]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("number", [2, 3])
def test_a_break_does_not_put_back_what_an_earlier_resync_keeps(
    ready: SetWorld, number: int, lost: bool
) -> None:
    """The source has not changed since, so no newer snapshot tells that the resync was finished. A
    planned reverse was killed while it made the members live.
    """
    broken_off(ready)
    resync(ready)
    ready.service.break_off(NAME)
    ready.lab.change(ready.lab.destination(), 9)
    resync(ready)
    wanted, before = ready.view_content(), kept(ready)
    attempt(ready, lambda: reverse(ready), (PROMOTE[ready.lab.kind], number), "crash")
    if lost:
        ready.forget_catalogue()
    ready.service.break_off(NAME)
    assert is_live(ready, wanted)
    assert kept(ready) == before


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("lost", [False, True])
def test_with_a_member_lost_the_others_are_put_back(ready: SetWorld, gone: int, lost: bool) -> None:
    base = ready.view_content().split()
    changed = broken_off(ready).split()
    half_set_aside(ready, 3)
    if lost:
        ready.forget_catalogue()
    place = ready.lab.destination().drivers[gone]
    with away(ready.lab, place):
        assert place.location in ready.service.break_off(NAME).text
        # Without the last one nothing shows that it was not set aside: then all show the base.
        wanted = base if gone == 2 else changed
        for number in {0, 1, 2} - {gone}:
            one = ready.lab.destination().drivers[number]
            assert one.facts().role is Role.LIVE
            assert ready.lab.labs[number].content(one) == wanted[number]


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("verb", ["break", "reverse"])
def test_another_host_takes_over_from_one_that_died_in_a_resync(
    ready: SetWorld, number: int, verb: str
) -> None:
    wanted = broken_off(ready)
    half_set_aside(ready, number)
    there = SetWorld(ready.lab, ready.home.parent / "other")
    there.service.adopt(str(ready.lab.destination().drivers[0]), yes=True)
    if verb == "break":
        there.service.break_off(NAME)
        assert is_live(there, wanted)
    else:
        reverse(there)
        assert is_live(there, wanted) and there.source_content() == wanted
    there.close()


@pytest.mark.parametrize("number", [2, 3])
def test_a_reverse_makes_what_was_there_before_the_resync_the_source(
    ready: SetWorld, number: int
) -> None:
    wanted = broken_off(ready)
    half_set_aside(ready, number)
    ready.forget_catalogue()
    reverse(ready)
    assert is_live(ready, wanted) and ready.source_content() == wanted


def test_a_resync_that_is_killed_twice_is_put_back_as_a_whole(ready: SetWorld) -> None:
    """The second one has another name for what it sets aside."""
    wanted = broken_off(ready)
    half_set_aside(ready, 3)
    ready.forget_catalogue()
    half_set_aside(ready, 2)
    ready.forget_catalogue()
    ready.service.break_off(NAME)
    assert is_live(ready, wanted)
    resync(ready)
    assert ready.in_step() and len(kept(ready)) == 1


@pytest.mark.parametrize("changed", [(0, 1, 2), (0,), (1,), (2,)])
def test_a_break_that_is_killed_while_it_puts_back_does_so_again(
    ready: SetWorld, changed: tuple[int, ...]
) -> None:
    """Whichever members had changes, without a catalogue, and at the same step again."""

    def prepared(seed: int) -> str:
        """What the destination had before the resync that was killed."""
        wanted = broken_off_in(ready, changed, seed)
        half_set_aside(ready, 3)
        ready.forget_catalogue()
        return wanted

    def break_off() -> object:
        return ready.service.break_off(NAME)

    wanted = prepared(1)
    seen = labels(break_off)
    assert is_live(ready, wanted)
    effects = [label for label in seen if ":REINSTATE:" in label or ":PROMOTE:" in label]
    assert effects
    for number, label in enumerate(dict.fromkeys(effects), 2):
        resync(ready)
        for name in kept(ready):  # (block volumes would need its blocks)
            ready.service.delete_diverged(NAME, name)
        wanted = prepared(number)
        for _ in range(2):
            attempt(ready, break_off, (label, 1), "crash", sure=False)
        ready.forget_catalogue()
        break_off()
        assert is_live(ready, wanted), label


@pytest.mark.parametrize("changed", [(0,), (0, 1), (1,)])
def test_a_break_finishes_an_abort_that_was_killed_while_it_put_back(
    ready: SetWorld, changed: tuple[int, ...]
) -> None:
    """The resync had set all members aside; of the last one nothing had to be kept. Before any is
    live again, what they show is of one moment, too.
    """

    def prepared(seed: int) -> tuple[str, str]:
        """What the destination had before the resync, and what it shows after it."""
        base, wanted = ready.view_content(), broken_off_in(ready, changed, seed)
        attempt(ready, lambda: resync(ready), ("CATALOGUE:OPERATION:END", 1), "crash")
        assert set(ready.lab.destination().roles()) == {Role.MIRROR}
        return wanted, base

    def abort() -> object:
        return ready.service.abort(NAME, hard=True)

    wanted, _ = prepared(1)
    seen = labels(abort)
    assert is_live(ready, wanted)
    effects = [label for label in seen if ":REINSTATE:" in label or ":PROMOTE:" in label]
    ends = [label for label in effects if label.endswith((":EXCHANGE", ":RENAME"))]
    assert len(ends) >= len(ready.lab.labs)
    for seed, label in enumerate(ends, 2):
        resync(ready)
        for name in kept(ready):  # (block volumes would need its blocks)
            ready.service.delete_diverged(NAME, name)
        wanted, base = prepared(seed)
        attempt(ready, abort, (label, ends[: seed - 1].count(label)), "crash")
        begun = Role.LIVE in ready.lab.destination().roles()
        ready.service.break_off(NAME)
        assert is_live(ready, wanted if begun else base), (label, seed)


@pytest.mark.parametrize("number", [2, 3])
def test_a_break_at_a_snapshot_does_not_join_one_that_began_at_another(
    ready: SetWorld, number: int
) -> None:
    old, oldest = ready.view_content(), ready.lab.destination().snapshots()[0].name
    for seed in range(2):
        ready.lab.change(ready.lab.source(), seed)
        ready.service.update(NAME)
    new, point = ready.view_content(), (PROMOTE[ready.lab.kind], number)

    def at_oldest() -> object:
        return ready.service.break_off(NAME, snapshot=oldest)

    attempt(ready, lambda: ready.service.break_off(NAME), point, "crash")
    with pytest.raises(Refused, match="a part of the destination is already writable"):
        at_oldest()
    ready.service.break_off(NAME)
    assert is_live(ready, new)
    resync(ready)
    attempt(ready, at_oldest, point, "crash")
    at_oldest()
    assert is_live(ready, old)


@pytest.mark.parametrize("number", [2, 3])
def test_a_restore_that_was_killed_at_its_end_makes_every_member_live(
    ready: SetWorld, number: int
) -> None:
    wanted = ready.view_content()
    ready.lab.change(ready.lab.source(), 2)
    attempt(ready, lambda: restore(ready), (PROMOTE[ready.lab.kind], number), "crash")
    ready.service.abort(NAME, hard=False)
    assert set(ready.lab.source().roles()) == {Role.LIVE}
    assert ready.source_content() == wanted


def test_a_source_that_is_half_restored_is_restored_first(ready: SetWorld) -> None:
    """An update says how, and a resync does not set the destination aside before."""
    broken_off(ready)
    resync(ready)
    ready.lab.change(ready.lab.source(), 7)
    attempt(ready, lambda: restore(ready), (SET_ASIDE[ready.lab.kind], 2), "crash")
    ready.forget_catalogue()
    with pytest.raises(Refused, match="a member of the source is read-only") as caught:
        ready.service.update(NAME)
    assert "restore" in caught.value.hint and "--all" in caught.value.hint
    ready.service.break_off(NAME)
    before = ready.view_content()
    with pytest.raises(Refused, match="a member of the source is read-only") as caught:
        resync(ready)
    assert ready.lab.source().drivers[0].location in str(caught.value)
    assert is_live(ready, before)


def test_a_break_names_the_member_in_whose_place_there_is_something_else(ready: SetWorld) -> None:
    there = ready.lab.destination().drivers[1]
    with away(ready.lab, there):
        place = Path(there.location)
        place.mkdir()
        (place / "note").write_text("it is mine")
        with pytest.raises(Refused, match="no complete set to promote") as caught:
            ready.service.break_off(NAME)
        assert str(place) in caught.value.where and "Move that away" in caught.value.hint
        (place / "note").unlink()
        place.rmdir()


@pytest.mark.parametrize("verb", ["break", "resync"])
def test_another_volume_in_the_place_of_a_member_is_not_a_half_finished_switch(
    ready: SetWorld, verb: str
) -> None:
    """After a resync the record names what it has set aside, and the source has not changed since.
    The last member is live, but a volume that somebody made there: the others stay as they are.
    """
    world, lab = ready, ready.lab
    world.service.break_off(NAME)
    lab.change(lab.destination(), 1)
    resync(world)
    content = world.view_content()
    place = Path(lab.destination().drivers[-1].location)
    gone = place.rename(place.with_name("away"))
    if lab.kind == "btrfs":
        make_subvolume(place)
    else:
        Volume.create(place, 1 << 20).close()
    found = world.cli(verb, NAME, *(["--yes"] if verb == "resync" else []))
    assert found.returncode == 1 and "another volume has taken the place" in found.stderr
    assert lab.destination().roles() == [Role.MIRROR, Role.MIRROR, Role.LIVE]
    place.rename(place.with_name("strange"))
    gone.rename(place)
    assert world.status()["state"] == "mirrored" and world.view_content() == content
    world.service.update(NAME)
    assert world.in_step()


def test_a_break_goes_on_without_a_member_whose_disk_is_not_mounted(tmp_path: Path) -> None:
    """Below its path is another kind of file system then."""
    with open_lab("lab_set_btrfs", tmp_path) as lab:
        assert isinstance(lab, SetLab)
        world = SetWorld(lab, tmp_path / "home")
        world.initialized()
        lost = lab.destination().drivers[1]
        parent = Path(lost.location).parent
        subprocess.run(["mount", "-t", "tmpfs", "none", parent], check=True)
        try:
            done = world.service.break_off(NAME)
            assert f"a member is lost and was not made writable: {lost}" in done.text
            there = [lab.destination().drivers[number].facts().role for number in (0, 2)]
            assert there == [Role.LIVE, Role.LIVE]
        finally:
            unmount(parent)
        world.service.break_off(NAME)
        assert set(lab.destination().roles()) == {Role.LIVE}
        resync(world)
        assert world.in_step()
        world.clean_up()


def test_after_a_break_without_a_lost_member_the_next_commands_are_those_that_help(
    ready: SetWorld,
) -> None:
    lost = ready.lab.destination().drivers[1]
    place = Path(lost.facts().view)
    place = place if lost.kind == "block" else place.parent
    gone = place.rename(place.with_name("gone"))
    done = ready.service.break_off(NAME)
    assert f"a member is lost and was not made writable: {lost}" in done.text
    for text in (done.text, ready.cli("explain", NAME).stdout):
        assert f"mount what is missing, then 'mirrord resync {NAME}'" in text
        assert f"'mirrord delete {NAME}', then create a mirror" in text
    gone.rename(place)
    resync(ready)
    assert ready.in_step()


def test_a_break_ends_the_running_transfer_before_it_reads_the_members(
    ready: SetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that answers slowly must not delay that."""
    run, begun = RunFiles(ready.paths.run, NAME), threading.Event()

    def is_aborted() -> bool:
        try:
            run.check_abort()
        except Aborted:
            return True
        return False

    def transfer() -> None:
        with locks.exclusive(run.lock, "update", what="the mirror"):
            run.begin(Activity.TRANSFERRING)
            begun.set()
            until(is_aborted)
            run.end()

    mounted = Members.mounted

    def read(end: Members) -> Members:
        assert locks.holder_of(run.lock) is None
        return mounted(end)

    monkeypatch.setattr(Members, "mounted", read)
    thread = threading.Thread(target=transfer)
    thread.start()
    assert begun.wait(30)
    text = ready.service.break_off(NAME).text
    thread.join()
    assert "A running transfer was aborted first" in text
