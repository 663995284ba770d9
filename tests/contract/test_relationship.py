"""The driver contract, claim by claim: the relationship records that lie with a volume."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.core.errors import Fenced
from mirrord.core.relationship import Intent, Relationship, SiteRecord
from tests.contract import lab_block
from tests.contract.flows import MIRROR, initialized, mirror
from tests.contract.lab import Lab
from tests.crash.faults import FAULTS, Crash, broken_at
from tests.support.labs import open_lab
from tests.support.records import raised

FIRST = Relationship(
    MIRROR,
    "home",
    1,
    "primary",
    (SiteRecord("primary", ("btrfs:/data/home",)), SiteRecord("secondary", ("btrfs://dr/copy",))),
    controller="c0ffee",
)


def test_a_record_is_there_for_whoever_asks(lab: Lab) -> None:
    source, destination, _base = initialized(lab)
    for driver in (source, destination):
        assert driver.relationships() == {}
        driver.relate(FIRST, 0)
        driver.relate(FIRST, 0)
    other = FIRST._replace(mirror_id="m2", in_sync_until_ns=123, set_aside="diverged.m2.x")
    source.relate(other, 0)
    assert lab.source().relationships() == {MIRROR: FIRST, "m2": other}
    assert lab.destination().relationships() == {MIRROR: FIRST}
    assert lab.source().relationship("m2") == other and lab.source().relationship("m3") is None
    lab.source().unrelate(MIRROR)
    lab.source().unrelate(MIRROR)
    assert lab.source().relationships() == {"m2": other}


def test_a_record_that_is_removed_leaves_nothing_of_an_interrupted_writing(tmp_path: Path) -> None:
    with lab_block.lab(tmp_path) as lab:
        source = lab.source()
        source.relate(FIRST, 0)
        with broken_at(("BLOCK:RELATE:RECORD:RENAME", 1), FAULTS["crash"]), pytest.raises(Crash):
            source.relate(raised(FIRST, Intent.BROKEN_OFF), 1)
        lab.source().unrelate(MIRROR)
        assert not (tmp_path / "source/relationships").exists()


def test_only_who_knows_the_epoch_raises_it(lab: Lab) -> None:
    source, _destination, _base = initialized(lab)
    source.relate(FIRST, 0)
    second = raised(FIRST, Intent.BROKEN_OFF)
    assert second.epoch == 2
    with pytest.raises(Fenced):
        source.relate(second, 0)
    with pytest.raises(Fenced):
        source.relate(second, 2)
    source.relate(second, 1)
    for late in (FIRST, second._replace(source="secondary"), raised(FIRST, Intent.MIRRORED)):
        with pytest.raises(Fenced):
            lab.source().relate(late, 1)
    with pytest.raises(Fenced):  # the same epoch, but told otherwise
        source.relate(second._replace(controller="another"), 2)
    moved = second._replace(name="house")
    source.relate(moved, 2)
    assert lab.source().relationships() == {MIRROR: moved}


def test_the_relationship_record_is_kept_when_the_volume_changes_its_role(lab: Lab) -> None:
    source, destination, base = initialized(lab)
    destination.relate(FIRST, 0)
    destination.promote()
    assert lab.destination().relationships() == {MIRROR: FIRST}
    lab.change(lab.destination(), 3)
    second = raised(FIRST, Intent.MIRRORED)
    lab.destination().relate(second, 1)
    lab.destination().rollback(base.guid, mirror_id=MIRROR, keep_as="diverged.1")
    assert lab.destination().relationships() == {MIRROR: second}
    lab.change(source, 4)
    mirror(source, lab.destination(), base, "after")
    assert lab.destination().relationships() == {MIRROR: second}
    assert lab.source().relationships() == {}


def test_writing_the_relationship_record_does_not_count_as_a_change(lab: Lab) -> None:
    source, _destination, base = initialized(lab)
    assert not source.changed_since(base.guid)
    source.relate(FIRST, 0)
    assert not lab.source().changed_since(base.guid)


def test_a_look_before_a_commit_is_settled_hides_nothing(lab: Lab) -> None:
    """What is written at a destination right after a commit finds it as it is."""
    source, destination = lab.source(), lab.destination()
    destination.prepare(MIRROR)
    with destination.lock("a transfer"):
        base = mirror(source, destination, None, "base")
        assert destination.facts().shown == base.guid
        destination.relate(FIRST, 0)
    destination.promote()
    assert [one.guid for one in lab.destination().snapshots()] == [base.guid]


@pytest.mark.parametrize("name", ["lab_block", "lab_btrfs"])
def test_the_id_of_a_mirror_is_no_path(name: str, tmp_path: Path) -> None:
    with open_lab(name, tmp_path) as lab:
        source, _destination, _base = initialized(lab)
        source.relate(FIRST, 0)
        assert source.relationship(MIRROR) == FIRST
        for path in (f"../relationships/{MIRROR}", f"./{MIRROR}", ".", "..", "", "a\0b", 300 * "m"):
            assert source.relationship(path) is None
