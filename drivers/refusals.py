"""The errors that all drivers share, so that their texts are the same."""

from __future__ import annotations

import errno
import os
import shlex
from typing import TypeVar

from mirrord.core.errors import (
    MIRROR,
    Busy,
    CheckpointUseless,
    Damaged,
    Diverged,
    MirrordError,
    NoSpace,
    NotFound,
    PermissionMissing,
    Refused,
)

_Found = TypeVar("_Found")


def replaced(where: str, why: str, *, is_member: bool = False) -> MirrordError:
    """The live volume at the source is not the mirrored one. is_member: it is one of several."""
    change = f"run 'mirrord change-source {MIRROR} ENDPOINT' if it was moved on purpose; or, "
    return Diverged(
        "another volume has taken the place of the source",
        where=where,
        why=why,
        hint="Nothing was transferred, and all copies are kept. Move the mirrored volume back; or "
        f"{'' if is_member else change}to mirror the volume that is there now, 'mirrord resync "
        f"{MIRROR}'.",
    )


def failed_hint(error: OSError, otherwise: str) -> str:
    """What to do about a failed system call: `otherwise`, unless its reason says more."""
    if error.errno == errno.ENOENT:
        return "Check that its file system is mounted, and that nothing was removed there."
    return "Choose a shorter path." if error.errno == errno.ENAMETOOLONG else otherwise


def destination_replaced(where: str) -> MirrordError:
    """The live volume at the destination was never this mirror's copy."""
    return Refused(
        "another volume has taken the place of the destination",
        where=where,
        why="it is a live volume that is not this mirror's copy",
        hint="Nothing was changed. Move that volume away and the copy back. If the copy is lost: "
        f"'mirrord delete {MIRROR} --yes', then create the mirror again with a destination that "
        "does not exist yet; the source is not changed.",
    )


def base_missing(where: str, guid: str) -> MirrordError:
    """The base does not exist, or no longer."""
    return Diverged(
        "the base snapshot does not exist",
        where=where,
        why=f"no intact snapshot has the guid {guid}: it was deleted or made writable",
        hint=f"'mirrord explain {MIRROR}' shows which snapshots both ends still have; 'mirrord "
        f"resync {MIRROR}' continues from the newest of them.",
    )


def demand_base(found: _Found | None, where: str, guid: str) -> _Found:
    """What was found of the base; `Diverged` when the volume does not have it."""
    if found is None:
        raise base_missing(where, guid)
    return found


def snapshot_missing(where: str, guid: str) -> MirrordError:
    """The volume does not have a requested snapshot."""
    return NotFound("no such snapshot", where=where, why=f"no snapshot has the guid {guid}")


def demand_snapshot(found: _Found | None, where: str, guid: str) -> _Found:
    """What was found of a requested snapshot; `NotFound` when the volume does not have it."""
    if found is None:
        raise snapshot_missing(where, guid)
    return found


def staging_missing(where: str, transfer_id: str) -> MirrordError:
    """A commit of a transfer that was never received."""
    return NotFound("nothing is staged", where=where, why=f"there is no transfer {transfer_id}")


def not_live(where: str) -> MirrordError:
    """An operation on the live volume of a place that has none."""
    return Refused(
        "there is no live volume here",
        where=where,
        why="it is a read-only destination, or there is no volume",
        hint=f"Give the source volume, or make the destination live with 'mirrord break {MIRROR}'.",
    )


def not_a_mirror(where: str) -> MirrordError:
    """An operation on a destination, at a place that is none."""
    return Refused(
        "this is not the destination of a mirror",
        where=where,
        why="it was never initialized, it was made live by 'mirrord break', or its record was lost",
        hint=f"Run 'mirrord initialize {MIRROR}', or 'mirrord resync {MIRROR}' after a break. If "
        f"its record was lost, run 'mirrord break {MIRROR}' first.",
    )


def not_empty(where: str, found: str) -> MirrordError:
    """The destination has content that mirrord did not create; found: a clause ("it holds 'x'")."""
    return Refused(
        "the destination is not empty",
        where=where,
        why=f"{found}; mirrord does not overwrite it",
        hint="Give a path that does not exist yet, or an empty directory.",
    )


def parent_missing(what: str, where: str, parent: str) -> MirrordError:
    """The folder in which something is to be created does not exist."""
    return Refused(
        f"the parent folder of {what} does not exist",
        where=where,
        why=parent,
        hint=f"Create it with: mkdir -p {shlex.quote(parent)}",
    )


