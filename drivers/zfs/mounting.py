"""Mounting what mirrord receives: read-only, where its properties say, and never over anything."""

from __future__ import annotations

import os
from contextlib import suppress

from mirrord.core.errors import Busy
from mirrord.drivers.zfs import command, names
from mirrord.drivers.zfs.place import Dataset
from mirrord.system import files, steps


def obstacle(volume: Dataset) -> str:
    """Why a file system that is not mounted cannot be, as a clause; "" when nothing is known."""
    if volume.get("keystatus") == "unavailable":
        return f"its encryption key is not loaded ('zfs load-key {volume.name}')"
    if not volume.mountpoint:
        return f"its mountpoint is '{volume.get('mountpoint') or 'none'}'"
    if os.geteuid() != 0:
        return "only root may mount file systems here"
    if volume.get("canmount") == "off":
        return "its property canmount is off"
    folder = volume.mountpoint
    if os.path.ismount(folder):
        return f"something else is mounted at {folder}"
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return f"{folder} is not a folder"
    try:
        if os.path.isdir(folder) and os.listdir(folder):
            return f"the folder {folder} is not empty"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    return ""


def mount(label: str, volume: Dataset) -> None:
    """Mount it when nothing is in the way; that it is not mounted is a fact, not an error."""
    if volume.is_zvol or volume.mounted or obstacle(volume):
        return
    steps.reached(label)
    # Should it fail, `facts` says that it is not mounted, and what is known of why.
    command.result(["zfs", "mount", volume.name])


def unmount(label: str, volume: Dataset, where: str) -> None:
    """Take a file system out of its place; `Busy` when somebody is in it."""
    if volume.is_zvol or not volume.mounted:
        return
    arguments = ["zfs", "unmount", volume.name]
    steps.reached(label)
    done = command.result(arguments)
    if done.status == 0 or "not currently mounted" in done.errors:
        return
    if "busy" in done.errors:
        raise Busy(
            "the volume is in use", where=where,
            why=f"files or folders in {volume.mountpoint} are open",
            hint=f"See who uses it: fuser -vm {volume.mountpoint}. Nothing was changed.",
        )  # fmt: skip
    raise command.failure(where, arguments, done.errors)


def flush(label: str, volume: Dataset) -> None:
    """Bring what users have written, but the kernel has not passed on to ZFS, there: pages that are
    mapped into memory; the cache of a volume's device. Where this user may open it.
    """
    folder = folder_of(volume)
    with suppress(FileNotFoundError, PermissionError):
        if folder:
            files.sync_filesystem(label, folder)
        elif volume.is_zvol and volume.get("readonly") != "on":
            # (Nobody writes to a device that is read-only, and it answers a flush by EIO.)
            files.sync_device(label, view(volume))


def folder_of(volume: Dataset | None) -> str:
    """Where a dataset's files are now, or ""."""
    if volume is None or volume.is_zvol or not volume.mounted:
        return ""
    return volume.mountpoint


def folder_aside(volume: Dataset | None, aside: str) -> str:
    """Where the files are of a dataset that was set aside for a volume, or ""."""
    if volume is None or volume.is_zvol or not volume.mountpoint:
        return ""
    folder = volume.mountpoint.rstrip("/") + aside[aside.index(names.MARKER) :]
    return folder if os.path.ismount(folder) else ""


def view(volume: Dataset) -> str:
    """The path at which users see a volume; "" where they do not."""
    if volume.is_zvol:
        return f"/dev/zvol/{volume.name}"
    return folder_of(volume)
