"""Pins: which snapshots of a volume each mirror needs, stored with the volume for every mirrord.

Drivers store them in their own records; this module defines what they mean. A peer may send them,
so their number and size are limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mirrord.core.errors import MIRROR, MirrordError, Refused
from mirrord.core.names import MIRROR_NAME

#: Mirror id -> guids of the snapshots that the mirror has pinned.
Pins = Mapping[str, tuple[str, ...]]

#: Stands for a mirror that has pinned the snapshots that are being verified; never an id.
VERIFYING = "running-verify"
GUIDS_MAX = 16
MIRRORS_MAX = 64
_GUID_CHARACTERS_MAX = 100


def replaced(pins: Pins, mirror_id: str, guids: Sequence[str], where: str) -> Pins:
    """The pins with exactly these for that mirror; `Refused` when they are too many or invalid."""
    kept = {name: pinned for name, pinned in pins.items() if name != mirror_id}
    if MIRROR_NAME.fullmatch(mirror_id) is None:
        raise Refused(f"invalid mirror id: {mirror_id[:100]!r}", where=where)
    if len(guids) > GUIDS_MAX:
        raise Refused(
            f"a mirror can pin at most {GUIDS_MAX} snapshots of a volume",
            where=where,
            why=f"the mirror {mirror_id} requested {len(guids)}",
        )
    if any(not guid.isprintable() or not 0 < len(guid) <= _GUID_CHARACTERS_MAX for guid in guids):
        raise Refused("invalid snapshot guid", where=where)
    if not guids:
        return kept
    if len(kept) >= MIRRORS_MAX:
        raise too_many(where)
    return {**kept, mirror_id: tuple(dict.fromkeys(guids))}


def too_many(where: str) -> MirrordError:
    """No more mirrors can pin snapshots of this volume."""
    return Refused(
        "too many mirrors have pinned snapshots of this volume",
        where=where,
        hint=f"'mirrord prune {MIRROR} --dry-run' lists them; 'mirrord prune {MIRROR} --unpin ID' "
        "removes the pins of a mirror that no longer exists.",
    )


def of_snapshot(pins: Pins, guid: str) -> tuple[str, ...]:
    """The ids of the mirrors that have pinned it, sorted."""
    return tuple(sorted(name for name, guids in pins.items() if guid in guids))


def demand_free(pins: Pins, guids: Iterable[str], name: str, where: str) -> None:
    """`Refused` when a mirror has pinned the snapshot named `name`."""
    found = sorted({one for guid in guids for one in of_snapshot(pins, guid)})
    if found == [VERIFYING]:
        raise Refused(
            f"the snapshot {name} is being verified",
            where=where,
            hint="It can be deleted when that is done.",
        )
    if found:
        raise Refused(
            f"the snapshot {name} is pinned",
            where=where,
            why=f"the mirror with the id {found[0]} needs it as a base",
            hint="It can be deleted after the next update of that mirror. If that mirror no longer "
            f"exists: 'mirrord prune {MIRROR} --unpin {found[0]}', with any mirror of this volume.",
        )
