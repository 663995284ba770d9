"""The exact difference between two snapshots, by the records of the stream itself.

The pool's accounting (snapshots/compare.py) has the space of each of the four block states
(FAST'02, 3.2.2), immediately and exactly, but not the location. The stream has the location: which
blocks of which objects are `added`, and which are `deleted`. The stream is generated for that and
discarded, which takes as long as reading the data to be sent.

Definition of the figures, on ZFS as on btrfs:

-   `added`: space on disk (after compression, with the metadata that ZFS rewrites) of blocks that
    are in the incremental and not in the base: `written@base` of the incremental. A record of the
    dataset's `recordsize` is rewritten completely when one byte of it changes.
-   `unchanged`: space that both reference: `referenced` of the incremental less `added`.
-   `deleted`: space that only the base references: `referenced` of the base less `unchanged`.
    Overwritten blocks count here, and in `added` with their new content.
-   `unused`: the pool's capacity for datasets less the union of both; it includes what other
    datasets use.

They are counted in sectors of 512 bytes, the unit of the pool's accounting; on RAID-Z, where ZFS
itself uses an average for parity, rounded down. On btrfs a block is 4 KiB of an extent's length on
disk, without metadata: in that the figures of the two cannot be compared.

In a volume the runs are exact ranges of blocks: added ones have new content, deleted ones are holes
now. In a file system they are exact by object; an object's number is the inode number of its file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mirrord.core.model import Changes, FileChange
from mirrord.drivers.zfs.stream.records import ObjectChange, ZfsScanner
from mirrord.drivers.zfs.stream.send import Sending, ZfsSendStream

#: The object of a volume that holds its content.
_CONTENT = 1
#: Object, offset, length: see `Changes`.
_CHANGE = struct.Struct("<QQQ")
#: In a stream 2**64 - 1 means "to the end".
_OFFSET_MAX = (1 << 63) - 1


class Survey(NamedTuple):
    """The result of parsing a stream.

    stream_bytes: its exact length.
    objects: the change of each, by number. freed_objects: (first, end) of deleted ones.
    volume: of a volume, not of a file system.
    """

    stream_bytes: int
    objects: dict[int, ObjectChange]
    freed_objects: tuple[tuple[int, int], ...]
    volume: bool = False


def parse_stream(sending: Sending, where: str) -> Survey:
    """Generate the stream and parse all of it. Raises the error of `zfs send`."""
    scanner = ZfsScanner(collect=True)
    with ZfsSendStream(sending, where, None) as stream:
        while chunk := stream.read():
            scanner.feed(chunk)
    return Survey(
        stream_bytes=scanner.stream_bytes,
        objects={found.number: found for found in scanner.objects()},
        freed_objects=tuple(scanner.freed_objects()),
        volume=scanner.begin is not None and scanner.begin.volume,
    )


def changes(found: Survey) -> Changes:
    """The allocated and freed ranges of a stream. The addresses are those in a volume; in a file
    system, those in its objects: the inodes of files and directories.
    """
    if found.volume:
        content = found.objects.get(_CONTENT, ObjectChange(_CONTENT, 0, 0, [], [], 0))
        return Changes(_packed(0, content.added), _packed(0, content.freed))
    objects = sorted(found.objects.items())
    return Changes(
        b"".join(_packed(number, one.added) for number, one in objects),
        b"".join(_packed(number, one.freed) for number, one in objects),
        found.freed_objects,
    )


def _packed(number: int, runs: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(
        _CHANGE.pack(number, start, min(end, _OFFSET_MAX) - start)
        for start, end in runs
        if start < _OFFSET_MAX
    )


def with_sizes(
    changes: Iterable[FileChange], found: Survey, folder: str, base: str, incremental: str
) -> tuple[FileChange, ...]:
    """The changed files with the bytes that each adds to the stream. folder: where the dataset is
    mounted; base, incremental: the names of the snapshots. A file with the same content is listed
    as a change of metadata.
    """
    snapshots = Path(folder, ".zfs", "snapshot")
    return tuple(
        _with_size(change, found, snapshots / base, snapshots / incremental) for change in changes
    )


def _with_size(change: FileChange, found: Survey, older: Path, newer: Path) -> FileChange:
    if change.change == "deleted":
        return change
    try:
        now = os.lstat(newer / change.path)
    except OSError:
        return change  # not accessible to this user: it gets no size
    moved = found.objects.get(now.st_ino)
    data_bytes = moved.payload_bytes if moved is not None else 0
    kind = change.change
    if kind == "modified" and not data_bytes and not _resized(older / change.path, now, moved):
        kind = "metadata"
    return FileChange(change.path, kind, data_bytes)


def _resized(older: Path, now: os.stat_result, moved: ObjectChange | None) -> bool:
    """Whether content was only removed: the file was truncated, or a hole was punched."""
    try:
        before = os.lstat(older)
    except OSError:
        return True
    if before.st_size != now.st_size:
        return True
    freed = moved.freed if moved is not None else []
    return any(start < now.st_size for start, _end in freed)
