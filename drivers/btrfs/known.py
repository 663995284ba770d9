"""What the drivers of one process have seen of btrfs volumes, so that it is not read again.

A service looks at the same thousands of snapshots every few seconds. What is kept here is checked
against the file system each time it is used.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from mirrord.core.model import SnapshotKind

if TYPE_CHECKING:
    from mirrord.drivers.btrfs.layout import Record
    from mirrord.drivers.btrfs.spool import Spooled

#: Which file it was, and as of when: inode, time of the last change in ns, bytes.
Stamp = tuple[int, int, int]


class Known:
    """Made once (drivers/registry.py); each `Layout` has it."""

    def __init__(self) -> None:
        #: Of each folder of snapshots, by the snapshot's folder: the file of its record, and what
        #: that said.
        self.records: dict[Path, dict[str, tuple[Stamp, Record | None]]] = {}
        #: Of each store: where a snapshot was seen last, by guid. That saves reading thousands of
        #: folders to find one; only of those that the last listing found.
        self.places: dict[Path, dict[str, tuple[Path, SnapshotKind]]] = {}
        #: Of each spool: the file, and what was found at its end.
        self.spools: dict[Path, tuple[Stamp, Spooled]] = {}
        #: Held while a commit is being asked for.
        self.committing = threading.Lock()


def stamp(file: os.stat_result) -> Stamp:
    """Of a file that may be another one, or written on, the next time."""
    return file.st_ino, file.st_mtime_ns, file.st_size
