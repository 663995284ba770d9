"""Sets of snapshots, and which of them is the newest complete one: pure functions."""

from __future__ import annotations

import itertools

import pytest

from mirrord.core import sets
from mirrord.core.model import Snapshot, SnapshotKind, Staging
from mirrord.core.sets import base_parts, gathered, is_complete, is_part_of, parts_of, split
from mirrord.engine import together
from mirrord.engine.plan import aborted, beginning, left_over, newest_complete_set

ID = "ab12"


def snap(number: int, member: str, **fields: object) -> Snapshot:
    name = f"mirrord.{ID}.20260101T000000Z.{number}"
    made = Snapshot(f"{member}{number}", name, SnapshotKind.REFERENCE, number, number * 10)
    return made._replace(**fields)  # type: ignore[arg-type]


def ends(*members: str) -> list[Snapshot]:
    """The sets of members of which each has the snapshots of these numbers."""
    listed = [
        [snap(int(number), letter) for number in numbers]
        for letter, numbers in zip("abc", members, strict=False)
    ]
    return gathered(listed)


def guids(listed: list[Snapshot]) -> list[str]:
    return [one.guid for one in listed]


def test_the_set_of_one_member_is_its_snapshot() -> None:
    listed = [snap(1, "a", path="/x", pinned=("m1", "m2")), snap(2, "a", intact=False)]
    assert gathered([listed]) == listed == [sets.together([one]) for one in listed]
    assert parts_of("a1", 1) == ["a1"] and base_parts(None, 1) == [None]
    assert split(listed[0], 1) == [listed[0]]


def test_snapshots_of_one_name_are_a_set() -> None:
    assert guids(ends("12", "12", "12")) == ["a1+b1+c1", "a2+b2+c2"]
    [one] = gathered([[snap(1, "a", path="/x")], [snap(1, "b", path="/y", taken_at_ns=3)]])
    assert (one.path, one.taken_at_ns, one.intact) == ("", 3, True)
    assert [part.guid for part in split(one, 2)] == ["a1", "b1"]
    assert base_parts("a1+", 2) == ["a1", None]


@pytest.mark.parametrize(
    ("members", "found"),
    [
        (("12", "1", "12"), ["a1+b1+c1", "a2++c2"]),
        (("1", "12", "123"), ["a1+b1+c1", "+b2+c2", "++c3"]),
        (("23", "123", "3"), ["+b1+", "a2+b2+", "a3+b3+c3"]),
        (("", "1", ""), ["+b1+"]),
        (("123", "23", ""), ["a1++", "a2+b2+", "a3+b3+"]),
    ],
)
def test_a_set_of_which_members_have_nothing_is_not_intact(
    members: tuple[str, ...], found: list[str]
) -> None:
    listed = ends(*members)
    assert guids(listed) == found
    assert [one.intact for one in listed] == [is_complete(one.guid) for one in listed]


def test_what_is_not_right_at_one_member_is_not_right_of_the_set() -> None:
    for field in ("aside", "unrelated"):
        [one] = gathered([[snap(1, "a")], [snap(1, "b", **{field: True})]])
        assert getattr(one, field)
    [one] = gathered([[snap(1, "a", pinned=("x",))], [snap(1, "b", pinned=("y",), intact=False)]])
    assert one.pinned == ("x", "y") and not one.intact


def test_a_diverged_set_has_only_the_members_that_were_changed() -> None:
    diverged = snap(1, "b", kind=SnapshotKind.DIVERGED)
    [one] = gathered([[], [diverged], []])
    assert one.guid == "+b1+" and one.intact


def test_two_snapshots_of_one_name_are_two_sets() -> None:
    first, second = snap(1, "a"), snap(1, "x")
    assert guids(gathered([[first, second], [snap(1, "b")]])) == ["a1+b1", "x1+"]


def test_parts_of_a_set() -> None:
    assert is_part_of("a1++", "a1+b1+c1") and is_part_of("a1", "a1")
    for other in ("a2++", "++", "b1++", "", "a2"):
        assert not is_part_of(other, "a1+b1+c1"), other


def test_the_newest_complete_set_is_complete_at_both_ends() -> None:
    """Whatever each of six volumes has: by the definition, written down once more."""
    choices = ["".join(one) for n in range(3) for one in itertools.combinations("12", n)]
    for here in itertools.product(choices, repeat=2):
        for there in itertools.product(choices, repeat=2):
            both = set("12").intersection(*map(set, (*here, *there)))
            found = newest_complete_set(ends(*here), ends(*there))
            assert (found.guid if found else None) == (
                f"a{max(both)}+b{max(both)}" if both else None
            ), (here, there)


def test_neither_a_changed_nor_a_later_set_is_gone_on_from() -> None:
    both = ends("123", "123")
    changed = [one._replace(intact=one.guid != "a3+b3") for one in both]
    newest = newest_complete_set(both, changed)
    assert newest is not None and newest.guid == "a2+b2"
    older = newest_complete_set(both, both, not_after="a2+b2")
    assert older is not None and older.guid == "a2+b2"


def test_what_an_interrupted_deletion_left_is_older_than_the_newest_complete_set() -> None:
    listed = ends("134", "234", "3")
    newest = listed[-2]
    assert newest.guid == "a3+b3+c3"
    assert sorted(guids(left_over(listed, ID, newest))) == ["+b2+", "a1++"]
    assert left_over(listed, "another", newest) == []
    assert left_over(listed, ID, None) == []


def test_what_an_aborted_cycle_has_left_at_the_source() -> None:
    here, there = ends("123456", "1235", "123567"), ends("123", "123", "123")
    base = next(one for one in here if one.guid == "a3+b3+c3")
    assert guids(aborted(here, there, ID, base)) == ["a4++", "a5+b5+c5", "a6++c6", "++c7"]
    assert guids(aborted(here, ends("1235", "123", "123"), ID, base))[1] == "a6++c6"
    assert aborted(here, there, "another", base) == []
    # Without a base a complete set may be all that is left of the volumes.
    assert guids(aborted(here, [], ID, None)) == ["a4++", "a6++c6", "++c7"]


@pytest.mark.parametrize(
    ("live", "shown", "begins"),
    [
        ("", "2", 2),  # all show it
        ("", "23", 3),  # a set that any member shows is complete
        ("2", "23", 2),  # an earlier try had begun with that
        ("", "4", 3),  # what is shown is not complete
        ("", "", 3),
    ],
)
def test_members_are_made_live_as_one_set(live: str, shown: str, begins: int) -> None:
    listed = ends("1234", "123", "123")
    names = {str(one.order): one.name for one in listed}
    chosen = beginning(listed, {names[n] for n in live}, {names[n] for n in shown})
    assert chosen == f"a{begins}+b{begins}+c{begins}"
    assert beginning(ends("1", "2"), set(), set()) is None


def test_a_transfer_is_complete_when_each_member_has_its_snapshot() -> None:
    def staged(member: str, *, complete: bool, received: int) -> Staging:
        checkpoint = None if complete else {"at": received}
        return Staging("t", f"{member}0", snap(1, member), complete, checkpoint, received)

    done, half = staged("a", complete=True, received=5), staged("b", complete=False, received=3)
    both = together.staging([done, half], [None, None])
    assert (both.complete, both.received_bytes, both.base) == (False, 8, "a0+b0")
    assert both.checkpoint and both.snapshot.guid == "a1+b1"
    missing = together.staging([done, None], [None, None])
    assert not missing.complete and missing.checkpoint
    held = together.staging([done, None], [None, snap(1, "b")])
    assert held.complete and held.snapshot.guid == "a1+b1"
