"""Repairing the snapshot that a destination shows: a corrected copy takes its place.

The copy begins as a writable snapshot of the damaged one in `repair/`, which no user sees. What was
wrong is written to it; it gets the same identity, becomes read-only and is compared with the
source's digest. Only then it is moved into the store and shown, in one step each, and the damaged
one is deleted. After a crash before the move nothing has changed; after it, `settle` does the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from mirrord.core.errors import Refused, TransferFailed
from mirrord.core.model import SnapshotKind
from mirrord.drivers.btrfs import ioctl, layout, store, subvolume
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.system import files, steps

_MARK = "~repaired"
#: Lost by a write.
_CAPABILITY = "security.capability"
_PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC


def begin(place: Layout, guid: str, where: str) -> None:
    """Prepare a copy of the snapshot that is shown."""
    settle(place)
    discard(place)
    one = store.shown(place)
    if one is None or one.wrapper is None or guid not in (one.snapshot.guid, one.info.guid):
        raise Refused(
            "only the snapshot that the destination shows can be repaired",
            where=where,
            hint="Run 'mirrord verify --repair' again.",
        )
    stem = one.wrapper.name.partition(_MARK)[0]
    names = (f"{stem}{_MARK}{number}" for number in itertools.count(1))
    name = next(name for name in names if not (place.snapshots / name).exists())
    files.make_directory("BTRFS:REPAIR:FOLDER", place.repair, mode=0o700)
    files.make_directory("BTRFS:REPAIR:FOLDER", place.repair / name)
    copy = place.repair / name / name
    subvolume.snapshot("BTRFS:REPAIR:SNAPSHOT", one.path, copy, read_only=False)


def discard(place: Layout) -> None:
    """Remove a copy that was not finished."""
    for wrapper in files.paths_in(place.repair):
        if subvolume.is_subvolume(wrapper / wrapper.name):
            subvolume.delete("BTRFS:REPAIR:DISCARD", wrapper / wrapper.name)
        files.remove_folder("BTRFS:REPAIR:DISCARD", wrapper)


def _copy(place: Layout, where: str) -> Path:
    """The prepared copy."""
    for wrapper in files.paths_in(place.repair):
        if subvolume.is_subvolume(wrapper / wrapper.name):
            return wrapper / wrapper.name
    raise Refused("no repair has been begun", where=where)


def write(place: Layout, path: str, offset: int, data: bytes, where: str) -> None:
    """Write a part of a file of the copy, within its size; all its metadata remain."""
    with _opened(_copy(place, where), path, os.O_RDWR, where) as descriptor:
        status = os.fstat(descriptor)
        if offset < 0 or offset + len(data) > status.st_size:
            raise Refused("a repair cannot change the size of a file", where=where, why=path)
        capability = None
        with contextlib.suppress(OSError):
            capability = os.getxattr(descriptor, _CAPABILITY)
        steps.reached("BTRFS:REPAIR:WRITE")
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], offset + done)
        if capability is not None:
            os.setxattr(descriptor, _CAPABILITY, capability)
        os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))


def read(volume: Path, path: str, offset: int, length: int, where: str) -> bytes:
    """A part of a file of a snapshot."""
    with _opened(volume, path, os.O_RDONLY, where) as descriptor:
        parts = []
        while length > 0 and (part := os.pread(descriptor, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)


@contextlib.contextmanager
def _opened(volume: Path, path: str, flags: int, where: str) -> Iterator[int]:
    """A regular file below a folder; no link is followed on the way."""
    names = path.split("/")
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise Refused(f"invalid path: {path[:100]!r}", where=where)
    *folders, last = os.fspath(volume), *names
    with contextlib.ExitStack() as stack:
        at: int | None = None
        for name in folders:
            at = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _PLAIN, dir_fd=at)
            stack.callback(os.close, at)
        # Before it is opened: to open a device may do something.
        if not stat.S_ISREG(os.lstat(last, dir_fd=at).st_mode):
            raise Refused("only files can be repaired", where=where, why=path)
        descriptor = os.open(last, flags | _PLAIN, dir_fd=at)
        stack.callback(os.close, descriptor)
        yield descriptor


def finish(
    place: Layout,
    guid: str,
    root: str,
    digest: Callable[[SnapshotEntry, SnapshotEntry], str],
    where: str,
) -> None:
    """Show the copy in place of the damaged snapshot. root: of the source's tree. digest: computes
    that of the second snapshot, from the tree of the first and what differs between them.
    """
    settle(place)
    damaged = store.shown(place)
    if damaged is None or guid not in (damaged.snapshot.guid, damaged.info.guid):
        raise Refused("the destination shows another snapshot now", where=where)
    if (
        not files.names_in(place.repair)
        and damaged.wrapper is not None
        and _MARK in damaged.wrapper.name
    ):
        return  # it was finished before
    copy = _copy(place, where)
    uuid, _, transaction = guid.partition(":")
    files.sync_filesystem("BTRFS:REPAIR:SYNC", copy)
    if not subvolume.info(copy).read_only:
        steps.reached("BTRFS:REPAIR:IDENTITY")
        ioctl.set_received(copy, uuid, int(transaction))
        subvolume.set_read_only("BTRFS:REPAIR:READONLY", copy)
    info = subvolume.info(copy)
    found = digest(damaged, SnapshotEntry(damaged.snapshot, info, copy))
    if found != root or info.guid != guid:
        discard(place)
        raise TransferFailed(
            "the repaired snapshot differs from the source's",
            where=where,
            why=f"its digest is {found[:16]}…, the source's is {root[:16]}…",
            hint="Nothing was changed. Run 'mirrord verify NAME --full' again.",
        )
    snapshot = damaged.snapshot._replace(guid=guid, pinned=(), intact=True)
    record = Record(f"repair-{copy.name[-40:]}", None, snapshot, True, info.ctransid)
    layout.write_record("BTRFS:REPAIR:RECORD", copy.parent, record)
    files.rename("BTRFS:REPAIR:MOVE", copy.parent, place.snapshots / copy.name, leaving=True)
    settle(place)


def settle(place: Layout) -> None:
    """Where a snapshot and its repaired copy exist, show the copy and delete the other one."""
    for name in [name for name in files.names_in(place.snapshots) if _MARK in name]:
        repaired = store.in_wrapper(place, place.snapshots / name, SnapshotKind.REFERENCE)
        if repaired is None or not repaired.snapshot.intact:
            continue
        for other in _others(place, repaired):
            if other.wrapper is not None and place.shown_wrapper() == other.wrapper.name:
                files.switch_link("BTRFS:REPAIR:SHOW", place.link_target(name), place.view)
            subvolume.delete("BTRFS:REPAIR:DELETE", other.path)
            store.sweep(place)


def _others(place: Layout, repaired: SnapshotEntry) -> list[SnapshotEntry]:
    """The older copies of the same snapshot."""
    guid = repaired.snapshot.guid
    return [
        one
        for one in store.kept(place)
        if guid in (one.snapshot.guid, one.info.guid)
        and one.info.otransid < repaired.info.otransid
        and one.snapshot.kind is SnapshotKind.REFERENCE
    ]
