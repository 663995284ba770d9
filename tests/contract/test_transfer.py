"""The driver contract, claim by claim: send, receive, commit, and crashes at every step."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Diverged, MirrordError, NotFound, Refused
from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.drivers.contract import Capability
from mirrord.system import steps
from tests.contract.flows import MIRROR, initialized, mirror, request, stage
from tests.contract.lab import Lab, is_either

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


@pytest.mark.one_volume
def test_user_snapshots_are_replicated_in_their_order(lab: Lab) -> None:
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


def test_an_update_from_before_what_is_shown_leaves_the_view_until_it_is_committed(
    lab: Lab,
) -> None:
    """As after the source went back to an older snapshot."""
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    middle = mirror(source, destination, base, "middle")
    before = lab.content(destination)
    lab.change(source, 2)
    last = source.take_snapshot("last")
    if Capability.BLOCK_FOR_BLOCK in destination.capabilities:
        # What is shown has the blocks that would be written: refused, and nothing is touched.
        with pytest.raises(Refused, match="in use"):
            stage(source, destination, base, last, "t")
        assert lab.content(lab.destination()) == before
        return
    stage(source, destination, base, last, "t")
    facts = lab.destination().facts()
    assert facts.shown == middle.guid
    assert lab.content(lab.destination()) == before
    assert destination.commit("t", show=True).guid == last.guid
    assert lab.content(lab.destination()) == lab.content(source)
    kept = [s.guid for s in lab.destination().snapshots()]
    assert {base.guid, middle.guid, last.guid} <= set(kept) and kept[-1] == last.guid


@pytest.mark.one_volume
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


@pytest.mark.one_volume
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


@pytest.mark.one_volume
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


@pytest.mark.one_volume
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


@pytest.mark.one_volume
def test_a_receiver_without_its_base_says_so(lab: Lab) -> None:
    source = lab.source()
    base = source.take_snapshot("base")
    lab.change(source, 1)
    snapshot = source.take_snapshot("next")
    destination = lab.destination()
    destination.prepare(MIRROR)
    with pytest.raises(Diverged):
        destination.receive(request("t", base, snapshot)).close()


@pytest.mark.one_volume
def test_sending_what_is_not_there_says_so(lab: Lab) -> None:
    source = lab.source()
    base = source.take_snapshot("base")
    with pytest.raises((NotFound, Diverged)):
        source.send("no-such-guid", base.guid).close()
    with pytest.raises(NotFound):
        source.send(None, "no-such-guid").close()


@pytest.mark.one_volume
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


# Crashes


class Crash(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.mark.in_process
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
        assert is_either(lab.content(lab.destination()), old, new), seen[number]
        base = attempt(f"n{number}")
        assert lab.content(lab.destination()) == new, seen[number]
        assert lab.destination().stagings() == []
