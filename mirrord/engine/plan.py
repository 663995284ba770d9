"""What to send and what to prune: pure functions of what both ends have.

SnapMirror, FAST'02, sections 3.2.2 and 3.2.3: the base of an update is the snapshot that the
destination shows; after a failure it is the newest snapshot that both ends have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.names import sequence_of
from mirrord.core.sets import is_complete


class Step(NamedTuple):
    """One snapshot to send: from `base` (guid; None: in full). show: it becomes the view."""

    base: str | None
    snapshot: Snapshot
    show: bool


class Conflict(NamedTuple):
    """Why no update is possible, with the evidence, and which command fixes it."""

    why: str
    hint: str


def newest_complete_set(
    source: Sequence[Snapshot], destination: Sequence[Snapshot], *, not_after: str | None = None
) -> Snapshot | None:
    """The destination's copy of the newest set that is complete and intact at both ends, in the
    present history of their volumes. Commit, break, restore, retention, cascade and fan-out are
    based on it, and neither end deletes its part of it.

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
    """Whether an update may be based on it. (An incomplete set is not intact.)"""
    return one.intact and not one.aside and one.kind is not SnapshotKind.DIVERGED


def beginning(
    listed: Sequence[Snapshot], live: Collection[str], shown: Collection[str]
) -> str | None:
    """The set that the members of an end begin as when they are made live together; None: no set is
    complete.

    live: names of the sets that live members began as (an earlier attempt was interrupted). shown:
    names of the sets that the others show. When members show different sets it is the newest: a set
    that any member shows is complete.
    """
    complete = {one.name: one.guid for one in listed if usable(one)}
    for names in (set(live), set(shown)):
        if len(names) == 1 and names <= complete.keys():
            return complete[names.pop()]
    return list(complete.values())[-1] if complete else None


def left_over(
    listed: Sequence[Snapshot], mirror_id: str, newest: Snapshot | None
) -> list[Snapshot]:
    """The mirror's incomplete reference sets at an end that are older than the newest complete one:
    what is left of them is useless.
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


def aborted(
    source: Sequence[Snapshot],
    destination: Sequence[Snapshot],
    mirror_id: str,
    base: Snapshot | None,
) -> list[Snapshot]:
    """The mirror's sets at the source that an aborted cycle has left there, because a host could
    not be reached; among them may be some that were to be transferred, which the catalogue knows.
    Without a base only those that lack a member's snapshot: the others may be all that is left.
    """
    guids = [one.guid for one in source]
    there = {one.name for one in destination}
    first = guids.index(base.guid) + 1 if base is not None and base.guid in guids else None
    return [
        one
        for one in source[first or 0 :]
        if one.kind is SnapshotKind.REFERENCE
        and sequence_of(one.name, mirror_id)
        and one.name not in there
        and not one.pinned
        and not one.aside
        and (first is not None or not is_complete(one.guid))
    ]


def find_base(
    name: str, source: Sequence[Snapshot], destination: Sequence[Snapshot], shown: str | None
) -> Snapshot | Conflict:
    """The source's copy of the base of the next update, or why there is none.

    It is what the destination shows, unless the source was rolled back to before that (a restore)
    and cannot send from there: then it is the newest common one before that. shown: None when the
    view is missing, or members show different sets; then it is the newest common one.
    """
    here = {snapshot.guid: snapshot for snapshot in source}
    there = {snapshot.guid: snapshot for snapshot in destination}
    common = newest_complete_set(source, destination)
    newest = here[common.guid] if common is not None else None
    hint = _hint(name, source, destination, common)
    if shown is None:
        return newest or Conflict("no snapshot of the destination exists at the source", hint)
    if shown not in there:
        return Conflict("the snapshot that the destination shows was deleted there", hint)
    label = there[shown].name
    if not there[shown].intact:
        return Conflict(_unusable(label, "destination"), hint)
    if shown not in here:
        return Conflict(f"the base {label} no longer exists at the source", hint)
    if not here[shown].intact:
        return Conflict(_unusable(label, "source"), hint)
    if here[shown].aside:
        return newest or Conflict(f"the source was rolled back to before the base {label}", hint)
    return here[shown]


def _unusable(label: str, end: str) -> str:
    return f"the base {label} was made writable or changed at the {end}, or its record is damaged"


def _hint(
    name: str,
    source: Sequence[Snapshot],
    destination: Sequence[Snapshot],
    common: Snapshot | None,
) -> str:
    if common is not None:
        newer = only_there(source, destination, common)
        instead = (
            f" If the source was returned to an earlier state by mistake: 'mirrord restore {name} "
            f"--all --snapshot {newer[-1].name}' returns it to what the destination has."
            if newer
            else ""
        )
        return (
            f"'mirrord resync {name}' continues incrementally from {common.name}, the newest "
            f"snapshot that both ends still have.{instead}"
        )
    return check_source_path(source) + (
        "The ends have no common snapshot any more: a full transfer is required. Run "
        f"'mirrord break {name}' and 'mirrord delete {name}', then create the mirror again with "
        "another destination; the old one is kept until you remove it."
    )


def only_there(
    source: Sequence[Snapshot], destination: Sequence[Snapshot], common: Snapshot
) -> list[Snapshot]:
    """The usable reference snapshots of the destination that are newer than the newest common one:
    the source may have been returned to an earlier state, and no longer have their content.
    """
    ours = {one.guid for one in source}
    there = [one.guid for one in destination]
    return [
        one
        for one in destination[there.index(common.guid) + 1 :]
        if usable(one) and one.kind is SnapshotKind.REFERENCE and one.guid not in ours
    ]


def check_source_path(source: Sequence[Snapshot]) -> str:
    """What to check before everything is transferred again: where the source has no snapshot at
    all, another volume may be at its path. Ends with a space, or is "".
    """
    if source:
        return ""
    return (
        "The source has no snapshot: first check that its path in the definition leads to the "
        "volume that was mirrored. "
    )


def unrelated_reason(source: Sequence[Snapshot], common: Collection[str]) -> str:
    """Why the source's live volume does not descend from the common snapshots, or "".

    One of those must have been taken of it, or be what it began as: then everything that it has
    since is a change of what is mirrored.
    """
    ours = [one for one in source if one.guid in common and one.kind is SnapshotKind.REFERENCE]
    if not ours or not all(one.unrelated for one in ours):
        return ""
    return f"it is not the volume from which {ours[-1].name} was taken"


def plan_steps(
    base: Snapshot | None,
    incremental: Snapshot,
    own: Sequence[Snapshot],
    destination: Collection[str],
) -> list[Step]:
    """The snapshots to send, oldest first, each from the one before it; the last is shown.

    own: the source's user snapshots to replicate; those between base and incremental that the
    destination lacks are sent in order (FAST'02, 3.2.2: "the destination has a copy of all of the
    source's snapshots").
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
    mine: Collection[str],
    protected: Collection[str],
) -> list[Snapshot]:
    """The reference snapshots to delete: of `mine`, all but the `keep` newest and the protected.

    By order in the volume's history, never by a clock; never another mirror's, a user snapshot, or
    a diverged one.
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
