"""Planning: pure functions against small worlds and brute force."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.engine.plan import Conflict, find_base, newest_complete_set, plan_prune, plan_steps


def snap(number: int, kind: SnapshotKind = SnapshotKind.REFERENCE) -> Snapshot:
    return Snapshot(f"g{number}", f"s{number}", kind, number, number)


numbers = st.lists(st.integers(0, 12), unique=True).map(sorted)


@given(numbers, numbers, st.sets(st.integers(0, 12)))
def test_the_newest_complete_set_is_the_newest_that_both_have_intact(
    ours: list[int], theirs: list[int], spoiled: set[int]
) -> None:
    source = [snap(n)._replace(intact=n not in spoiled) for n in ours]
    found = newest_complete_set(source, [snap(n) for n in theirs])
    common = [n for n in theirs if n in ours and n not in spoiled]
    assert (found.order if found else None) == (max(common) if common else None)


def test_a_diverged_snapshot_is_never_a_base() -> None:
    kept = snap(3, SnapshotKind.DIVERGED)
    assert newest_complete_set([snap(3)], [kept]) is None


def test_a_limit_counts_only_older_ones() -> None:
    both = [snap(1), snap(2), snap(3)]
    found = newest_complete_set(both, both, not_after="g2")
    assert found is not None and found.guid == "g2"


def test_find_base_names_what_is_wrong_and_the_way_on() -> None:
    both = [snap(1), snap(2)]
    found = find_base("home", both, both, "g2")
    assert isinstance(found, Snapshot) and found.guid == "g2"
    gone = find_base("home", [snap(1)], both, "g2")
    assert isinstance(gone, Conflict)
    assert "no longer exists at the source" in gone.why and "mirrord resync home" in gone.hint
    spoiled = find_base("home", both, [snap(1), snap(2)._replace(intact=False)], "g2")
    assert isinstance(spoiled, Conflict) and "at the destination" in spoiled.why
    other = find_base("home", [snap(1)], [snap(2)], "g2")
    assert isinstance(other, Conflict) and "check that its path" not in other.hint
    nothing = find_base("home", [], [snap(2)], "g2")
    assert isinstance(nothing, Conflict) and "check that its path" in nothing.hint
    assert isinstance(nothing, Conflict) and "full transfer" in nothing.hint


def test_a_destination_that_shows_nothing_needs_a_common_snapshot() -> None:
    found = find_base("home", [snap(1)], [snap(1), snap(2)], None)
    assert isinstance(found, Snapshot) and found.guid == "g1"
    other = find_base("home", [snap(3)], [snap(1), snap(2)], None)
    assert isinstance(other, Conflict) and "full transfer" in other.hint


def test_a_source_that_went_back_sends_from_what_both_had_before() -> None:
    there = [snap(1), snap(2)]
    here = [snap(1), snap(2)._replace(aside=True)]
    found = find_base("home", here, there, "g2")
    assert isinstance(found, Snapshot) and found.guid == "g1"
    nothing = find_base("home", here[1:], there, "g2")
    assert isinstance(nothing, Conflict) and "was rolled back" in nothing.why


@given(numbers, st.integers(0, 6), st.sets(st.integers(0, 12)))
def test_steps_form_one_chain_from_base_to_incremental(
    own: list[int], first: int, there: set[int]
) -> None:
    steps = plan_steps(snap(first), snap(9), [snap(n) for n in own], {f"g{n}" for n in there})
    assert steps[-1].snapshot.guid == "g9" and steps[-1].show
    assert not any(step.show for step in steps[:-1])
    before = f"g{first}"
    for step in steps:
        assert step.base == before
        before = step.snapshot.guid
    sent = [step.snapshot.order for step in steps[:-1]]
    assert sent == [n for n in own if first < n < 9 and n not in there]


def test_the_first_transfer_begins_with_the_oldest_snapshot() -> None:
    steps = plan_steps(None, snap(5), [snap(2), snap(0)], set())
    assert [(s.base, s.snapshot.guid) for s in steps] == [(None, "g0"), ("g0", "g2"), ("g2", "g5")]


@given(numbers, st.integers(1, 5), st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_pruning_never_takes_the_protected_the_newest_or_anothers(
    listed: list[int], keep: int, mine: set[int], protected: set[int]
) -> None:
    snapshots = [snap(n) for n in listed]
    gone = plan_prune(
        snapshots,
        keep=keep,
        mine={f"g{n}": 0 for n in mine},
        protected={f"g{n}" for n in protected},
    )
    candidates = [n for n in listed if n in mine]
    assert [s.order for s in gone] == [n for n in candidates[:-keep] if n not in protected]


def test_pruning_goes_by_order_whatever_the_clock_said() -> None:
    snapshots = [snap(n)._replace(taken_at_ns=10**18 - n) for n in range(5)]
    gone = plan_prune(snapshots, keep=2, mine={f"g{n}": 0 for n in range(5)}, protected=set())
    assert [s.order for s in gone] == [0, 1, 2]


def test_pruning_leaves_the_owners_and_diverged_snapshots() -> None:
    kinds = [SnapshotKind.OWN, SnapshotKind.DIVERGED, SnapshotKind.REFERENCE]
    snapshots = [snap(n, kind) for n, kind in enumerate(kinds)]
    assert plan_prune(snapshots, keep=1, mine=dict.fromkeys(["g0", "g1", "g2"]), protected=[]) == []
