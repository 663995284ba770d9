"""Pins: which snapshots of a volume each mirror needs, kept at the volume for every mirrord to see.

Drivers keep them in their own records; what they mean is decided here. A peer may state them, so
all of it is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mirrord.core.errors import MirrordError, Refused
from mirrord.core.names import MIRROR_NAME

#: Mirror id -> guids of the snapshots that it has pinned.
Pins = Mapping[str, tuple[str, ...]]

GUIDS_MAX = 16
MIRRORS_MAX = 64
_GUID_CHARACTERS_MAX = 100


def replaced(pins: Pins, mirror_id: str, guids: Sequence[str], where: str) -> Pins:
    """The pins with exactly these for that mirror; `Refused` when it is too many, or malformed."""
    kept = {name: pinned for name, pinned in pins.items() if name != mirror_id}
    if MIRROR_NAME.fullmatch(mirror_id) is None:
        raise Refused(f"invalid mirror id: {mirror_id[:100]!r}", where=where)
    if len(guids) > GUIDS_MAX:
        raise Refused(
            f"a mirror can pin {GUIDS_MAX} snapshots of a volume",
            where=where,
            why=f"the mirror {mirror_id} asks for {len(guids)}",
        )
    if any(not guid.isprintable() or not 0 < len(guid) <= _GUID_CHARACTERS_MAX for guid in guids):
        raise Refused("invalid snapshot identity", where=where)
    if not guids:
        return kept
    if len(kept) >= MIRRORS_MAX:
        raise too_many(where)
    return {**kept, mirror_id: tuple(dict.fromkeys(guids))}


def too_many(where: str) -> MirrordError:
    """There is no room for the pins of one more mirror."""
    return Refused(
        "too many mirrors have pinned snapshots of this volume",
        where=where,
        hint="'mirrord prune NAME --dry-run' names them; 'mirrord prune NAME --unpin ID' removes "
        "those of a mirror that no longer exists.",
    )


def of_snapshot(pins: Pins, guid: str) -> tuple[str, ...]:
    """The mirrors that have pinned it, in order."""
    return tuple(sorted(name for name, guids in pins.items() if guid in guids))


def demand_free(pins: Pins, guids: Iterable[str], name: str, where: str) -> None:
    """`Refused` when a mirror has pinned the snapshot that is called `name`."""
    found = sorted({one for guid in guids for one in of_snapshot(pins, guid)})
    if found:
        raise Refused(
            f"the snapshot {name} is pinned",
            where=where,
            why=f"the mirror with the id {found[0]} goes on from it",
            hint="It can be deleted when that mirror has gone on. If that mirror no longer exists: "
            f"'mirrord prune NAME --unpin {found[0]}', with any mirror of this volume.",
        )
