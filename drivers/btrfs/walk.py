"""What changed between two snapshots: block states from the extents, files from the stream.

An extent is never overwritten while a snapshot refers to it, so the extents in a snapshot's tree
are its active map, and the four states are set operations (FAST'02, 3.2.2). Two levels of detail:

-   what will be sent: only leaves of the incremental that are newer than the base are read;
-   all states: both trees are read completely. An extent counts with its full length on disk, as
    long as a file refers to any part of it. Data inside the tree itself (small files) counts as
    one block per file. `unused` is the size of the file system minus the union of both; it
    includes what other subvolumes use.

A balance or defragmentation moves extents: what it moved counts as added and deleted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from mirrord.core.model import BlockStates, Changes, Delta, FileChange
from mirrord.drivers.btrfs import ioctl, subvolume
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.btrfs.stream import BtrfsSendStream, Checkpoint, Sending
from mirrord.drivers.snapshottrees import Changed
from mirrord.system.files import opened
from mirrord.system.native import BtrfsBlocks, BtrfsChanges, BtrfsExtents

BLOCK_BYTES = 4096


def delta(
    base: SnapshotEntry | None,
    incremental: SnapshotEntry,
    *,
    live: subvolume.Info | None,
    states: bool,
    encoded: bool,
    changes: tuple[FileChange, ...] | None = None,
) -> Delta:
    """The delta. live: the live volume here, if there is one. encoded: compressed extents are
    sent compressed. changes: the files, when they were requested.
    """
    lineal = base is not None and _lineal(live, base, incremental)
    with opened(incremental.path) as descriptor:
        full = base is not None and (states or not lineal)
        newer_than = base.info.newest_generation if base and not full else 0
        new = _Tree(descriptor, incremental.info.id, newer_than, encoded)
        if base is not None and full:
            old = _Tree(descriptor, base.info.id, 0, encoded)
            counts = _compared(old, new)
            added = counts[2]
            send_bytes = BtrfsExtents(0, encoded).send_bytes + added * BLOCK_BYTES
            if lineal:  # read the newer leaves again, to count the metadata overhead
                newest = base.info.newest_generation
                send_bytes = _Tree(descriptor, incremental.info.id, newest, encoded).send_bytes()
        else:
            added, send_bytes = new.blocks(), new.send_bytes()
            counts = (0, 0, added)
    return Delta(
        base=base.snapshot.guid if base else None,
        incremental=incremental.snapshot.guid,
        block_size=BLOCK_BYTES,
        states=block_states(incremental.path, [counts]) if states else None,
        added_bytes=added * BLOCK_BYTES,
        send_bytes=send_bytes,
        changes=changes,
    )


class _Tree:
    """The extents of a tree; only one part at a time is in memory."""

    def __init__(self, descriptor: int, tree: int, newer_than: int, encoded: bool) -> None:
        self._search = functools.partial(
            ioctl.search_extents, descriptor, tree, newer_than=newer_than, encoded=encoded
        )

    @functools.cached_property
    def first(self) -> BtrfsExtents:
        """Part 0, which has the number of parts."""
        return self._search()

    def part(self, part: int, parts: int) -> BtrfsExtents:
        """Part `part` of `parts`."""
        if part:
            return self._search(part=part, parts=parts)
        self.first.divide(parts)
        return self.first

    def blocks(self) -> int:
        """Blocks of 4 KiB of all extents, each extent counted once."""
        parts = self.first.parts
        return sum(self.part(part, parts).blocks() for part in range(parts))

    def send_bytes(self) -> int:
        """The size of a stream with all of them."""
        return self.first.send_bytes


def _compared(old: _Tree, new: _Tree) -> tuple[int, int, int]:
    """(unchanged, deleted, added) blocks."""
    parts = max(old.first.parts, new.first.parts)
    return _sums(old.part(part, parts).compare(new.part(part, parts)) for part in range(parts))


def _sums(counts: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    unchanged, deleted, added = map(sum, zip(*counts, strict=True))
    return unchanged, deleted, added


class NamedBlocks(NamedTuple):
    """The blocks that the files of a snapshot refer to. guid: of the snapshot."""

    guid: str
    blocks: BtrfsBlocks


def changes(
    base: SnapshotEntry, incremental: SnapshotEntry, known: NamedBlocks | None
) -> tuple[Changes, NamedBlocks]:
    """The blocks that only one of the two refers to; and those of the incremental, to be passed as
    `known` when it is the base. Addresses are btrfs logical addresses, from which the data of a
    send stream is read; object 1 has the content inside the tree itself, 4 KiB per file.
    """
    with opened(incremental.path) as descriptor:
        if known is not None and known.guid == base.snapshot.guid:
            old = known.blocks
        else:
            old = ioctl.search_blocks(descriptor, base.info.id)
        new = ioctl.search_blocks(descriptor, incremental.info.id)
    return Changes(*old.changes(new)), NamedBlocks(incremental.snapshot.guid, new)


def _lineal(live: subvolume.Info | None, base: SnapshotEntry, incremental: SnapshotEntry) -> bool:
    """Whether the incremental's tree descends from the base's, so that everything newer than the
    base was added: both are snapshots of one volume, or one began as the other.
    """
    older, newer = base.info, incremental.info
    if not newer.parent_uuid or older.otransid > newer.otransid:
        return False
    began_as_base = live is not None and live.parent_uuid == older.uuid
    return newer.parent_uuid in (older.uuid, older.parent_uuid) or (
        live is not None and newer.parent_uuid == live.uuid and began_as_base
    )


def block_states(path: Path, counts: Iterable[tuple[int, int, int]]) -> BlockStates:
    """The sums of these counts, and how many other blocks the file system has."""
    unchanged, deleted, added = _sums(counts)
    size = os.statvfs(path)
    total = size.f_blocks * size.f_frsize // BLOCK_BYTES
    unused = max(0, total - unchanged - deleted - added)
    return BlockStates(unused=unused, unchanged=unchanged, deleted=deleted, added=added)


def changed_files(
    base: SnapshotEntry | None,
    incremental: SnapshotEntry,
    where: str,
    placed: Collection[str] = (),
) -> list[FileChange]:
    """The changed files, ordered by path, from a stream without data.

    placed: directories that something was placed in without a change of their times.
    """
    found = []
    for name, kind, data_bytes in _collected(base, incremental, where).finish():
        path = os.fsdecode(name)
        if kind == "times":
            old, new = (one.path / path for one in (base or incremental, incremental))
            if base is not None and _only_read(old, new, placed=path in placed):
                continue
            kind = "metadata"
        found.append(FileChange(path, kind, data_bytes))
    return found


def _only_read(old: Path, new: Path, *, placed: bool) -> bool:
    """Whether only the access time differs; placed: or the time of the last change."""
    try:
        one, other = os.lstat(old), os.lstat(new)
    except OSError:
        return False
    return one.st_mtime_ns == other.st_mtime_ns and (placed or one.st_ctime_ns == other.st_ctime_ns)


def _collected(base: SnapshotEntry | None, incremental: SnapshotEntry, where: str) -> BtrfsChanges:
    sending = Sending(
        incremental.path,
        parent_root=base.info.id if base else 0,
        shared=base is not None,
        flags=ioctl.SEND_NO_FILE_DATA,
    )
    collected = BtrfsChanges()
    with BtrfsSendStream(sending, where) as stream:
        while chunk := stream.read():
            collected.feed(chunk)
    return collected


def stream_of(
    older: SnapshotEntry | None,
    newer: SnapshotEntry,
    version: int,
    where: str,
    at: Checkpoint | None,
) -> BtrfsSendStream:
    """The stream from one snapshot to another, from that checkpoint."""
    # The 'btrfs receive' of Debian 12 looks for the source of a clone command only among
    # received subvolumes. Where the base came from the other end, it is not one of those
    # there: then the data is sent.
    shared = older is not None and not older.info.received_uuid
    sending = Sending(
        newer.path,
        parent_root=older.info.id if older else 0,
        shared=shared,
        flags=ioctl.SEND_COMPRESSED if version > 1 else 0,
        version=version,
        rewrite_ctransid=newer.info.stransid if newer.info.received_uuid else None,
    )
    return BtrfsSendStream(sending, where, at)


def changed_since(base: SnapshotEntry, incremental: SnapshotEntry, where: str) -> Changed:
    """Everything in the incremental that was changed, for its digests."""
    found = Changed([], {})
    ranges: dict[int, list[tuple[int, int]]] = {}
    for name, changed in _collected(base, incremental, where).ranges():
        inode = os.lstat(os.path.join(os.fsencode(incremental.path), name)).st_ino
        ranges.setdefault(inode, []).extend(changed)
        found.paths.append(name)
    return found._replace(ranges=ranges)
