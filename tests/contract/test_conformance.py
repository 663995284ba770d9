"""The driver contract (drivers/base.py), claim by claim, on every kind of volume."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Busy, Diverged, MirrordError, NotFound, Refused
from mirrord.core.model import ReceiveRequest, Role, Snapshot, SnapshotKind, Staging
from mirrord.drivers.base import CHUNK_BYTES_MAX, Capability, Driver
from mirrord.system import steps
from tests.contract.lab import Lab

MIRROR = "m1"


def request(transfer_id: str, base: Snapshot | None, snapshot: Snapshot) -> ReceiveRequest:
    return ReceiveRequest(transfer_id, MIRROR, base.guid if base else None, snapshot)


def stage(
    source: Driver, destination: Driver, base: Snapshot | None, snapshot: Snapshot, transfer: str
) -> Staging:
    """Send and receive up to a complete staging."""
    left = {staging.transfer_id: staging for staging in destination.stagings()}.get(transfer)
    checkpoint = dict(left.checkpoint) if left and left.checkpoint else None
    with (
        destination.receive(request(transfer, base, snapshot)) as receiver,
        source.send(base.guid if base else None, snapshot.guid, checkpoint=checkpoint) as stream,
    ):
        while chunk := stream.read():
            assert 0 < len(chunk) <= CHUNK_BYTES_MAX
            receiver.write(chunk)
        return receiver.finish()


def mirror(
    source: Driver, destination: Driver, base: Snapshot | None, name: str, *, show: bool = True
) -> Snapshot:
    """One whole update; returns the source's copy of the incremental."""
    snapshot = source.take_snapshot(name)
    transfer = f"t-{name}"
    staging = stage(source, destination, base, snapshot, transfer)
    assert staging.complete
    assert destination.commit(transfer, show=show).guid == snapshot.guid
    return snapshot


def initialized(lab: Lab) -> tuple[Driver, Driver, Snapshot]:
    source, destination = lab.source(), lab.destination()
    destination.prepare(MIRROR)
    return source, destination, mirror(source, destination, None, "base")


# Facts and roles


def test_facts_tell_live_absent_and_foreign_apart_and_change_nothing(lab: Lab) -> None:
    source = lab.source().facts()
    assert source.role is Role.LIVE and source.identity and source.kind == lab.kind
    assert source.free_bytes > 0
    assert lab.destination().facts().role is Role.ABSENT
    assert lab.destination().facts().role is Role.ABSENT
    assert lab.foreign().facts().role is Role.FOREIGN


def test_prepare_makes_an_empty_mirror_and_may_be_repeated(lab: Lab) -> None:
    destination = lab.destination()
    destination.prepare(MIRROR)
    destination.prepare(MIRROR)
    facts = lab.destination().facts()
    assert facts.role is Role.MIRROR and facts.shown is None and facts.mirror_id == MIRROR
    assert lab.destination().snapshots() == []


def test_prepare_refuses_what_is_not_its_own(lab: Lab) -> None:
    with pytest.raises(Refused):
        lab.foreign().prepare(MIRROR)
    with pytest.raises(Refused):
        lab.source().prepare(MIRROR)
    lab.destination().prepare("other")
    with pytest.raises(Refused):
        lab.destination().prepare(MIRROR)


def test_a_held_lock_names_its_holder(lab: Lab) -> None:
    destination = lab.destination()
    destination.prepare(MIRROR)
    with (
        destination.lock("first"),
        pytest.raises(Busy, match="first"),
        lab.destination().lock("second"),
    ):
        pass
    with lab.destination().lock("third"):
        pass


