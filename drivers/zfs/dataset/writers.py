"""The processes that have files of a dataset, or a zvol, open for writing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mirrord.core.model import OpenWriter
from mirrord.drivers.zfs.dataset import mounting
from mirrord.drivers.zfs.dataset.place import Dataset
from mirrord.system import mounts, openers

_BLOCK = Path("/sys/dev/block")


def of(volumes: Sequence[Dataset], limit: int) -> list[OpenWriter]:
    """See `Driver.writers`."""
    systems = {one.name for one in volumes if not one.is_zvol}
    devices = {mount.device for mount in mounts.everywhere() if mount.source in systems}
    found: list[OpenWriter] = []
    for device in sorted(devices):
        found += openers.writers_on(device, limit=limit - len(found))
    for one in volumes:
        if one.is_zvol and len(found) < limit:
            found += list(_of_device(mounting.view(one)))[: limit - len(found)]
    return found[:limit]


def _of_device(path: str) -> Iterator[OpenWriter]:
    """Processes with the device or one of its partitions open, and its holders in the kernel."""
    try:
        number = os.stat(path).st_rdev
    except OSError:
        return  # it has no device (volmode=none)
    folder = (_BLOCK / f"{os.major(number)}:{os.minor(number)}").resolve()
    numbers = {number}
    for part in folder.glob("*/partition"):
        major, _, minor = (part.parent / "dev").read_text().strip().partition(":")
        numbers.add(os.makedev(int(major), int(minor)))
    known = False
    for writer in openers.writers_of_devices(numbers):
        known = True
        yield writer
    for mount in mounts.everywhere():
        if mount.device in numbers:
            known = True
            yield OpenWriter(0, "mount", mount.path)
    for holder in (*folder.glob("holders/*"), *folder.glob("*/holders/*")):
        known = True
        yield OpenWriter(0, holder.name, path)
    if not known and _claimed(path):
        yield OpenWriter(0, "kernel", path)


def _claimed(path: str) -> bool:
    """Whether the device is open exclusively (by an iSCSI target, as a swap area …)."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError:
        return True
    return False
