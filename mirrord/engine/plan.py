"""What to send and what to prune: pure functions of what both ends have.

SnapMirror, FAST'02, sections 3.2.2 and 3.2.3: the base of an update is the snapshot that the
destination shows; after a mishap it is the newest snapshot that both ends have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.names import sequence_of
from mirrord.core.sets import is_complete


class Step(NamedTuple):
    """One snapshot to send: from `base` (guid; None: whole). show: it becomes the view."""

    base: str | None
    snapshot: Snapshot
    show: bool


class Conflict(NamedTuple):
    """Why no update is possible, with the evidence, and which command mends it."""

    why: str
    hint: str


def newest_complete_set(
    source: Sequence[Snapshot], destination: Sequence[Snapshot], *, not_after: str | None = None
) -> Snapshot | None:
    """The destination's copy of the newest set that both ends have complete and intact, in the
    history of their volumes as they are now. Commit, break, restore, retention, cascade and
    fan-out go on from it, and neither end deletes its part of it.

    not_after: identity of a set of the destination; only it and older ones count.
    """
    ours = {one.guid for one in source if usable(one)}
    found: Snapshot | None = None
    for one in destination:
        if usable(one) and one.guid in ours:
            found = one
        if one.guid == not_after:
            break
    return found


def usable(one: Snapshot) -> bool:
    """Whether an update may go on from it. (A set that is not complete is not intact.)"""
    return one.intact and not one.aside and one.kind is not SnapshotKind.DIVERGED


def beginning(
    listed: Sequence[Snapshot], live: Collection[str], shown: Collection[str]
) -> str | None:
    """The set that members of an end begin as when they are made live together; None: there is none
    that is complete.

    live: names of the sets that members began as which are live already (an earlier try was
    interrupted). shown: names of those that the others show. Where members show different sets it
    is the newest: a set that any member shows is complete.
    """
    complete = {one.name: one.guid for one in listed if usable(one)}
    for names in (set(live), set(shown)):
        if len(names) == 1 and names <= complete.keys():
            return complete[names.pop()]
    return list(complete.values())[-1] if complete else None


def left_over(
    listed: Sequence[Snapshot], mirror_id: str, newest: Snapshot | None
) -> list[Snapshot]:
    """The mirror's reference sets at an end that are older than the newest complete one, and of
    which members have lost their snapshots: what is left of them is of no use.
    """
    guids = [one.guid for one in listed]
    if newest is None or newest.guid not in guids:
        return []
    return [
        one
        for one in listed[: guids.index(newest.guid)]
        if one.kind is SnapshotKind.REFERENCE
        and not is_complete(one.guid)
        and sequence_of(one.name, mirror_id)
    ]


def find_base(
    name: str, source: Sequence[Snapshot], destination: Sequence[Snapshot], shown: str
) -> Snapshot | Conflict:
    """The source's copy of the base of the next update, or why there is none.

    It is what the destination shows, unless the source went back to before that (a restore) and
    cannot send from there: then what both had before.
    """
    here = {snapshot.guid: snapshot for snapshot in source}
    there = {snapshot.guid: snapshot for snapshot in destination}
    mend = _way_on(name, source, destination)
    if shown not in there:
        return Conflict("the snapshot that the destination shows was deleted there", mend)
    label = there[shown].name
    if not there[shown].intact:
        return Conflict(f"the base {label} was made writable or changed at the destination", mend)
    if shown not in here:
        return Conflict(f"the base {label} is not at the source any more", mend)
    if not here[shown].intact:
        return Conflict(f"the base {label} was made writable or changed at the source", mend)
    if here[shown].aside:
        common = newest_complete_set(source, destination)
        if common is None:
            return Conflict(f"the source went back to before the base {label}", mend)
        return here[common.guid]
    return here[shown]


def _way_on(name: str, source: Sequence[Snapshot], destination: Sequence[Snapshot]) -> str:
    older = newest_complete_set(source, destination)
    if older is not None:
        return (
            f"'mirrord resync {name}' goes on incrementally from {older.name}, the newest snapshot "
            "that both ends still have."
        )
    return (
        "Both ends have no snapshot in common any more: only a whole transfer helps. "
        f"'mirrord break {name}', 'mirrord delete {name}', then create the mirror anew with "
        "another destination; the old one stays as it is until you remove it."
    )


def plan_steps(
    base: Snapshot | None,
    incremental: Snapshot,
    own: Sequence[Snapshot],
    destination: Collection[str],
) -> list[Step]:
    """The snapshots to send, oldest first, each from the one before it; the last is shown.

    own: the source's own snapshots that go along; those between base and incremental that the
    destination lacks are sent in their place (FAST'02, 3.2.2: "the destination has a copy of all
    of the source's snapshots").
    """
    first = base.order if base else -1
    between = [
        snapshot
        for snapshot in own
        if first < snapshot.order < incremental.order
        and snapshot.intact
        and snapshot.guid not in destination
        and snapshot.guid != incremental.guid
    ]
    steps: list[Step] = []
    before = base.guid if base else None
    for snapshot in [*sorted(between, key=lambda item: item.order), incremental]:
        steps.append(Step(before, snapshot, show=snapshot.guid == incremental.guid))
        before = snapshot.guid
    return steps


def plan_prune(
    snapshots: Sequence[Snapshot],
    *,
    keep: int,
    mine: Mapping[str, object],
    protected: Collection[str],
) -> list[Snapshot]:
    """Which reference snapshots may go: of `mine`, all but the `keep` newest and the protected.

    By order in the volume's history, never by a clock; never another mirror's, nor the owner's,
    nor a diverged one.
    """
    candidates = [
        snapshot
        for snapshot in snapshots
        if snapshot.kind is SnapshotKind.REFERENCE and snapshot.guid in mine
    ]
    kept = {snapshot.guid for snapshot in candidates[-keep:]}
    return [
        snapshot
        for snapshot in candidates
        if snapshot.guid not in kept and snapshot.guid not in protected
    ]
