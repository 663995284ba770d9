"""The life of a mirror, verb by verb, on every kind of volume."""

from __future__ import annotations

import errno
import threading
import time

import pytest

from mirrord.core.errors import Diverged, MirrordError, NotFound, Refused
from mirrord.core.model import SnapshotKind
from mirrord.system import clock, locks, steps
from tests.support.places import away
from tests.support.snapshots import delete_by_force
from tests.support.world import NAME, World


@pytest.mark.both_ways
def test_initialize_and_updates_keep_the_destination_in_step(world: World) -> None:
    world.initialized()
    assert world.in_step()
    for seed in range(3):
        world.lab.change(world.lab.source(), seed)
        assert not world.in_step()
        assert world.service.update(NAME).status == "done"
        assert world.in_step()
    status = world.status()
    assert status["state"] == "mirrored" and status["healthy"] and status["activity"] == "idle"
    assert status["lag_s"] < 60


def test_an_unchanged_source_takes_no_snapshot_and_refreshes_the_lag(world: World) -> None:
    world.initialized()
    before = world.service.snapshots(NAME).snapshots
    assert world.service.update(NAME).status == "unchanged"
    assert world.service.snapshots(NAME).snapshots == before
    began_s = time.monotonic()
    assert world.again().update(NAME).status == "unchanged"
    assert world.status()["lag_s"] < time.monotonic() - began_s + 0.1, "it counts from then on"


def test_a_mirror_must_be_initialized_first_and_only_once(world: World) -> None:
    world.create()
    for verb in (world.service.update, world.service.break_off):
        with pytest.raises(Refused, match="never initialized"):
            verb(NAME)
    with pytest.raises(Refused):
        world.service.resync(NAME, yes=True)
    world.service.initialize(NAME)
    with pytest.raises(Refused, match="already initialized"):
        world.service.initialize(NAME)


def test_quiesce_survives_restarts_and_refuses_transfers(world: World) -> None:
    world.initialized()
    assert world.service.quiesce(NAME).status == "done"
    assert world.again().quiesce(NAME).status == "already_quiesced"
    world.lab.change(world.lab.source(), 1)
    with pytest.raises(Refused, match="quiesced"):
        world.service.update(NAME)
    assert world.status()["activity"] == "quiesced"
    assert world.service.resume(NAME).status == "done"
    assert world.service.resume(NAME).status == "already_resumed"
    assert world.service.update(NAME).status == "done"
    assert world.in_step()


@pytest.mark.both_ways
def test_break_write_and_resync_keeps_the_losing_side(world: World) -> None:
    world.initialized()
    assert world.service.break_off(NAME).status == "done"
    assert world.again().break_off(NAME).status == "already_broken-off"
    assert world.status()["state"] == "broken-off"
    world.lab.change(world.lab.destination(), 5)
    losing = world.view_content()
    world.lab.change(world.lab.source(), 6)
    with pytest.raises(Refused, match="broken off"):
        world.service.update(NAME)
    asked = world.service.resync(NAME, yes=False)
    assert asked.status == "confirmation-required" and asked.data["lost_changes"] > 0
    assert world.view_content() == losing, "asking changes nothing"
    done = world.service.resync(NAME, yes=True)
    assert done.status == "done"
    assert world.in_step()
    assert world.status()["state"] == "mirrored"
    destination = world.lab.destination()
    [kept] = [s for s in destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert world.lab.snapshot_content(destination, kept.guid) == losing
    world.lab.change(world.lab.source(), 7)
    world.service.update(NAME)
    assert world.in_step()


def test_what_is_refused_for_a_missing_destination_is_not_done_later(world: World) -> None:
    world.initialized()
    with away(world.lab, world.lab.destination()):
        for verb in (
            world.service.break_off,
            lambda name: world.service.resync(name, yes=True),
            lambda name: world.service.reverse(name, yes=True),
        ):
            with pytest.raises(Refused, match=r"destination is missing|not possible now"):
                verb(NAME)
    world.lab.change(world.lab.source(), 5)
    assert world.again().update(NAME).status == "done", "no break was waiting for it"
    assert world.status()["state"] == "mirrored"


@pytest.mark.both_ways
def test_reverse_after_a_break_and_back_again(world: World) -> None:
    world.initialized()
    old_source, old_destination = world.end("source"), world.end("destination")
    world.service.break_off(NAME)
    world.lab.change(world.lab.destination(), 5)
    winning = world.view_content()
    assert world.service.reverse(NAME, yes=False).status == "confirmation-required"
    assert world.service.reverse(NAME, yes=True).status == "done"
    assert world.source_content() == winning == world.view_content()
    status = world.status()
    assert (status["source"], status["destination"]) == (old_destination, old_source)
    world.lab.change(world.lab.destination(), 6)
    assert world.again().update(NAME).status == "done"
    assert world.in_step()
    assert world.service.reverse(NAME, yes=True).status == "done"
    assert world.status()["source"] == old_source
    world.lab.change(world.lab.source(), 7)
    assert world.service.update(NAME).status == "done"
    assert world.in_step()


@pytest.mark.both_ways
def test_reverse_of_a_working_mirror_carries_the_last_changes_first(world: World) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 1)
    newest = world.source_content()
    assert world.service.reverse(NAME, yes=True).status == "done"
    assert world.view_content() == newest == world.source_content()
    assert world.status()["state"] == "mirrored"


