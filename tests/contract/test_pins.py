"""What a mirror has pinned stays, whoever deletes (`Driver.pin`)."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Refused
from mirrord.core.model import Snapshot
from mirrord.drivers import pins
from mirrord.drivers.contract import Driver
from mirrord.system import steps
from tests.contract.flows import MIRROR, initialized, mirror, volumes
from tests.contract.lab import Lab

OTHER = "0a1b2c3d"


def three(lab: Lab) -> tuple[Driver, list[Snapshot]]:
    """The source with three snapshots, the last of which nothing has changed since."""
    source = lab.source()
    taken = []
    for seed in range(3):
        lab.change(source, seed)
        taken.append(source.take_snapshot(f"s{seed}"))
    return source, taken


def left(driver: Driver) -> list[str]:
    return [one.guid for one in driver.snapshots()]


def test_a_pinned_snapshot_is_not_deleted(lab: Lab) -> None:
    source, (first, second, third) = three(lab)
    source.pin(OTHER, [first.guid, second.guid])
    assert lab.source().pins() == {first.guid: (OTHER,), second.guid: (OTHER,)}
    for driver in (source, lab.source()):
        with pytest.raises(Refused, match=OTHER) as caught:
            driver.delete_snapshot(first.guid)
        assert f"--unpin {OTHER}" in caught.value.hint
        assert any(str(one) in str(caught.value) for one in volumes(lab.source()))
    source.delete_snapshot(third.guid)
    assert left(lab.source()) == [first.guid, second.guid]


def test_pins_are_replaced_each_mirror_its_own(lab: Lab) -> None:
    source, (first, second, third) = three(lab)
    source.pin(OTHER, [first.guid, second.guid])
    source.pin(MIRROR, [second.guid])
    lab.source().pin(OTHER, [third.guid])
    assert lab.source().pins() == {second.guid: (MIRROR,), third.guid: (OTHER,)}
    source.delete_snapshot(first.guid)
    source.pin(MIRROR, [second.guid, third.guid])
    assert source.pins() == {second.guid: (MIRROR,), third.guid: (OTHER, MIRROR)}
    source.pin(OTHER, [])
    with pytest.raises(Refused, match=MIRROR):
        source.delete_snapshot(third.guid)
    source.pin(MIRROR, [])
    source.pin(MIRROR, [])
    assert lab.source().pins() == {}
    source.delete_snapshot(third.guid)
    assert left(lab.source()) == [second.guid]


def test_under_the_lock_it_is_the_same(lab: Lab) -> None:
    source, (first, second, third) = three(lab)
    with source.lock("update"):
        source.pin(OTHER, [first.guid])
        with pytest.raises(Refused):
            source.delete_snapshot(first.guid)
        source.delete_snapshot(second.guid)
        source.pin(OTHER, [third.guid])
        source.delete_snapshot(first.guid)
        assert source.pins() == {third.guid: (OTHER,)}
    # What another process has pinned meanwhile is seen by who has been here before.
    lab.source().pin(MIRROR, [third.guid])
    with source.lock("update"):
        source.pin(OTHER, [])
        with pytest.raises(Refused, match=MIRROR):
            source.delete_snapshot(third.guid)


def test_pins_at_a_destination_stay_through_updates_and_switches(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    destination.pin(OTHER, [base.guid])
    lab.change(source, 1)
    second = mirror(source, destination, base, "second")
    with pytest.raises(Refused, match=OTHER):
        destination.delete_snapshot(base.guid)
    lab.destination().promote()
    assert lab.destination().pins() == {base.guid: (OTHER,)}
    lab.change(lab.destination(), 2)
    lab.destination().rollback(second.guid, mirror_id=MIRROR, keep_as="kept.1")
    with pytest.raises(Refused, match=OTHER):
        lab.destination().delete_snapshot(base.guid)
    lab.destination().pin(OTHER, [])
    lab.destination().delete_snapshot(base.guid)
    assert base.guid not in left(lab.destination())


def test_what_is_asked_for_is_bounded(lab: Lab) -> None:
    source, (first, _second, _third) = three(lab)
    many = [f"{number:032x}" for number in range(pins.GUIDS_MAX + 1)]
    for mirror_id, guids in (
        (OTHER, many),
        ("../up", many[:1]),
        (".", many[:1]),
        ("x" * 65, []),
        ("", []),
        (OTHER, ["y" * 101]),
        (OTHER, [""]),
        (OTHER, ["a\nb"]),
    ):
        with pytest.raises(Refused):
            source.pin(mirror_id, guids)
    assert source.pins() == {}
    source.pin(OTHER, [*many[2:], first.guid])  # (what is not here is no matter)
    assert lab.source().pins() == {first.guid: (OTHER,)}


def test_a_place_where_nothing_is_has_nothing_to_pin(lab: Lab) -> None:
    destination = lab.destination()
    destination.pin(MIRROR, [])
    destination.prepare(MIRROR)
    destination.pin(MIRROR, [])
    assert lab.destination().pins() == {}


@pytest.mark.in_process
def test_a_crash_at_any_step_leaves_the_old_pins_or_the_new(lab: Lab) -> None:
    class Crash(BaseException):
        pass

    source, (first, second, third) = three(lab)
    source.pin(MIRROR, [third.guid])
    seen: list[str] = []
    steps.observe(seen.append)
    source.pin(OTHER, [first.guid])
    source.pin(OTHER, [])
    steps.observe(None)
    assert seen and all(":PIN" in label for label in seen), seen

    def crash(driver: Driver, guids: list[str], label: str) -> None:
        met = 0

        def observer(reached: str) -> None:
            nonlocal met
            if reached == label:
                met += 1
                raise Crash(label)

        steps.observe(observer)
        try:
            driver.pin(OTHER, guids)
        except Crash:
            pass
        finally:
            steps.observe(None)

    keep = {third.guid: (MIRROR,)}
    for label in dict.fromkeys(seen):
        for before, after in (([], [first]), ([first], [second]), ([second], [])):
            source.pin(OTHER, [one.guid for one in before])
            old = keep | {one.guid: (OTHER,) for one in before}
            new = keep | {one.guid: (OTHER,) for one in after}
            crash(lab.source(), [one.guid for one in after], label)
            assert lab.source().pins() in (old, new), label
            lab.source().pin(OTHER, [one.guid for one in after])
            assert lab.source().pins() == new, label


@pytest.mark.in_process
def test_nothing_is_written_when_it_is_so_already(lab: Lab) -> None:
    source, (first, second, _third) = three(lab)
    source.pin(OTHER, [first.guid, second.guid])
    seen: list[str] = []
    steps.observe(seen.append)
    lab.source().pin(OTHER, [first.guid, second.guid])
    lab.source().pin(MIRROR, [])
    assert seen == []
