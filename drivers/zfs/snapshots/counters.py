"""The kernel's counters of what was written to a volume since it was mounted.

`written` of a volume includes only what is on disk, and waiting for that takes a transaction group.
The counters include a write at once. They prove that a volume changed, never that it did not: they
are reset by each mount, and do not count every kind of change.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mirrord.drivers.zfs.dataset import locking
from mirrord.drivers.zfs.dataset.place import Dataset

_FOLDER = Path("/proc/spl/kstat/zfs")


def read(volume: Dataset) -> int:
    """The counted writes to the volume; 0 where they are not known."""
    identity = volume.get("objsetid")
    if not identity.isdigit():
        return 0
    path = _FOLDER / volume.name.partition("/")[0] / f"objset-0x{int(identity):x}"
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    fields = [line.split() for line in lines]
    return next((int(words[2]) for words in fields if words[:1] == ["writes"]), 0)


def save(volume: Dataset, guid: str, writes: int) -> None:
    """Store the count of writes before the snapshot `guid` was taken. A failure is ignored."""
    path = locking.lock_file(volume.name, "writes")
    beside = path.with_suffix(f".{os.getpid()}.new")
    with suppress(OSError):
        beside.write_text(f"{volume.guid} {guid} {writes}")
        os.replace(beside, path)


def has_writes(volume: Dataset, guid: str) -> bool:
    """Whether it is certain that the volume was written to since that snapshot."""
    try:
        kept = locking.lock_file(volume.name, "writes").read_text().split()
    except (OSError, UnicodeDecodeError):
        return False
    if len(kept) != 3 or kept[:2] != [volume.guid, guid] or not kept[2].isdigit():
        return False
    return read(volume) > int(kept[2])