def view_replaced(view: str) -> MirrordError:
    """Something was put in the place of the destination's view."""
    return Refused(
        "something else is in the place of the destination's view",
        where=view,
        why="it is not a view that mirrord made, and is not overwritten",
        hint=f"Rename it (mv {shlex.quote(view)} {shlex.quote(f'{view}.old')}) and run the same "
        "command again.",
    )


def nothing_shown(where: str) -> MirrordError:
    """There is no complete update yet."""
    return Refused(
        "the destination shows nothing yet",
        where=where,
        hint=f"Complete 'mirrord initialize {MIRROR}' first.",
    )


def other_copy(where: str, there: str) -> MirrordError:
    """A second writable copy was requested."""
    return Refused(
        "a writable copy already exists",
        where=where,
        why=f"it is {there}",
        hint=f"Remove it first: 'mirrord break {MIRROR} --end-test'.",
    )


def same_volume(where: str) -> MirrordError:
    """Source and destination are one volume, perhaps under two names."""
    return Refused("source and destination are the same volume", where=where)


def other_mirror(where: str, mirror_id: str) -> MirrordError:
    """The destination belongs to another mirror."""
    return Refused(
        "the destination belongs to another mirror",
        where=where,
        why=f"it was prepared for the mirror with the id {mirror_id}",
        hint="Give each mirror its own destination. If that mirror was reversed, and this one is "
        "to have the volume again, run 'mirrord break' for that one first.",
    )


def no_space(where: str, why: str) -> MirrordError:
    """The file system is full."""
    return NoSpace(
        "no space is left on the file system",
        where=where,
        why=why,
        hint="Free space there and run the same command again; no committed data is lost.",
    )


def created_meanwhile(where: str) -> MirrordError:
    """Another host has created an end of the same mirror since this one looked."""
    return Refused(
        "another host is initializing the mirror",
        where=where,
        hint="Run the same command again: it waits for the copy that the other one has begun.",
    )


def live_definition_by_hand(mirror_id: str) -> str:
    """A hint: how the lost definition of a live mirror is made again."""
    return (
        "If its definition was lost, write it by hand (docs/live-modes.md): "
        f'id = "{mirror_id}", the policy, and the endpoints of both sites.'
    )


def stream_damaged(where: str, why: str, *, also: str = "") -> MirrordError:
    """A stream with invalid content. also: a sentence for the hint."""
    return Damaged(
        "the stream is damaged",
        where=where,
        why=why,
        hint=f"Nothing was applied; run the same command again.{also}",
    )


def checkpoint_useless(where: str, why: str) -> CheckpointUseless:
    """The other end has other data than what is sent now."""
    return CheckpointUseless(
        "the transfer cannot be resumed where it was interrupted",
        where=where,
        why=why,
        hint="Run the same command again: it starts from the beginning.",
    )


def permission_missing(where: str, what: str) -> MirrordError:
    """A privilege is missing, or not even root may do it."""
    hint = "Run it as root (or with sudo)."
    if os.geteuid() == 0:
        hint = (
            "Check with 'lsattr' whether it or its folder is immutable or append-only, and remove "
            "that with 'chattr -i -a'. In a container root also needs CAP_SYS_ADMIN."
        )
    return PermissionMissing("permission denied", where=where, why=what, hint=hint)


def image_not_empty(where: str) -> MirrordError:
    """An image that would become a replica, and so be overwritten."""
    return Refused(
        "the destination is not empty",
        where=where,
        why="the image holds data",
        hint="Move it away if its data may be needed (a missing file is created), or erase a "
        "device with 'blkdiscard' or 'wipefs'.",
    )


def images_differ_in_size(where: str, size: int, wanted: int) -> MirrordError:
    """An image that would become a replica has another size than the source."""
    return Refused(
        "the images differ in size",
        where=where,
        why=f"it has {size} bytes, the source {wanted}",
        hint="Create it with the size of the source, or move it away: a missing file is created.",
    )


def image_in_use(where: str, by: str) -> MirrordError:
    """An image to be mirrored live is used by another program."""
    return Busy(
        "the image is in use",
        where=where,
        why=by,
        hint="End that program. Clients of a live mirror connect by NBD "
        f"('mirrord serve {MIRROR}').",
    )
