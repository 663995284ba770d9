"""Sets: one snapshot of each member of a mirror, which belong together. Pure.

A set is identified by the identities of its snapshots in the order of the members, joined by "+";
the part of a member that does not have its snapshot is empty. The snapshots of a set have one name.
A set of one member is that member's snapshot, with the same identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirrord.core.model import Snapshot, SnapshotKind

_SEPARATOR = "+"
#: What snapshots of different members have in common when they belong together. The number tells
#: apart snapshots of one member that share a name.
_Key = tuple[str, SnapshotKind, int]


def joined(parts: Iterable[str]) -> str:
    """The identity of the set of these snapshots; "" for a member that has none."""
    return _SEPARATOR.join(parts)


def parts_of(guid: str, count: int) -> list[str]:
    """What a set is called at each of `count` members; "" where it has no snapshot. What is not
    the identity of such a set is the same for all: no member knows it.
    """
    parts = guid.split(_SEPARATOR)
    return parts if len(parts) == count else [guid] * count


def base_parts(guid: str | None, count: int) -> list[str | None]:
    """The same of a base: None where a member begins from nothing."""
    return [part or None for part in parts_of(guid or "", count)]


def is_complete(guid: str) -> bool:
    """Whether every member has its snapshot."""
    return all(guid.split(_SEPARATOR))


def is_part_of(some: str, whole: str) -> bool:
    """Whether all that members have of one set is theirs of the other."""
    parts = some.split(_SEPARATOR)
    return any(parts) and all(
        one in ("", other) for one, other in zip(parts, whole.split(_SEPARATOR), strict=False)
    )


def gathered(listed: Sequence[Sequence[Snapshot]]) -> list[Snapshot]:
    """The sets of what each member has, oldest first. Those that are not complete are not intact,
    so that nothing goes on from them; diverged ones need not be complete.

    The order is one that agrees with that of each member.
    """
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
    """The set of these snapshots, one of each member; at least one is there."""
    there = [one for one in parts if one is not None]
    whole = None not in parts or there[0].kind is SnapshotKind.DIVERGED
    paths = {one.path for one in there}
    return there[0]._replace(
        guid=joined(one.guid if one else "" for one in parts),
        taken_at_ns=min(one.taken_at_ns for one in there),
        path=paths.pop() if len(paths) == 1 else "",
        intact=whole and all(one.intact for one in there),
        pinned=tuple(sorted({mirror_id for one in there for mirror_id in one.pinned})),
        aside=any(one.aside for one in there),
        unrelated=any(one.unrelated for one in there),
    )


def split(one: Snapshot, count: int) -> list[Snapshot]:
    """What a set is at each member, for who sends it there."""
    return [one._replace(guid=part) for part in parts_of(one.guid, count)]