def test_resync_goes_on_when_the_base_was_deleted_at_the_source(world: World) -> None:
    world.initialized(keep_source=3)
    world.lab.change(world.lab.source(), 1)
    world.service.update(NAME)
    source = world.lab.source()
    delete_by_force(source, source.snapshots()[-1].guid)
    world.lab.change(world.lab.source(), 2)
    before = world.view_content()
    with pytest.raises(Diverged, match="no longer exists at the source") as caught:
        world.again().update(NAME)
    assert f"mirrord resync {NAME}" in caught.value.hint
    assert world.view_content() == before
    assert "blocked" in world.service.explain(NAME).text
    assert (
        not world.status()["healthy"]
        and "no longer exists at the source" in world.status()["problems"][0]
    )
    assert world.service.resync(NAME, yes=True).status == "done"
    assert world.in_step()


def test_a_source_that_was_returned_to_an_earlier_state_can_be_brought_forward(
    world: World,
) -> None:
    """Only the destination has what was written since: error and plan say so, and name the way."""
    world.initialized(keep_source=3, keep_destination=5)
    for number in (1, 2):
        world.lab.change(world.lab.source(), number)
        world.service.update(NAME)
    wanted, source = world.view_content(), world.lab.source()
    earlier, *newer = source.snapshots()
    source.rollback(earlier.guid, mirror_id="f" * 32, keep_as="diverged")
    source.promote(earlier.guid)
    for one in source.snapshots():
        if one.guid != earlier.guid:
            delete_by_force(source, one.guid)
    with pytest.raises(Diverged) as caught:
        world.again().update(NAME)
    way = f"mirrord restore {NAME} --all --snapshot {newer[-1].name}"
    assert way in caught.value.hint
    plan = world.service.resync(NAME, yes=False)
    assert way in plan.text
    assert plan.data["newer_snapshots"] == [one.name for one in newer]
    done = world.service.restore_all(NAME, snapshot=newer[-1].name, yes=True)
    assert done.status == "done"
    assert world.source_content() == wanted
    world.service.update(NAME)
    assert world.in_step()
    assert way not in world.service.resync(NAME, yes=False).text


def test_without_any_common_snapshot_nothing_is_sent_silently(world: World) -> None:
    world.initialized()
    source = world.lab.source()
    for snapshot in source.snapshots():
        delete_by_force(source, snapshot.guid)
    world.lab.change(world.lab.source(), 1)
    before = world.view_content()
    with pytest.raises(Diverged) as caught:
        world.service.update(NAME)
    assert "create the mirror again" in caught.value.hint
    with pytest.raises(Diverged):
        world.service.resync(NAME, yes=True)
    assert world.view_content() == before


@pytest.mark.both_ways
def test_user_snapshots_are_replicated(world: World) -> None:
    world.lab.own_snapshot(world.lab.source(), "daily.0")
    world.initialized(snapshots=("daily.*",))
    for number in (1, 2):
        world.lab.change(world.lab.source(), number)
        world.lab.own_snapshot(world.lab.source(), f"daily.{number}")
    world.lab.own_snapshot(world.lab.source(), "private")
    world.lab.change(world.lab.source(), 3)
    world.service.update(NAME)
    assert world.in_step()
    destination = world.lab.destination()
    own = [s for s in destination.snapshots() if s.kind is SnapshotKind.OWN]
    assert [s.name for s in own] == ["daily.0", "daily.1", "daily.2"]
    theirs = {s.guid: s for s in world.lab.source().own_snapshots(("daily.*",))}
    for snapshot in own:
        assert world.lab.snapshot_content(destination, snapshot.guid) == world.lab.snapshot_content(
            world.lab.source(), theirs[snapshot.guid].guid
        )


def test_pruning_keeps_what_the_definition_says(world: World) -> None:
    world.initialized(keep_source=2, keep_destination=3)
    for seed in range(5):
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
    assert len(world.lab.source().snapshots()) == 2
    assert len(world.lab.destination().snapshots()) == 3
    shared = {s.guid for s in world.lab.source().snapshots()}
    assert world.lab.destination().facts().shown in shared


