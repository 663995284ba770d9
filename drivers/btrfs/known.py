"""A cache of what the drivers of one process have read from btrfs volumes.

The daemon lists the same thousands of snapshots every few seconds. Each entry is checked against
the file system when it is used.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from mirrord.core.model import SnapshotKind

if TYPE_CHECKING:
    from mirrord.drivers.btrfs.layout import Record

#: Identifies a version of a file: inode, modification time in ns, size in bytes.
Stamp = tuple[int, int, int]


class Known:
    """Created once (drivers/registry.py); each `Layout` refers to it."""

    def __init__(self) -> None:
        #: For each folder of snapshots, by the snapshot's folder: the record file and its content.
        self.records: dict[Path, dict[str, tuple[Stamp, Record | None]]] = {}
        #: For each store, by guid: where the last listing found a snapshot. That avoids reading
        #: thousands of folders to find one.
        self.places: dict[Path, dict[str, tuple[Path, SnapshotKind]]] = {}
        #: Held while a commit is being requested.
        self.committing = threading.Lock()


def stamp(file: os.stat_result) -> Stamp:
    """The stamp of a file, which differs once it is replaced or written to."""
    return file.st_ino, file.st_mtime_ns, file.st_size
