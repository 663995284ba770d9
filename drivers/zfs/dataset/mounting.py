"""Mounting what mirrord receives: read-only, where its properties say, and never over files."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress

from mirrord.core.errors import Busy, MirrordError, Refused
from mirrord.core.units import format_few
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import mountpoint, names
from mirrord.drivers.zfs.dataset.place import Dataset
from mirrord.system import clock, files, mounts, steps

#: How often unmounting is tried before the file system is reported as in use.
_TRIES = 8
_PAUSE_S = 0.1


def not_meant(volume: Dataset) -> str:
    """Why mirrord should not mount a file system here, as a clause; "" when it should."""
    if volume.get("keystatus") == "unavailable":
        return f"its encryption key is not loaded ('zfs load-key {volume.name}')"
    if not volume.mountpoint:
        return f"its mountpoint is '{volume.get('mountpoint') or 'none'}'"
    if os.geteuid() != 0:
        return "only root may mount file systems here"
    if volume.get("canmount") == "off":
        return "its property canmount is off"
    return ""


def obstacle(volume: Dataset) -> str:
    """Why a file system cannot be mounted, as a clause; "" when no reason is known."""
    why = not_meant(volume)
    if why:
        return why
    folder = volume.mountpoint
    if os.path.ismount(folder):
        return f"something else is mounted at {folder}"
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return f"{folder} is not a directory"
    try:
        over = volume.local("overlay") == "on"
        if os.path.isdir(folder) and os.listdir(folder) and not over:
            return f"the directory {folder} is not empty"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    return ""


def mount(label: str, volume: Dataset) -> None:
    """Mount it when nothing prevents that; if it is not mounted, that is a fact, not an error."""
    if volume.is_zvol or volume.mounted or obstacle(volume):
        return
    steps.reached(label)
    # If this fails, `facts` reports that it is not mounted, and why if that is known.
    command.result(["zfs", "mount", volume.name])


def require_mounted(label: str, volume: Dataset, where: str) -> None:
    """Mount what has taken a volume's place, if mirrord should mount it; its mountpoint is then as
    it was before `below.guard`. Raises `Refused` when it cannot be mounted, or when files were
    created in the directory below meanwhile; may be called again.
    """
    if volume.is_zvol or not_meant(volume):
        return
    mount(label, volume)
    folder = volume.mountpoint
    hidden = [] if volume.local("overlay") == "on" else mountpoint.names(folder)
    asked = ["zfs", "get", "-H", "-o", "value", "mounted", volume.name]
    if command.run(asked, where).strip() != "yes":
        raise Refused(
            f"{volume.name} cannot be mounted",
            where=where,
            why=obstacle(volume) + (f" ({format_few(hidden)})" if hidden else ""),
            hint=f"Move the contents of {folder} elsewhere, then run the same command again; "
            f"'zfs mount {shlex.quote(volume.name)}' mounts it.",
        )
    mountpoint.release(folder)
    if hidden:
        raise Refused(
            f"files were created in {folder} while nothing was mounted there",
            where=where,
            why=f"{format_few(hidden)}: they are below the mountpoint, hidden now by {volume.name}",
            hint=f"To move them: mount --bind {shlex.quote(os.path.dirname(folder))} /mnt; they "
            f"are in /mnt/{os.path.basename(folder)}. Then run the same command again.",
        )


def missing(volume: Dataset | None) -> MirrordError | None:
    """The error when a live file system should be mounted and is not, or None."""
    if volume is None or volume.is_zvol or volume.mounted or volume.get("canmount") != "on":
        return None
    if not volume.mountpoint or volume.get("keystatus") == "unavailable":
        return None
    return Refused(
        f"the dataset {volume.name} is not mounted",
        where=f"zfs:{volume.name}",
        why=f"files written below its mountpoint {volume.mountpoint} are not in it",
        hint=f"Move such files elsewhere, then: zfs mount {shlex.quote(volume.name)} (or, if it is "
        f"not to be mounted: zfs set canmount=noauto {shlex.quote(volume.name)}).",
    )


def there(volume: Dataset | None) -> bool:
    """Whether a known volume is still where its users write to it, judging by its mountpoint."""
    if volume is None or missing(volume) is not None:
        return False
    return volume.is_zvol or not volume.mounted or os.path.ismount(volume.mountpoint)


def clear(volume: Dataset, where: str, *, force: bool) -> None:
    """Unmount a file system before another one takes its place: until that is mounted, no files can
    be created there (`below`). force: also while files in it are open, which stay accessible to
    the processes that opened them. `Busy` otherwise.
    """
    if volume.is_zvol or not volume.mounted:
        return
    mountpoint.guard(volume.mountpoint)
    for left in reversed(range(_TRIES)):
        try:
            unmount("ZFS:SWAP:UNMOUNT", volume, where)
            return
        except Busy:
            # A path lookup in it may be in progress, which ends soon.
            clock.sleep_s(_PAUSE_S)
            if not left and not force:
                mountpoint.release(volume.mountpoint)
                raise
    for path in places(volume):
        command.effect("ZFS:SWAP:DETACH", ["umount", "-l", path], where)


def places(volume: Dataset) -> list[str]:
    """Where a file system is mounted, the last mount first."""
    return [
        mount.path
        for mount in reversed(mounts.here())
        if mount.kind == "zfs" and mount.source == volume.name
    ]


def unmount(label: str, volume: Dataset, where: str) -> None:
    """Unmount a file system; `Busy` when it is in use."""
    if volume.is_zvol or not volume.mounted:
        return
    arguments = ["zfs", "unmount", volume.name]
    steps.reached(label)
    done = command.result(arguments)
    if done.status == 0 or "not currently mounted" in done.errors:
        return
    if "busy" in done.errors:
        raise Busy(
            "the volume is in use",
            where=where,
            why=f"files or directories in {volume.mountpoint} are open",
            hint="List the processes that use it: fuser -vm "
            f"{shlex.quote(volume.mountpoint)}. Nothing was changed.",
        )
    raise command.failure(where, arguments, done.errors)


def flush(label: str, volume: Dataset) -> None:
    """Pass to ZFS what users have written and the kernel still holds: pages of mapped files, the
    cache of a volume's device. Does nothing where this user may not open it.
    """
    folder = folder_of(volume)
    with suppress(FileNotFoundError, PermissionError):
        if folder:
            files.sync_filesystem(label, folder)
        elif volume.is_zvol and volume.get("readonly") != "on":
            # (Nothing is written to a read-only device, and a flush of it fails with EIO.)
            files.sync_device(label, view(volume))


def folder_of(volume: Dataset | None) -> str:
    """Where a dataset is mounted now, or ""."""
    if volume is None or volume.is_zvol or not volume.mounted:
        return ""
    return volume.mountpoint


def folder_aside(volume: Dataset | None, aside: str) -> str:
    """Where a dataset that was set aside for a volume is mounted, or ""."""
    if volume is None or volume.is_zvol or not volume.mountpoint:
        return ""
    folder = volume.mountpoint.rstrip("/") + aside[aside.index(names.MARKER) :]
    return folder if os.path.ismount(folder) else ""


def view(volume: Dataset) -> str:
    """The path at which users access a volume; "" when there is none."""
    if volume.is_zvol:
        return f"/dev/zvol/{volume.name}"
    return folder_of(volume)