@pytest.mark.parametrize("jump_s", [366 * 86400, -366 * 86400])
def test_a_clock_that_jumps_loses_and_reorders_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    world.initialized(keep_source=10, keep_destination=10)
    world.lab.change(world.lab.source(), 1)
    world.service.update(NAME)
    kept = [s.guid for s in world.lab.destination().snapshots()]
    true_now = clock.now_ns
    monkeypatch.setattr(clock, "now_ns", lambda: true_now() + jump_s * 10**9)
    world.lab.change(world.lab.source(), 2)
    assert world.again().update(NAME).status == "done"
    assert world.in_step()
    assert [s.guid for s in world.lab.destination().snapshots()][:-1] == kept
    monkeypatch.undo()
    world.lab.change(world.lab.source(), 3)
    assert world.again().update(NAME).status == "done"
    assert world.in_step()
    assert [s.guid for s in world.lab.destination().snapshots()][:-2] == kept


def test_a_lost_catalogue_is_found_anew_from_the_ends(world: World) -> None:
    world.initialized()
    world.service.close()
    for file in world.paths.state.iterdir():
        file.unlink()
    assert world.again().status(NAME)[0].state == "mirrored"
    world.lab.change(world.lab.source(), 1)
    assert world.service.update(NAME).status == "done"
    assert world.in_step()


@pytest.mark.in_process
def test_reports_do_not_write_a_lost_catalogue_anew(world: World) -> None:
    world.initialized()
    before = world.status()
    world.service.close()
    for file in world.paths.state.iterdir():
        file.unlink()
    service = world.again()
    for key in ("state", "confirmed_ns", "shown", "view", "problems"):
        assert world.status()[key] == before[key], key
    assert service.explain(NAME).status == "mirrored"
    assert service.schedule_next(NAME).name == NAME
    assert service.catalogue.mirror(before["id"]) is None


def test_delta_with_a_lost_catalogue(world: World) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 1)
    world.service.close()
    for file in world.paths.state.iterdir():
        file.unlink()
    before = world.lab.source().snapshots()
    found = world.again().delta(NAME, base=None, incremental=None, states=False, files=False)
    assert found.base == before[-1].name and found.send_bytes > 0
    assert world.lab.source().snapshots() == before
    assert world.status()["state"] == "mirrored"


@pytest.mark.both_ways
def test_restore_all_brings_the_source_back(world: World) -> None:
    world.initialized()
    old = world.source_content()
    first = world.lab.destination().facts().shown
    world.lab.change(world.lab.source(), 1)
    world.service.update(NAME)
    middle = world.source_content()
    world.lab.change(world.lab.source(), 2)
    newest = world.source_content()
    assert (
        world.service.restore_all(NAME, snapshot=None, yes=False).status == "confirmation-required"
    )
    assert world.service.restore_all(NAME, snapshot=None, yes=True).status == "done"
    assert world.source_content() == middle
    [kept] = [s for s in world.lab.source().snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert world.lab.snapshot_content(world.lab.source(), kept.guid) == newest
    assert world.again().restore_all(NAME, snapshot=first, yes=True).status == "done"
    assert world.source_content() == old
    world.lab.change(world.lab.source(), 3)
    assert world.service.update(NAME).status == "done"
    assert world.in_step()


def test_release_and_delete_clean_up_the_source_and_keep_the_destination(world: World) -> None:
    world.initialized()
    content = world.view_content()
    with pytest.raises(Refused, match="base snapshot"):
        world.service.release(NAME)
    with pytest.raises(Refused, match="not broken off"):
        world.service.delete(NAME, yes=False, keep_snapshots=False)
    world.service.break_off(NAME)
    assert world.service.release(NAME).status == "done"
    assert world.lab.source().snapshots() == []
    assert world.status()["state"] == "uninitialized"
    assert world.service.delete(NAME, yes=False, keep_snapshots=False).status == "done"
    assert world.view_content() == content
    with pytest.raises(NotFound):
        world.service.status(NAME)


@pytest.mark.both_ways
def test_delta_shows_the_four_states_and_leaves_no_trace(world: World) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 1)
    before = world.lab.source().snapshots()
    found = world.service.delta(NAME, base=None, incremental=None, states=True, files=False)
    assert found.states and found.states.added > 0 and found.send_bytes > 0
    assert world.lab.source().snapshots() == before
    assert world.service.update(NAME).status == "done"
    history = world.service.history(NAME, limit=10)
    sent = history.transfers[0].stream_bytes
    assert sent / 4 < found.send_bytes < sent * 4 + 65536


