"""The driver contract (drivers/contract.py), claim by claim: facts, locks, snapshots, delta."""

from __future__ import annotations

import struct

import pytest

from mirrord.core.errors import Busy, Refused, Unsupported
from mirrord.core.model import Role, SnapshotKind
from tests.contract.flows import MIRROR, initialized, mirror
from tests.contract.lab import Lab

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
        destination.rollback(snapshot.guid, mirror_id=MIRROR, keep_as="diverged.1")
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


def test_a_deletion_ends_when_it_is_awaited(lab: Lab) -> None:
    source = lab.source()
    one = source.take_snapshot("one")
    lab.change(source, 1)
    two = source.take_snapshot("two")
    finish = source.begin_delete(one.guid)
    finish()
    assert [s.guid for s in lab.source().snapshots()] == [two.guid]


def test_the_snapshot_that_is_shown_cannot_be_deleted(lab: Lab) -> None:
    _source, destination, base = initialized(lab)
    with pytest.raises(Refused):
        destination.delete_snapshot(base.guid)
    finish = destination.begin_delete(base.guid)
    with pytest.raises(Refused):
        finish()
    assert destination.facts().shown == base.guid


def test_changed_since_sees_every_change_and_no_other(lab: Lab) -> None:
    source = lab.source()
    snapshot = source.take_snapshot("one")
    assert not source.changed_since(snapshot.guid)
    assert not lab.source().changed_since(snapshot.guid)
    lab.change(source, 1)
    assert lab.source().changed_since(snapshot.guid)


@pytest.mark.one_volume
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


@pytest.mark.one_volume
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


# Recording


def allocated(packed: bytes) -> set[tuple[int, int]]:
    """(object, block) of all that runs cover."""
    return {
        (number, block)
        for number, offset, length in struct.iter_unpack("<QQQ", packed)
        for block in range(offset // 4096, -(-(offset + length) // 4096))
    }


@pytest.mark.one_volume
def test_changes_of_a_chain_add_up(lab: Lab) -> None:
    """Nothing that was allocated in its last part is missing from the whole, and nothing is in the
    whole that was allocated in no part; asked again it says the same.
    """
    source = lab.source()
    chain = [source.take_snapshot("one")]
    for seed in (1, 2):
        lab.change(source, seed)
        chain.append(source.take_snapshot(f"after {seed}"))
    one, two, three = (snapshot.guid for snapshot in chain)
    if lab.kind in ("memory", "btrfs-tree"):
        with pytest.raises(Unsupported):
            source.changes(one, two)
        return
    first, second = source.changes(one, two), source.changes(two, three)
    whole = lab.source().changes(one, three)
    assert lab.source().changes(two, three) == second
    assert source.changes(three, three).allocated == b""
    parts = allocated(first.allocated), allocated(second.allocated)
    assert all(parts)
    if lab.kind != "zfs":  # there what is overwritten is at the same place of its object
        assert first.freed and second.freed
    assert parts[1] <= allocated(whole.allocated) <= parts[0] | parts[1]
