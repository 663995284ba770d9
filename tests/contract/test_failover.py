"""The driver contract, claim by claim: promote, rollback, forget."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Refused
from mirrord.core.model import Role, SnapshotKind
from tests.contract.flows import MIRROR, initialized, mirror, request, stage, volumes
from tests.contract.lab import Lab
from tests.support.snapshots import is_empty

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
    assert is_empty(destination.divergence(base.guid))
    lab.change(destination, 7)
    losing = lab.content(destination)
    lost = lab.destination().divergence(base.guid)
    assert not is_empty(lost) and lost.changed_bytes > 0 and lost.total_changes > 0
    for _ in range(2):
        name = lab.destination().rollback(base.guid, mirror_id=MIRROR, keep_as="diverged.1")
        assert name == "diverged.1"
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
    new_source.rollback(back.guid, mirror_id=MIRROR, keep_as="diverged.2")
    mirror(lab.source(), lab.destination(), back, "forth")
    assert lab.content(lab.source()) == lab.content(lab.destination())


def test_live_operations_refuse_a_mirror_and_the_other_way_round(lab: Lab) -> None:
    source, destination, _base = initialized(lab)
    with pytest.raises(Refused):
        destination.take_snapshot("no")
    with pytest.raises(Refused):
        volumes(source)[0].receive(request("t", None, source.snapshots()[0])).close()


def test_forget_keeps_view_and_snapshots(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    lab.change(source, 1)
    stage(source, destination, base, source.take_snapshot("next"), "t")
    before = lab.content(destination)
    destination.forget()
    destination.forget()
    assert lab.content(lab.destination()) == before
    assert lab.destination().stagings() == []
