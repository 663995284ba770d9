"""The driver contract, claim by claim: nothing is changed in an epoch that is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from mirrord.core.errors import Fenced, MirrordError
from mirrord.core.relationship import Fence, Intent
from mirrord.drivers.contract import Capability, Driver, Pool, clones_of
from mirrord.drivers.verification import Verification, verification_of
from mirrord.wire.methods import METHODS
from tests.contract.flows import MIRROR, initialized, request, volumes
from tests.contract.lab import Lab
from tests.contract.test_relationship import FIRST
from tests.support.records import raised

#: Every method that changes a volume, with words that fit. `relate` has the epoch among its words.
CALLS: dict[str, Callable[[Driver, str], object]] = {
    "delete_snapshot": lambda driver, guid: driver.delete_snapshot(guid),
    "pin": lambda driver, guid: driver.pin(MIRROR, [guid]),
    "unrelate": lambda driver, _guid: driver.unrelate(MIRROR),
    "reclaim": lambda driver, _guid: driver.reclaim(),
    "take_snapshot": lambda driver, _guid: driver.take_snapshot("late"),
    "take_together": lambda driver, _guid: cast(Pool, driver).take_together("late", []),
    "prepare": lambda driver, _guid: driver.prepare(MIRROR),
    "commit": lambda driver, _guid: driver.commit("t1", show=True),
    "discard": lambda driver, _guid: driver.discard("t1"),
    "promote": lambda driver, guid: driver.promote(guid),
    "freeze": lambda driver, _guid: driver.freeze(),
    "thaw": lambda driver, _guid: driver.thaw(),
    "mark": lambda driver, _guid: driver.mark(),
    "rollback": lambda driver, guid: driver.rollback(guid, mirror_id=MIRROR, keep_as="late"),
    "reinstate": lambda driver, _guid: driver.reinstate("late"),
    "forget": lambda driver, _guid: driver.forget(),
    "make_ready": lambda driver, _guid: driver.make_ready("late"),
    "begin_test": lambda driver, _guid: clones_of(driver).begin_test(),
    "end_test": lambda driver, _guid: clones_of(driver).end_test(),
    "repair_begin": lambda driver, guid: verification_of(driver).repair_begin(guid),
    "repair_write": lambda driver, guid: verification_of(driver).repair_write(guid, "x", 0, b""),
    "repair_finish": lambda driver, guid: verification_of(driver).repair_finish(guid, ""),
}


def test_each_method_that_changes_a_volume_is_tried() -> None:
    changing = {name for name, method in METHODS.items() if method.changes}
    assert CALLS.keys() == changing - {"relate", "receive"}


@pytest.mark.parametrize("which", ["source", "destination"])
def test_nothing_is_changed_in_an_epoch_that_is_over(lab: Lab, which: str) -> None:
    source, destination, base = initialized(lab)
    driver = {"source": source, "destination": destination}[which]
    driver.relate(FIRST, 0)
    driver.relate(raised(FIRST, Intent.BROKEN_OFF), 1)
    late = lab.source() if which == "source" else lab.destination()
    late.fence = Fence(MIRROR, 1)
    before = late.facts(), late.snapshots(), late.relationships(), lab.content(late)
    for name, call in CALLS.items():
        if name in ("reclaim", "make_ready") and late.kind != "btrfs":
            continue  # it does nothing there
        if name == "take_together" and (
            not isinstance(late, Pool) or Capability.POOL not in late.capabilities
        ):
            continue
        if name.endswith("_test") and Capability.COPY not in late.capabilities:
            continue
        if name.startswith("repair_") and (
            late.kind != "btrfs" or not isinstance(late, Verification)
        ):
            continue  # of each member by itself
        with pytest.raises(Fenced):
            call(late, base.guid)
    for one in volumes(late):
        with pytest.raises(Fenced):
            one.receive(request("t1", base, base))
    facts = late.facts()
    assert facts._replace(used_bytes=0, free_bytes=0) == before[0]._replace(
        used_bytes=0, free_bytes=0
    )
    assert (late.snapshots(), late.relationships(), lab.content(late)) == before[1:]
    late.fence = Fence(MIRROR, 2)
    late.pin(MIRROR, [base.guid])
    assert late.pins() == {base.guid: (MIRROR,)}


def test_an_epoch_that_ends_after_the_last_look_is_over(lab: Lab) -> None:
    source, _destination, base = initialized(lab)
    source.relate(FIRST, 0)
    late = lab.source()
    late.fence = Fence(MIRROR, 1)
    assert late.facts().role is source.facts().role
    source.relate(raised(FIRST, Intent.BROKEN_OFF), 1)
    with pytest.raises(Fenced):
        late.take_snapshot("late")
    assert [one.guid for one in lab.source().snapshots()] == [base.guid]


def test_fencing_one_mirror_does_not_affect_another(lab: Lab) -> None:
    source, _destination, base = initialized(lab)
    source.relate(raised(FIRST, Intent.MIRRORED), 0)
    other = lab.source()
    other.fence = Fence("m2", 1)
    other.pin("m2", [base.guid])
    with pytest.raises(MirrordError):
        other.delete_snapshot(base.guid)  # it is pinned
    other.pin("m2", [])
