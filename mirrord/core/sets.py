"""Sets: matching snapshots, one of each member of a mirror. Pure.

A set is identified by the identities of its snapshots in the order of the members, joined by "+";
the part of a member that lacks its snapshot is empty. The snapshots of a set have the same name.
A set of one member is that member's snapshot, with the same identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirrord.core.model import Snapshot, SnapshotKind

_SEPARATOR = "+"
#: What snapshots of different members have in common when they form a set. The number distinguishes
#: snapshots of one member that share a name.
_Key = tuple[str, SnapshotKind, int]


def joined(parts: Iterable[str]) -> str:
    """The identity of the set of these snapshots; "" for a member that has none."""
    return _SEPARATOR.join(parts)


def parts_of(guid: str, count: int) -> list[str]:
    """The identity of a set's snapshot at each of `count` members; "" where it has none. A guid
    that is not the identity of such a set is returned for all: no member knows it.
    """
    parts = guid.split(_SEPARATOR)
    return parts if len(parts) == count else [guid] * count


def base_parts(guid: str | None, count: int) -> list[str | None]:
    """The same for a base: None for a member that has no base."""
    return [part or None for part in parts_of(guid or "", count)]


def is_complete(guid: str) -> bool:
    """Whether every member has its snapshot."""
    return all(guid.split(_SEPARATOR))


def is_part_of(some: str, whole: str) -> bool:
    """Whether every snapshot that members have of one set also belongs to the other."""
    parts = some.split(_SEPARATOR)
    return any(parts) and all(
        one in ("", other) for one, other in zip(parts, whole.split(_SEPARATOR), strict=False)
    )


def gathered(listed: Sequence[Sequence[Snapshot]]) -> list[Snapshot]:
    """The sets formed by the members' snapshots, oldest first. Incomplete ones are not intact, so
    that nothing is based on them; diverged ones need not be complete.

    The order agrees with that of each member.
    """
    if len(listed) == 1:
        return list(listed[0])  # a set of one member is its snapshot
    order: list[_Key] = []
    found: dict[_Key, list[Snapshot | None]] = {}
    for number, snapshots in enumerate(listed):
        at, times = 0, dict[tuple[str, SnapshotKind], int]()
        for one in snapshots:
            label = one.name, one.kind
            times[label] = times.get(label, 0) + 1
            key = (*label, times[label])
            if key in found:
                at = order.index(key) + 1
            else:
                order.insert(at, key)
                found[key] = [None] * len(listed)
                at += 1
            found[key][number] = one
    return [together(found[key]) for key in order]


def together(parts: Sequence[Snapshot | None]) -> Snapshot:
    """The set of these snapshots, one of each member; at least one is not None."""
    there = [one for one in parts if one is not None]
    complete = None not in parts or there[0].kind is SnapshotKind.DIVERGED
    paths = {one.path for one in there}
    return there[0]._replace(
        guid=joined(one.guid if one else "" for one in parts),
        taken_at_ns=min(one.taken_at_ns for one in there),
        path=paths.pop() if len(paths) == 1 else "",
        intact=complete and all(one.intact for one in there),
        pinned=tuple(sorted({mirror_id for one in there for mirror_id in one.pinned})),
        aside=any(one.aside for one in there),
        unrelated=any(one.unrelated for one in there),
    )


def split(one: Snapshot, count: int) -> list[Snapshot]:
    """A set as the snapshot of each member, to be sent there."""
    return [one._replace(guid=part) for part in parts_of(one.guid, count)]
