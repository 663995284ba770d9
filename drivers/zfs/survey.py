"""What lies between two snapshots, exactly: by the records of the stream itself.

The pool's own books (compare.py) say how much space each of the four block states takes (FAST'02,
3.2.2), at once and exactly, but not where. The stream says where: which blocks of which objects are
`added`, and which are `deleted`. To know it the stream is made and thrown away, so it takes as long
as reading what is to be sent.

What the figures mean, on ZFS as on btrfs:

-   `added`: space on disk (after compression, with the metadata that ZFS writes anew) of blocks
    that are in the incremental and not in the base: `written@base` of the incremental. A record
    of the dataset's `recordsize` is written anew as a whole when one byte of it changes.
-   `unchanged`: space that both name: `referenced` of the incremental less `added`.
-   `deleted`: space that only the base names: `referenced` of the base less `unchanged`. What was
    overwritten counts here, and in `added` with its new content.
-   `unused`: all that the pool can hold for datasets less the union of both, so it has in it what
    other datasets use.

They are counted in sectors of 512 bytes, in which the pool accounts; on RAID-Z, where ZFS itself
reckons with an average for parity, rounded down. On btrfs a block is 4 KiB of an extent's length on
disk, without the metadata: there ends what can be compared.

In a volume the runs are exact ranges of blocks: added ones have new content, deleted ones are holes
now. In a file system they are exact by object, and an object's number is its files' inode number.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mirrord.core.model import Changes, FileChange
from mirrord.drivers.zfs.records import ObjectChange, ZfsScanner
from mirrord.drivers.zfs.stream import Sending, ZfsSendStream

#: The object of a volume that holds its content.
_CONTENT = 1
#: Object, offset, length: see `Changes`.
_CHANGE = struct.Struct("<QQQ")
#: "To its end" is 2**64 - 1 in a stream.
_OFFSET_MAX = (1 << 63) - 1


class Survey(NamedTuple):
    """A stream that was looked through.

    stream_bytes: its exact length. data_bytes: how much of that is content, as it is sent.
    objects: what becomes of each, by number. freed_objects: (first, end) of those that are gone.
    volume: of a volume, not of a file system.
    """

    stream_bytes: int
    data_bytes: int
    objects: dict[int, ObjectChange]
    freed_objects: tuple[tuple[int, int], ...]
    volume: bool = False

    def added_blocks(self, block_bytes: int) -> list[tuple[int, int]]:
        """Of a volume: the runs (first, end) of blocks that have new content."""
        return _blocks(self._content().added, block_bytes, None)

    def deleted_blocks(self, block_bytes: int, volume_bytes: int) -> list[tuple[int, int]]:
        """Of a volume of that size: the runs of blocks that are holes now. Some may have been
        holes before, too: a stream also says where nothing ever was.
        """
        return _blocks(self._content().freed, block_bytes, volume_bytes // block_bytes)

    def _content(self) -> ObjectChange:
        nothing = ObjectChange(_CONTENT, 0, 0, [], [], 0)
        return self.objects.get(_CONTENT, nothing)


def look_through(sending: Sending, where: str) -> Survey:
    """Make the stream and look at all of it. Raises what `zfs send` fails with."""
    scanner = ZfsScanner(collect=True)
    with ZfsSendStream(sending, where, None) as stream:
        while chunk := stream.read():
            scanner.feed(chunk)
    return Survey(
        stream_bytes=scanner.stream_bytes,
        data_bytes=scanner.data_bytes,
        objects={found.number: found for found in scanner.objects()},
        freed_objects=tuple(scanner.freed_objects()),
        volume=scanner.begin is not None and scanner.begin.volume,
    )


def changes(found: Survey) -> Changes:
    """The records of a stream as what was allocated and freed. In a volume these are addresses of
    it; in a file system of its objects: the inodes of files and folders.
    """
    if found.volume:
        content = found._content()
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
    mounted; base, incremental: the names of the snapshots. A file whose content stayed has only
    its metadata changed.
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
        return change  # not to be seen by this user: then it has no size
    moved = found.objects.get(now.st_ino)
    data_bytes = moved.payload_bytes if moved is not None else 0
    kind = change.change
    if kind == "modified" and not data_bytes and not _resized(older / change.path, now, moved):
        kind = "metadata"
    return FileChange(change.path, kind, data_bytes)


def _resized(older: Path, now: os.stat_result, moved: ObjectChange | None) -> bool:
    """Whether content went without any coming: it was cut short, or a hole was made in it."""
    try:
        before = os.lstat(older)
    except OSError:
        return True
    if before.st_size != now.st_size:
        return True
    freed = moved.freed if moved is not None else []
    return any(start < now.st_size for start, _end in freed)


def _blocks(
    runs: Iterable[tuple[int, int]], block_bytes: int, blocks_max: int | None
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in runs:
        first, last = start // block_bytes, -(-end // block_bytes)
        if blocks_max is not None:
            last = min(last, blocks_max)
        if found and first <= found[-1][1]:
            first = found.pop()[0]
        if first < last:
            found.append((first, last))
    return found