def test_the_holder_of_the_lock_can_do_everything_under_it(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    with source.lock("update"), destination.lock("update"), destination.lock("again"):
        snapshot = mirror(source, destination, base, "next")
        source.delete_snapshot(base.guid)
        destination.delete_snapshot(base.guid)
        assert destination.facts().shown == snapshot.guid
        destination.promote()
        destination.rollback(snapshot.guid, mirror_id=MIRROR, keep_as=None)
    assert lab.content(lab.destination()) == lab.content(source)


# Snapshots


def test_a_snapshot_stays_as_the_volume_goes_on(lab: Lab) -> None:
    source = lab.source()
    before = lab.content(source)
    snapshot = source.take_snapshot("one")
    lab.change(source, 1)
    assert lab.snapshot_content(source, snapshot.guid) == before != lab.content(source)


def test_taking_the_same_snapshot_again_returns_the_first(lab: Lab) -> None:
    source = lab.source()
    first = source.take_snapshot("one")
    lab.change(source, 1)
    again = lab.source().take_snapshot("one")
    assert again.guid == first.guid
    assert [s.guid for s in lab.source().snapshots()] == [first.guid]


def test_snapshots_are_listed_in_the_order_they_were_taken(lab: Lab) -> None:
    source = lab.source()
    taken = []
    for number, name in enumerate(["zulu", "alpha", "mike"]):
        lab.change(source, number)
        taken.append(source.take_snapshot(name))
    listed = lab.source().snapshots()
    assert [s.name for s in listed] == ["zulu", "alpha", "mike"]
    assert [s.guid for s in listed] == [s.guid for s in taken]
    assert len({s.guid for s in listed}) == 3
    assert all(s.intact and s.kind is SnapshotKind.REFERENCE for s in listed)
    assert [s.order for s in listed] == sorted(s.order for s in listed)


def test_deleting_a_snapshot_may_be_repeated(lab: Lab) -> None:
    source = lab.source()
    one = source.take_snapshot("one")
    lab.change(source, 1)
    two = source.take_snapshot("two")
    source.delete_snapshot(one.guid)
    source.delete_snapshot(one.guid)
    assert [s.guid for s in lab.source().snapshots()] == [two.guid]


def test_the_snapshot_that_is_shown_cannot_be_deleted(lab: Lab) -> None:
    _source, destination, base = initialized(lab)
    with pytest.raises(Refused):
        destination.delete_snapshot(base.guid)
    assert destination.facts().shown == base.guid


def test_changed_since_sees_every_change_and_no_other(lab: Lab) -> None:
    source = lab.source()
    snapshot = source.take_snapshot("one")
    assert not source.changed_since(snapshot.guid)
    assert not lab.source().changed_since(snapshot.guid)
    lab.change(source, 1)
    assert lab.source().changed_since(snapshot.guid)


def test_the_owners_snapshots_are_found_by_pattern(lab: Lab) -> None:
    source = lab.source()
    lab.own_snapshot(source, "daily.1")
    lab.change(source, 1)
    lab.own_snapshot(source, "daily.2")
    lab.own_snapshot(source, "other")
    found = lab.source().own_snapshots(("daily.*",))
    assert [s.name for s in found] == ["daily.1", "daily.2"]
    assert all(s.kind is SnapshotKind.OWN for s in found)
    assert lab.source().own_snapshots(()) == []


# Delta


def test_delta_counts_the_four_states(lab: Lab) -> None:
    source = lab.source()
    base = source.take_snapshot("base")
    lab.change(source, 1)
    incremental = source.take_snapshot("incremental")
    whole = source.delta(None, base.guid, states=True).states
    delta = source.delta(base.guid, incremental.guid, states=True)
    states = delta.states
    assert whole is not None and states is not None
    assert states.added > 0 and states.deleted > 0 and states.unchanged > 0 and states.unused >= 0
    assert states.unchanged + states.deleted == whole.added
    back = source.delta(incremental.guid, base.guid, states=True).states
    assert back is not None
    assert (back.added, back.deleted, back.unchanged) == (
        states.deleted,
        states.added,
        states.unchanged,
    )


def test_delta_of_equal_snapshots_is_empty(lab: Lab) -> None:
    source = lab.source()
    one = source.take_snapshot("one")
    two = source.take_snapshot("two")
    delta = source.delta(one.guid, two.guid, states=True)
    assert delta.added_bytes == 0
    assert delta.states is not None and delta.states.added == delta.states.deleted == 0


def test_the_quick_delta_says_what_will_be_sent(lab: Lab) -> None:
    source = lab.source()
    base = source.take_snapshot("base")
    lab.change(source, 1)
    incremental = source.take_snapshot("incremental")
    delta = source.delta(base.guid, incremental.guid)
    assert delta.added_bytes > 0
    with source.send(base.guid, incremental.guid) as stream:
        length = 0
        while chunk := stream.read():
            length += len(chunk)
    assert length / 4 <= delta.send_bytes <= length * 4 + 65536


# Transfer and commit


def test_initialize_and_updates_carry_all_content(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    assert lab.content(destination) == lab.content(source)
    for number in range(3):
        lab.change(source, number)
        base = mirror(source, destination, base, f"update{number}")
        assert lab.content(lab.destination()) == lab.content(source)
        assert destination.facts().shown == base.guid
    ours = {s.guid: s for s in lab.source().snapshots()}
    for snapshot in lab.destination().snapshots():
        assert snapshot.intact
        assert snapshot.name == ours[snapshot.guid].name
        assert snapshot.taken_at_ns == ours[snapshot.guid].taken_at_ns
        assert lab.snapshot_content(destination, snapshot.guid) == lab.snapshot_content(
            source, snapshot.guid
        )


def test_nothing_is_visible_before_commit(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    before = lab.content(destination)
    lab.change(source, 1)
    snapshot = source.take_snapshot("next")
    stage(source, destination, base, snapshot, "t")
    assert lab.content(lab.destination()) == before
    assert [s.guid for s in lab.destination().snapshots()] == [base.guid]
    [staging] = lab.destination().stagings()
    assert staging.complete and staging.transfer_id == "t"
    assert staging.snapshot.guid == snapshot.guid and staging.base == base.guid
    lab.destination().commit("t", show=True)
    assert lab.content(lab.destination()) == lab.content(source)
    assert lab.destination().stagings() == []


def test_the_owners_snapshots_go_along_in_their_place(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    lab.own_snapshot(source, "daily")
    lab.change(source, 2)
    last = source.take_snapshot("last")
    [own] = source.own_snapshots(("daily",))
    assert base.order < own.order < last.order, "orders of all kinds compare"
    stage(source, destination, base, own, "t-own")
    destination.commit("t-own", show=False)
    stage(source, destination, own, last, "t-last")
    destination.commit("t-last", show=True)
    listed = lab.destination().snapshots()
    assert [s.guid for s in listed] == [base.guid, own.guid, last.guid]
    assert [s.kind for s in listed] == [
        SnapshotKind.REFERENCE,
        SnapshotKind.OWN,
        SnapshotKind.REFERENCE,
    ]
    assert lab.snapshot_content(destination, own.guid) == lab.snapshot_content(source, own.guid)
    assert lab.content(destination) == lab.content(source)


def test_commit_may_be_repeated_and_needs_a_staging(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    snapshot = mirror(source, destination, base, "next")
    assert lab.destination().commit("t-next", show=True).guid == snapshot.guid
    with pytest.raises(NotFound):
        destination.commit("never", show=True)


def test_a_commit_that_does_not_show_leaves_the_view(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    before = lab.content(destination)
    lab.change(source, 1)
    middle = mirror(source, destination, base, "middle", show=False)
    assert lab.content(lab.destination()) == before
    assert destination.facts().shown == base.guid
    lab.change(source, 2)
    last = mirror(source, destination, middle, "last")
    assert lab.content(lab.destination()) == lab.content(source)
    assert [s.guid for s in destination.snapshots()] == [base.guid, middle.guid, last.guid]


def test_an_interrupted_receive_leaves_the_destination_as_it_was(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    before = lab.content(destination)
    lab.change(source, 1)
    snapshot = source.take_snapshot("next")
    with (
        destination.receive(request("t", base, snapshot)) as receiver,
        source.send(base.guid, snapshot.guid) as stream,
    ):
        receiver.write(bytes(stream.read())[:100])
    assert lab.content(lab.destination()) == before
    assert not any(staging.complete for staging in lab.destination().stagings())
    with pytest.raises(MirrordError):
        lab.destination().commit("t", show=True)
    stage(source, lab.destination(), base, snapshot, "t")
    destination.commit("t", show=True)
    assert lab.content(lab.destination()) == lab.content(source)


def test_discard_removes_every_trace(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    snapshot = source.take_snapshot("next")
    stage(source, destination, base, snapshot, "t")
    destination.discard("t")
    destination.discard("t")
    assert lab.destination().stagings() == []
    assert [s.guid for s in lab.destination().snapshots()] == [base.guid]
    mirror(source, lab.destination(), base, "after")


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_damaged_stream_is_never_committed(lab: Lab, where: str) -> None:
    source, destination, base = initialized(lab)
    before = lab.content(destination)
    lab.change(source, 1)
    snapshot = source.take_snapshot("next")
    with source.send(base.guid, snapshot.guid) as stream:
        whole = bytearray()
        while chunk := stream.read():
            whole += chunk
    position = {"first": 2, "middle": len(whole) // 2, "last": len(whole) - 2}[where]
    whole[position] ^= 0x40
    with (
        pytest.raises(MirrordError),
        destination.receive(request("t", base, snapshot)) as receiver,
    ):
        receiver.write(bytes(whole))
        receiver.finish()
    assert lab.content(lab.destination()) == before
    assert not any(staging.complete for staging in lab.destination().stagings())


@pytest.mark.parametrize("kept", [0, 1, 100, -100, -1])
def test_a_stream_that_ends_early_is_never_complete(lab: Lab, kept: int) -> None:
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    snapshot = source.take_snapshot("next")
    with source.send(base.guid, snapshot.guid) as stream:
        whole = b""
        while chunk := stream.read():
            whole += bytes(chunk)
    with (
        pytest.raises(MirrordError),
        destination.receive(request("t", base, snapshot)) as receiver,
    ):
        if whole[:kept]:
            receiver.write(whole[:kept])
        receiver.finish()
    assert not any(staging.complete for staging in lab.destination().stagings())


def test_a_stream_of_another_snapshot_is_refused(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    one = source.take_snapshot("one")
    lab.change(source, 2)
    two = source.take_snapshot("two")
    with (
        pytest.raises(MirrordError),
        destination.receive(request("t", base, one)) as receiver,
        source.send(base.guid, two.guid) as stream,
    ):
        while chunk := stream.read():
            receiver.write(chunk)
        receiver.finish()
    assert not any(staging.complete for staging in lab.destination().stagings())


def test_a_receiver_without_its_base_says_so(lab: Lab) -> None:
    source = lab.source()
    base = source.take_snapshot("base")
    lab.change(source, 1)
    snapshot = source.take_snapshot("next")
    destination = lab.destination()
    destination.prepare(MIRROR)
    with pytest.raises(Diverged):
        destination.receive(request("t", base, snapshot)).close()


def test_sending_what_is_not_there_says_so(lab: Lab) -> None:
    source = lab.source()
    base = source.take_snapshot("base")
    with pytest.raises((NotFound, Diverged)):
        source.send("no-such-guid", base.guid).close()
    with pytest.raises(NotFound):
        source.send(None, "no-such-guid").close()


def test_a_stream_is_the_same_each_time(lab: Lab) -> None:
    source = lab.source()
    base = source.take_snapshot("base")
    lab.change(source, 1)
    snapshot = source.take_snapshot("next")
    streams = []
    for _ in range(2):
        with lab.source().send(base.guid, snapshot.guid) as stream:
            whole = b""
            while chunk := stream.read():
                whole += bytes(chunk)
        streams.append(whole)
    assert streams[0] == streams[1]


def test_a_receive_goes_on_from_its_checkpoint(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    if Capability.RESUME not in destination.capabilities:
        return  # such a driver promises a clean restart: tested above
    for number in range(4):
        lab.change(source, number)
    snapshot = source.take_snapshot("next")
    with (
        destination.receive(request("t", base, snapshot)) as receiver,
        source.send(base.guid, snapshot.guid) as stream,
    ):
        whole = b""
        while chunk := stream.read():
            whole += bytes(chunk)
        receiver.write(whole[: len(whole) // 2])
    [staging] = lab.destination().stagings()
    assert staging.checkpoint and not staging.complete and staging.received_bytes > 0
    with lab.source().send(base.guid, snapshot.guid, checkpoint=dict(staging.checkpoint)) as stream:
        rest = 0
        while chunk := stream.read():
            rest += len(chunk)
    assert rest < len(whole)
    stage(source, lab.destination(), base, snapshot, "t")
    lab.destination().commit("t", show=True)
    assert lab.content(lab.destination()) == lab.content(source)


# Failing over and back


def test_promote_makes_the_view_writable_and_may_be_repeated(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    before = lab.content(destination)
    destination.promote()
    destination.promote()
    facts = lab.destination().facts()
    assert facts.role is Role.LIVE and facts.origin == base.guid
    assert lab.content(lab.destination()) == before
    lab.change(lab.destination(), 7)
    assert lab.content(lab.destination()) != before == lab.content(source)
    assert lab.destination().changed_since(base.guid)
    assert lab.snapshot_content(lab.destination(), base.guid) == before


def test_rollback_shows_what_is_lost_and_keeps_it(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    common = lab.content(destination)
    destination.promote()
    assert destination.divergence(base.guid).empty
    lab.change(destination, 7)
    losing = lab.content(destination)
    lost = lab.destination().divergence(base.guid)
    assert not lost.empty and lost.changed_bytes > 0 and lost.total_changes > 0
    for _ in range(2):
        lab.destination().rollback(base.guid, mirror_id=MIRROR, keep_as="diverged.1")
    facts = lab.destination().facts()
    assert facts.role is Role.MIRROR and facts.shown == base.guid and facts.mirror_id == MIRROR
    assert lab.content(lab.destination()) == common
    [kept] = [s for s in lab.destination().snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert kept.name == "diverged.1"
    assert lab.snapshot_content(lab.destination(), kept.guid) == losing
    lab.change(source, 8)
    mirror(source, lab.destination(), base, "after")
    assert lab.content(lab.destination()) == lab.content(source)
    assert lab.snapshot_content(lab.destination(), kept.guid) == losing


def test_a_mirror_goes_back_the_other_way_incrementally(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    destination.promote()
    lab.change(destination, 5)
    lab.change(source, 6)
    losing = lab.content(source)
    source.rollback(base.guid, mirror_id=MIRROR, keep_as="diverged.1")
    new_source, new_destination = lab.destination(), lab.source()
    back = mirror(new_source, new_destination, base, "back")
    assert lab.content(lab.source()) == lab.content(lab.destination())
    [kept] = [s for s in lab.source().snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert lab.snapshot_content(lab.source(), kept.guid) == losing
    new_destination.promote()
    lab.change(new_destination, 9)
    new_source.rollback(back.guid, mirror_id=MIRROR, keep_as=None)
    mirror(lab.source(), lab.destination(), back, "forth")
    assert lab.content(lab.source()) == lab.content(lab.destination())


def test_live_operations_refuse_a_mirror_and_the_other_way_round(lab: Lab) -> None:
    source, destination, _base = initialized(lab)
    with pytest.raises(Refused):
        destination.take_snapshot("no")
    with pytest.raises(Refused):
        source.receive(request("t", None, source.snapshots()[0])).close()


def test_forget_keeps_view_and_snapshots(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    stage(source, destination, base, source.take_snapshot("next"), "t")
    before = lab.content(destination)
    destination.forget()
    destination.forget()
    assert lab.content(lab.destination()) == before
    assert lab.destination().stagings() == []


# Crashes


class Crash(BaseException):
    """Stands for the end of the process: nothing catches it."""


def test_a_crash_at_any_step_is_mended_by_doing_it_again(lab: Lab) -> None:
    """Crash at each labelled step of an update in turn; the repeated update must succeed, and
    until then the view shows either the old or the new content, whole.
    """
    source, destination, base = initialized(lab)
    seen: list[str] = []

    def attempt(name: str) -> Snapshot:
        source, destination = lab.source(), lab.destination()
        snapshot = source.take_snapshot(name)
        if snapshot.guid not in [s.guid for s in destination.snapshots()]:
            for staging in destination.stagings():
                if not staging.complete:
                    destination.discard(staging.transfer_id)
            done = [s.transfer_id for s in destination.stagings() if s.complete]
            if not done:
                stage(source, destination, base, snapshot, f"t-{name}")
        destination.commit(f"t-{name}", show=True)
        return snapshot

    lab.change(source, 0)
    steps.observe(seen.append)
    try:
        base = attempt("learn")
    finally:
        steps.observe(None)
    assert len(seen) >= 3, "an update passes labelled steps"
    for number in range(len(seen)):
        lab.change(source, number + 1)
        old, new = lab.content(destination), lab.content(source)
        left = number

        def crash(label: str) -> None:
            nonlocal left
            if left == 0:
                left = -1
                raise Crash(label)
            left -= 1

        steps.observe(crash)
        try:
            with pytest.raises(Crash):
                attempt(f"n{number}")
        finally:
            steps.observe(None)
        assert lab.content(lab.destination()) in (old, new), seen[number]
        base = attempt(f"n{number}")
        assert lab.content(lab.destination()) == new, seen[number]
        assert lab.destination().stagings() == []
