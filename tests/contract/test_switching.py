"""The driver contract, claim by claim: what keeps a switch of a live volume from losing a write."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Busy, MirrordError, NotFound
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.contract import Driver
from mirrord.system import clock
from tests.contract.flows import MIRROR, initialized, mirror
from tests.contract.lab import Lab


def diverged(driver: Driver) -> dict[str, str]:
    """What is kept: name to guid."""
    return {s.name: s.guid for s in driver.snapshots() if s.kind is SnapshotKind.DIVERGED}


def promoted(lab: Lab) -> tuple[Driver, Driver, str]:
    source, destination, base = initialized(lab)
    destination.promote()
    return source, destination, base.guid


# Promote


def test_an_older_snapshot_can_be_promoted_and_the_newer_stay(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    old = lab.content(destination)
    lab.change(source, 1)
    newer = mirror(source, destination, base, "newer")
    assert lab.content(destination) != old
    destination.promote(base.guid)
    destination.promote(base.guid)
    facts = lab.destination().facts()
    assert facts.role is Role.LIVE and facts.origin == base.guid
    assert lab.content(lab.destination()) == old
    assert {base.guid, newer.guid} <= {s.guid for s in lab.destination().snapshots()}
    lab.change(lab.destination(), 2)
    assert lab.snapshot_content(lab.destination(), newer.guid) == lab.content(source)
    kept = lab.destination().rollback(newer.guid, mirror_id=MIRROR, keep_as="mine")
    assert kept == "mine"
    assert lab.content(lab.destination()) == lab.content(source)
    lab.sound(lab.destination())


def test_a_snapshot_that_is_not_there_is_not_promoted(lab: Lab) -> None:
    _source, destination, base = initialized(lab)
    with pytest.raises(MirrordError):
        destination.promote("0" * 32)
    facts = lab.destination().facts()
    assert facts.role is Role.MIRROR and facts.shown == base.guid


# Rollback


def test_a_rollback_keeps_nothing_that_is_proven_superfluous(lab: Lab) -> None:
    _source, destination, base = promoted(lab)
    for _ in range(2):
        assert lab.destination().rollback(base, mirror_id=MIRROR, keep_as="mine") is None
    assert lab.destination().facts().role is Role.MIRROR
    assert diverged(destination) == {}


def test_a_rollback_keeps_an_overwritten_byte(lab: Lab) -> None:
    _source, destination, base = promoted(lab)
    lab.overwrite(destination, 1)
    losing = lab.content(destination)
    assert lab.destination().rollback(base, mirror_id=MIRROR, keep_as="mine") == "mine"
    assert lab.snapshot_content(destination, diverged(destination)["mine"]) == losing


def test_what_is_kept_never_takes_the_place_of_what_was_kept_before(lab: Lab) -> None:
    _source, destination, base = promoted(lab)
    losing = {}
    for seed in (1, 2):
        lab.overwrite(destination, seed)
        content = lab.content(destination)
        name = destination.rollback(base, mirror_id=MIRROR, keep_as="mine")
        assert name is not None
        losing[name] = content
        destination.promote()
    assert len(losing) == 2 and "mine" in losing
    kept = diverged(lab.destination())
    found = {name: lab.snapshot_content(lab.destination(), guid) for name, guid in kept.items()}
    assert found == losing


def test_a_rollback_loses_no_acknowledged_write_of_a_program(lab: Lab) -> None:
    """It is refused while the program has the volume, or what it writes is kept, or fails."""
    _source, destination, base = promoted(lab)
    acknowledged = set()
    kept = None
    with lab.writing(lab.destination()) as write:
        for number in range(3):
            assert write(number)
            acknowledged.add(number)
        try:
            kept = destination.rollback(base, mirror_id=MIRROR, keep_as="mine")
        except Busy:
            assert destination.facts().role is Role.LIVE
        acknowledged |= {number for number in range(3, 6) if write(number)}
    found = lab.written(lab.destination())
    if kept is not None:
        found |= lab.written(lab.destination(), diverged(lab.destination())[kept])
    assert acknowledged <= found


def test_what_was_live_can_be_put_back(lab: Lab) -> None:
    source, destination, base = promoted(lab)
    lab.change(destination, 7)
    losing = lab.content(destination)
    destination.rollback(base, mirror_id=MIRROR, keep_as="mine")
    with pytest.raises(NotFound):
        lab.destination().reinstate("other")
    for _ in range(2):
        lab.destination().reinstate("mine")
    assert lab.destination().facts().role is Role.LIVE
    assert lab.content(lab.destination()) == losing
    lab.change(lab.destination(), 8)
    losing = lab.content(lab.destination())
    assert lab.destination().changed_since(base)
    assert lab.destination().rollback(base, mirror_id=MIRROR, keep_as="again") == "again"
    kept = diverged(lab.destination())
    assert lab.snapshot_content(lab.destination(), kept["again"]) == losing
    [shown] = [one for one in source.snapshots() if one.guid == base]
    lab.change(source, 9)
    mirror(source, lab.destination(), shown, "after")
    assert lab.content(lab.destination()) == lab.content(source)
    lab.sound(lab.destination())


# Marks


def test_a_mark_holds_as_long_as_nothing_happens(lab: Lab) -> None:
    source, destination, _base = initialized(lab)
    for driver in (source, destination):
        mark = driver.mark()
        assert driver.is_marked(mark) and driver.is_marked(mark)
    mark = source.mark()
    assert lab.source().is_marked(mark)
    assert not source.is_marked("something else")


def test_a_mark_sees_one_overwritten_byte(lab: Lab) -> None:
    source = lab.source()
    mark = source.mark()
    lab.overwrite(source, 3)
    assert not lab.source().is_marked(mark)
    assert lab.source().is_marked(lab.source().mark())


def test_a_mark_sees_that_the_view_was_switched(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    mark = destination.mark()
    lab.change(source, 1)
    mirror(source, destination, base, "next")
    assert not lab.destination().is_marked(mark)


def test_a_mark_sees_that_the_role_was_switched(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    marks = source.mark(), destination.mark()
    destination.promote()
    source.rollback(base.guid, mirror_id=MIRROR, keep_as="mine")
    assert not lab.source().is_marked(marks[0])
    assert not lab.destination().is_marked(marks[1])


# Freezing, and who writes


def wait_for_thaw(lab: Lab) -> None:
    """(Nobody waits for a detachment over a link, nor for what the kernel does for the dead.)"""
    for _ in range(100):
        if not lab.source().facts().frozen:
            return
        clock.sleep_s(0.05)
    pytest.fail("it is frozen still")


def test_a_frozen_volume_takes_no_write_until_it_is_thawed(lab: Lab) -> None:
    source = lab.source()
    lab.overwrite(source, 1)
    before = lab.content(source)
    for _ in range(2):
        source.freeze()
    assert source.facts().frozen and lab.source().facts().frozen
    with pytest.raises((OSError, MirrordError)):
        lab.overwrite(source, 2)
    taken = source.take_snapshot("last")
    assert lab.content(source) == before == lab.snapshot_content(source, taken.guid)
    assert not source.changed_since(taken.guid)
    for _ in range(2):
        source.thaw()
    assert not lab.source().facts().frozen
    lab.overwrite(source, 3)
    assert lab.source().changed_since(taken.guid)


def test_a_freeze_ends_with_who_began_it(lab: Lab) -> None:
    source = lab.source()
    source.freeze()
    source.detach()
    wait_for_thaw(lab)
    lab.overwrite(lab.source(), 1)


def test_a_freeze_ends_with_a_process_that_is_killed(lab: Lab) -> None:
    source = lab.source()
    lab.freeze_and_die(source)
    before = lab.content(source)
    wait_for_thaw(lab)
    lab.overwrite(source, 1)
    assert lab.content(source) != before


def test_a_frozen_volume_can_be_rolled_back_and_is_not_frozen_then(lab: Lab) -> None:
    _source, destination, base = promoted(lab)
    lab.overwrite(destination, 1)
    destination.freeze()
    assert destination.rollback(base, mirror_id=MIRROR, keep_as="mine") == "mine"
    destination.thaw()
    assert not lab.destination().facts().frozen
    lab.destination().promote()
    lab.overwrite(lab.destination(), 2)


def test_a_destination_is_not_frozen(lab: Lab) -> None:
    _source, destination, _base = initialized(lab)
    with pytest.raises(MirrordError):
        destination.freeze()


def test_who_has_the_volume_open_for_writing_is_named(lab: Lab) -> None:
    source = lab.source()
    assert source.writers() == []
    if lab.kind == "memory":
        return
    with lab.writing(source) as write:
        assert write(1)
        found = lab.source().writers()
        assert found and all(one.pid > 0 and one.process and one.path for one in found)
        assert lab.source().writers(limit=0) == []
    assert lab.source().writers() == []


def test_the_mount_point_is_above_the_place(lab: Lab) -> None:
    for driver in (lab.source(), lab.destination()):
        facts = driver.facts()
        assert facts.view.startswith(facts.mount)
