"""The refusals that all drivers share, so that all say the same thing."""

from __future__ import annotations

from mirrord.core.errors import (
    Busy,
    Damaged,
    Diverged,
    MirrordError,
    NoSpace,
    NotFound,
    PermissionMissing,
    Refused,
    Unsupported,
)


def replaced(where: str, why: str) -> MirrordError:
    """The live volume at the source is not the one that is mirrored."""
    return Diverged(
        "another volume has taken the place of the source",
        where=where,
        why=why,
        hint="Nothing was transferred, and every copy is kept. Put the volume back in its place; "
        "or 'mirrord change-source NAME ENDPOINT' if it was moved; or, if this one is to be "
        "mirrored from now on, 'mirrord resync NAME'.",
    )


def frozen_elsewhere(where: str) -> MirrordError:
    """Another process of mirrord is about to switch the volume."""
    return Busy(
        "the volume is frozen by another mirrord process",
        where=where,
        why="it is about to switch the volume",
        hint="Wait for it to end.",
    )


def base_missing(where: str, guid: str) -> MirrordError:
    """The base is not there (any more)."""
    return Diverged(
        "the base snapshot is not there",
        where=where,
        why=f"no intact snapshot with the identity {guid}: it was deleted or made writable",
        hint="'mirrord explain NAME' shows which snapshots both ends still have; 'mirrord resync "
        "NAME' goes on from the newest of them.",
    )


def snapshot_missing(where: str, guid: str) -> MirrordError:
    """A snapshot was asked for that is not in this volume's keeping."""
    return NotFound("no such snapshot", where=where, why=f"none has the identity {guid}")


def staging_missing(where: str, transfer_id: str) -> MirrordError:
    """A commit of something that was never received."""
    return NotFound("nothing is staged", where=where, why=f"transfer {transfer_id} is not known")


def not_live(where: str) -> MirrordError:
    """An operation on the live volume of a place that has none."""
    return Refused(
        "there is no live volume here",
        where=where,
        why="it is a destination that only shows snapshots, or nothing at all",
        hint="Name the source volume, or make the destination live with 'mirrord break NAME'.",
    )


def not_a_mirror(where: str) -> MirrordError:
    """A destination operation on a place that is not a destination."""
    return Refused(
        "this is not the destination of a mirror",
        where=where,
        why="it was never initialized, or it was made live by 'mirrord break'",
        hint="Use 'mirrord initialize NAME', or 'mirrord resync NAME' after a break.",
    )


def not_empty(where: str, found: str) -> MirrordError:
    """The destination is something that is not ours; found: what, as a clause ("it holds 'x'")."""
    return Refused(
        "the destination is not empty",
        where=where,
        why=f"{found}; mirrord did not make that and will not touch it",
        hint="Give a path that does not exist yet, or an empty directory.",
    )


def nothing_shown(where: str) -> MirrordError:
    """There is no complete update yet."""
    return Refused(
        "the destination shows nothing yet",
        where=where,
        hint="Run 'mirrord initialize NAME' to its end first.",
    )


def other_copy(where: str, there: str) -> MirrordError:
    """A second writable copy was asked for."""
    return Refused(
        "there is a writable copy already",
        where=where,
        why=f"it is {there}",
        hint="Remove that first: 'mirrord break NAME --end-test'.",
    )


def no_clones(where: str) -> MirrordError:
    """A writable copy of a volume whose kind has none."""
    return Unsupported("a volume of this kind has no writable copies", where=where)


def other_mirror(where: str, mirror_id: str) -> MirrordError:
    """The destination belongs to another mirror."""
    return Refused(
        "the destination belongs to another mirror",
        where=where,
        why=f"it was prepared for the mirror with the id {mirror_id}",
        hint="Give each mirror a destination of its own.",
    )


def no_space(where: str, why: str) -> MirrordError:
    """The file system is full."""
    return NoSpace(
        "no space is left on the file system",
        where=where,
        why=why,
        hint="Free space there and run the same command again; nothing that was committed is lost.",
    )


def stream_damaged(where: str, why: str) -> MirrordError:
    """A stream that does not hold what it should."""
    return Damaged(
        "the stream is damaged",
        where=where,
        why=why,
        hint="Nothing was applied; run the same command again.",
    )


def permission_missing(where: str, what: str) -> MirrordError:
    """A privilege is missing."""
    return PermissionMissing(
        "permission is missing",
        where=where,
        why=what,
        hint="Run it as root (or with sudo).",
    )