def test_create_refuses_unsuitable_volumes(world: World) -> None:
    lab = world.lab
    source, destination = world.end("source"), world.end("destination")
    with pytest.raises(Refused, match="not empty"):
        world.service.create("m", source, str(lab.foreign()))
    with pytest.raises(MirrordError, match="inside"):
        world.service.create("m", source, source + "/below")
    with pytest.raises(MirrordError, match="the same"):
        world.service.create("m", source, source)
    with pytest.raises(MirrordError):
        world.service.create("m", str(lab.foreign()), destination)
    with pytest.raises(Refused, match="no volume"):
        world.service.create("m", source + ".nowhere", destination)
    for name in ("a/b", "", ".hidden", "x" * 65, "a b"):
        with pytest.raises(MirrordError, match="is not a valid name for a mirror"):
            world.service.create(name, source, destination)
    world.create()
    with pytest.raises(MirrordError, match="same destination"):
        world.service.create("other", source, destination)
    with pytest.raises(MirrordError, match="already exists"):
        world.create()


def test_create_notes_a_folder_that_is_missing_above_the_destination(world: World) -> None:
    missing = world.end("destination") + ".missing/copy"
    made = world.service.create("m", world.end("source"), missing)
    below = any("does not exist" in note for note in made.data["notes"])
    assert below != missing.startswith("block:"), made.data["notes"]


def test_two_mirrors_of_one_source_do_not_disturb_each_other(world: World) -> None:
    world.initialized(keep_source=1)
    second = str(world.lab.destination()) + "2"
    world.service.create("second", str(world.lab.source()), second, keep_source=1)
    world.service.initialize("second")
    for seed in range(3):
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
        assert world.in_step()
    world.lab.change(world.lab.source(), 9)
    assert world.service.update("second").status == "done"
    assert world.service.update(NAME).status == "done"
    assert len(world.lab.source().snapshots()) == 2
    assert world.in_step()


def test_a_destination_that_somebody_made_live_is_not_overwritten(world: World) -> None:
    world.initialized()
    world.lab.destination().promote()
    world.lab.change(world.lab.destination(), 4)
    theirs = world.view_content()
    world.lab.change(world.lab.source(), 1)
    assert world.status()["state"] == "broken-off" and not world.status()["healthy"]
    with pytest.raises(Refused):
        world.service.update(NAME)
    assert world.view_content() == theirs
    world.service.resync(NAME, yes=True)
    assert world.in_step()


def test_a_destination_that_is_not_there_is_not_taken_for_a_new_one(world: World) -> None:
    world.initialized()
    world.service.close()
    with away(world.lab, world.lab.destination()):
        world.lab.change(world.lab.source(), 1)
        with pytest.raises(Refused, match="the destination is missing") as caught:
            world.again().update(NAME)
        assert "mounted" in caught.value.hint
        world.service.close()
        for file in world.paths.state.iterdir():
            file.unlink()
        assert world.again().status(NAME)[0].state == "uninitialized"
    assert world.status()["state"] == "mirrored"
    assert world.service.update(NAME).status == "done"
    assert world.in_step()


def test_a_reverse_that_would_orphan_another_mirror_is_refused(world: World) -> None:
    world.initialized()
    second = world.end("destination") + "2"
    world.service.create("second", world.end("source"), second)
    with pytest.raises(Refused, match="second would have no source"):
        world.service.reverse(NAME, yes=True)
    assert world.status()["state"] == "mirrored"


def test_a_diverged_snapshot_can_be_deleted_and_no_other(world: World) -> None:
    world.initialized()
    world.service.break_off(NAME)
    world.lab.change(world.lab.destination(), 1)
    kept = world.service.resync(NAME, yes=True).data["kept_as"]
    shown = world.status()["shown"]
    with pytest.raises(Refused, match="not a diverged"):
        world.service.delete_diverged(NAME, shown)
    with pytest.raises(NotFound):
        world.service.delete_diverged(NAME, "nonsense")
    assert world.service.delete_diverged(NAME, kept).status == "done"
    kinds = {s.kind for s in world.lab.destination().snapshots()}
    assert SnapshotKind.DIVERGED not in kinds
    assert world.in_step()


def test_asking_who_holds_a_lock_disturbs_nobody(world: World) -> None:
    world.initialized()
    lock, done = world.paths.run / f"{NAME}.lock", threading.Event()

    def ask() -> None:
        while not done.is_set():
            locks.holder_of(lock)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(300):
            with locks.exclusive(lock, "test", what="the lock"):
                pass
    finally:
        done.set()
        asking.join()


@pytest.mark.in_process  # the failure is injected into this process
def test_a_failure_before_the_transfer_is_seen_later_and_clears(world: World) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 1)

    def fail(label: str) -> None:
        if "SNAPSHOT" in label:
            raise OSError(errno.EIO, "injected", label)

    steps.observe(fail)
    with pytest.raises((MirrordError, OSError)):
        world.service.update(NAME)
    steps.observe(None)
    assert not world.again().status(NAME)[0].healthy
    world.service.update(NAME)
    assert world.status()["healthy"]
