"""The driver contract: a writable copy of what a destination shows, which goes on as it is."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Refused, Unsupported
from mirrord.core.model import Endpoint, Role
from mirrord.drivers.contract import Capability, Driver, clones_of
from mirrord.link.driver import RemoteDriver
from tests.contract.flows import MIRROR, initialized, mirror
from tests.contract.lab import Lab


def volume_at(lab: Lab, like: Driver, location: str) -> Driver:
    """A driver on a further place, where `like` is."""
    if isinstance(like, RemoteDriver):
        return RemoteDriver.of(Endpoint(like.kind, location, "there"), lab.others)  # type: ignore[attr-defined]
    return type(like)(location)


def can_copy(driver: Driver) -> bool:
    """Whether the kind has copies; one that has none says so."""
    if Capability.COPY in driver.capabilities:
        return True
    with pytest.raises(Unsupported):
        clones_of(driver).begin_test()
    return False


def test_a_writable_copy_leaves_the_mirror_as_it_is(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    if not can_copy(destination):
        return
    shown = lab.content(destination)
    made = clones_of(destination).begin_test()
    assert made.role is Role.LIVE
    assert clones_of(lab.destination()).begin_test().location == made.location
    facts = lab.destination().facts()
    assert (facts.role, facts.shown, facts.copy) == (Role.MIRROR, base.guid, made.location)
    copy = volume_at(lab, destination, made.location)
    assert lab.content(copy) == shown
    lab.change(copy, 3)
    changed = lab.content(copy)
    assert changed != shown == lab.content(lab.destination())
    lab.change(source, 4)
    newer = mirror(source, lab.destination(), base, "newer")
    lab.change(source, 5)
    mirror(source, lab.destination(), newer, "newest")
    assert lab.content(lab.destination()) == lab.content(source)
    lab.destination().delete_snapshot(base.guid)
    assert base.guid not in {one.guid for one in lab.destination().snapshots()}
    assert lab.content(copy) == changed
    assert clones_of(lab.destination()).end_test()
    assert not clones_of(lab.destination()).end_test()
    assert lab.destination().facts().copy == ""
    gone = volume_at(lab, destination, made.location)
    assert gone.facts().role is Role.ABSENT
    lab.sound(lab.destination())
    assert lab.content(lab.destination()) == lab.content(source)


def test_a_copy_outlives_a_break_and_what_is_its_own_is_not_removed(lab: Lab) -> None:
    _source, destination, _base = initialized(lab)
    if not can_copy(destination):
        return
    made = clones_of(destination).begin_test(f"{destination.location}-mine")
    assert made.location == f"{destination.location}-mine"
    with pytest.raises(Refused, match="copy already"):
        clones_of(destination).begin_test(f"{destination.location}-other")
    destination.promote()
    assert lab.destination().facts().copy == made.location
    copy = volume_at(lab, destination, made.location)
    lab.change(lab.destination(), 8)
    lab.change(copy, 9)
    assert lab.content(copy) != lab.content(lab.destination())
    assert clones_of(lab.destination()).end_test()


def test_nothing_that_is_there_is_taken_for_a_copy(lab: Lab) -> None:
    destination = lab.destination()
    if not can_copy_empty(destination):
        return
    with pytest.raises(Refused):
        clones_of(destination).begin_test()
    destination.prepare(MIRROR)
    with pytest.raises(Refused):
        clones_of(lab.destination()).begin_test()
    _source, destination, _base = initialized(lab)
    foreign = lab.foreign()
    with pytest.raises(Refused):
        clones_of(destination).begin_test(foreign.location)
    assert lab.destination().facts().copy == ""
    assert not clones_of(lab.destination()).end_test()


def can_copy_empty(driver: Driver) -> bool:
    return Capability.COPY in driver.capabilities
