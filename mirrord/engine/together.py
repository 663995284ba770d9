"""The members of one end of a mirror combined: facts, deltas and stagings as one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirrord.core.model import (
    UNKNOWN_SNAPSHOT,
    BlockStates,
    Delta,
    Divergence,
    FileChange,
    Role,
    Snapshot,
    Staging,
    VolumeFacts,
)
from mirrord.core.sets import joined, together

#: The role of an end whose members have different ones is the first of these that occurs: when a
#: member is lost the end is absent, and when one is live nothing may be overwritten.
_ROLES = (Role.FOREIGN, Role.ABSENT, Role.LIVE, Role.MIRROR)


def facts(
    found: Sequence[VolumeFacts],
    labels: Sequence[str],
    *,
    location: str,
    shown: str | None,
    origin: str | None,
) -> VolumeFacts:
    """The facts of an end. labels: prefixes of the notes on each member. shown, origin: the sets
    that all of them show, and began as.
    """
    if len(found) == 1 and not labels[0]:
        return found[0]  # an end of one volume is that volume
    roles = [one.role for one in found]
    role = next(one for one in _ROLES if one in roles)
    fixed = [label + one.fixed for label, one in zip(labels, found, strict=True) if one.fixed]
    nowhere = role in (Role.ABSENT, Role.FOREIGN)
    return found[0]._replace(
        location=location,
        role=role,
        identity="" if nowhere else joined(one.identity for one in found),
        filesystem=_listed(one.filesystem for one in found),
        view=_listed(one.view for one in found),
        shown=shown if role is Role.MIRROR else None,
        mirror_id=_mirror_id(found),
        origin=origin if role is Role.LIVE else None,
        used_bytes=max(one.used_bytes for one in found),
        free_bytes=min(one.free_bytes for one in found),
        fixed="; ".join(fixed),
        notes=_notes(found, labels, role, shown),
        copy=_listed(one.copy for one in found if one.copy),
        frozen=any(one.frozen for one in found),
        mount=_listed(one.mount for one in found),
    )


def _notes(
    found: Sequence[VolumeFacts], labels: Sequence[str], role: Role, shown: str | None
) -> tuple[str, ...]:
    """All notes; those of the members that determine the end's role come first."""
    decisive: list[str] = []
    others: list[str] = []
    for one, label in zip(found, labels, strict=True):
        notes = one.notes
        if role is Role.ABSENT and one.role is role and label:
            notes = notes or ("nothing is at that path",)
        (decisive if one.role is role else others).extend(label + note for note in notes)
    if role is Role.MIRROR and shown is None and all(one.shown for one in found):
        decisive.append("The members show different sets: the next update makes them show one set.")
    return (*decisive, *others)


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _mirror_id(found: Sequence[VolumeFacts]) -> str:
    """The mirror to which all belong; "" when one of them has no such record."""
    there = [one.mirror_id for one in found if one.role is not Role.ABSENT]
    return _listed(there) if all(there) else ""


def block_states(parts: Sequence[BlockStates | None]) -> BlockStates | None:
    """The sum; None unless all are known."""
    known = [one for one in parts if one is not None]
    if not known or len(known) < len(parts):
        return None
    return BlockStates(*map(sum, zip(*known, strict=True)))


def delta(
    base: str | None, incremental: str, parts: Sequence[Delta], labels: Sequence[str]
) -> Delta:
    """The sum of the members' deltas; the paths of changed files begin with the member's name."""
    listed = [_labelled(one.changes, label) for one, label in zip(parts, labels, strict=True)]
    known = [one for one in listed if one is not None]
    return parts[0]._replace(
        base=base,
        incremental=incremental,
        states=block_states([one.states for one in parts]),
        added_bytes=sum(one.added_bytes for one in parts),
        send_bytes=sum(one.send_bytes for one in parts),
        exact=all(one.exact for one in parts),
        changes=sum(known, ()) if len(known) == len(parts) else None,
    )


def divergence(base: str, parts: Sequence[tuple[Divergence, str]], *, limit: int) -> Divergence:
    """The sum of what members would lose, each with its label."""
    listed = [_labelled(one.changes, label) for one, label in parts]
    known = [one for one in listed if one is not None]
    return Divergence(
        base=base,
        changed_bytes=sum(one.changed_bytes for one, _ in parts),
        changes=sum(known, ())[:limit] if len(known) == len(parts) else None,
        total_changes=sum(one.total_changes for one, _ in parts),
        newer_snapshots=tuple(dict.fromkeys(n for one, _ in parts for n in one.newer_snapshots)),
    )


def _labelled(changes: tuple[FileChange, ...] | None, label: str) -> tuple[FileChange, ...] | None:
    if changes is None or not label:
        return changes
    return tuple(one._replace(path=label + one.path) for one in changes)


def staging(parts: Sequence[Staging | None], held: Sequence[Snapshot | None]) -> Staging:
    """One transfer of a set. parts: what is staged at each member; held: for members that have
    nothing staged, the snapshot that they have already committed.

    complete: each member has its full snapshot, staged or committed.
    """
    there = [one for one in parts if one is not None]
    done = [one is not None and one.complete for one in parts]
    done = [one or part is not None for one, part in zip(done, held, strict=True)]
    snapshots = [part.snapshot if part else one for part, one in zip(parts, held, strict=True)]
    checkpoint: dict[str, int | str] = {}
    for one in there:
        checkpoint |= one.checkpoint or {}
    if any(done) and not all(done):
        checkpoint["members"] = sum(done)
    bases = [one.base if one else None for one in parts]
    any_known = any(one is not None and one.guid for one in snapshots)
    return Staging(
        transfer_id=there[0].transfer_id,
        base=joined(base or "" for base in bases) if any(bases) else None,
        snapshot=together(snapshots) if any_known else UNKNOWN_SNAPSHOT,
        complete=all(done),
        checkpoint=checkpoint or None,
        received_bytes=sum(one.received_bytes for one in there),
    )
