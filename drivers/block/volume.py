"""The user interface of a block volume: bytes, snapshots, flush.

Written content is durable, and part of snapshots, after `flush` (or `snapshot`, or `close`). A
flush is atomic: after a crash the volume has the state of one flush. A failed write or flush
reverts the volume to the last flush, and it remains usable.

Only one process at a time can have a volume open for writing. Within that process a mirror's driver
uses the same open volume, so its snapshots include everything written before, and writes after it
froze or switched the volume fail.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from mirrord.core.errors import MIRROR, Busy, Damaged, NoSpace, Refused, UsageError
from mirrord.core.model import Role, Snapshot, SnapshotKind
from mirrord.drivers.block import rootrecord, writerlock
from mirrord.drivers.block.activemap import MapView, differing_chunks
from mirrord.drivers.block.content import read_bytes
from mirrord.drivers.block.format import BLOCK_BYTES, SIZE_BYTES_MAX, Root
from mirrord.drivers.block.image import CHANGED_NODES_MAX, LiveImage
from mirrord.drivers.block.place import foreign_content
from mirrord.drivers.block.reclaim import punch_runs, reclaim_snapshots, reclaim_unheld
from mirrord.drivers.block.rootrecord import Entry, RootRecord, content_digest
from mirrord.drivers.block.store import BlockStore, io_errors
from mirrord.drivers.refusals import demand_snapshot
from mirrord.system import clock, files, locks

#: Blocks written between checks of the memory used by changed nodes: 4 MiB.
_BLOCKS_PER_STEP = 1024
#: How long to wait for another writer of the volume.
_PATIENCE_S = 5.0

Change = Callable[[RootRecord], RootRecord]

_open_volumes: weakref.WeakValueDictionary[str, Volume] = weakref.WeakValueDictionary()


class Volume:
    """An open volume. A context manager; safe to use from several threads."""

    def __init__(self, path: Path, *, writable: bool, locked: ExitStack | None = None) -> None:
        self.path = path
        self.writable = writable
        self.frozen = False
        self.mutex = threading.RLock()
        self._closed = False
        self._locked = locked or ExitStack()
        self.store = BlockStore(path, writable=writable)
        self._views: dict[str, MapView] = {}
        self._doubtful: dict[str, MapView] = {}
        self.record: RootRecord
        self.image: LiveImage
        self._start(rootrecord.load(path))

    # Opening and closing

    @classmethod
    def create(cls, path: str | Path, size_bytes: int) -> Volume:
        """Create an empty volume in a directory that is absent or empty; open for writing.

        size_bytes: 1 to 16 TiB; takes no space. `Refused` when the directory is not empty.
        """
        path = Path(path)
        if not 0 < size_bytes <= SIZE_BYTES_MAX:
            raise UsageError(f"cannot create a volume of {size_bytes} bytes", why="at most 16 TiB")
        found = foreign_content(path)
        if found is not None:
            raise Refused(
                "no volume can be created here",
                where=str(path),
                why=f"it holds {found}",
                hint="Give a path that does not exist yet, or an empty directory.",
            )
        write_first_record(path, RootRecord(str(uuid.uuid4()), Role.LIVE, Root(size_bytes)))
        return cls.open(path, writable=True)

    @classmethod
    def open(
        cls, path: str | Path, writable: bool = False, *, wait_s: float = _PATIENCE_S
    ) -> Volume:
        """Open an existing volume. Writable: the live volume only, and exclusively.

        Waits for another writer (including a daemon that deletes a snapshot). `NotFound`,
        `Damaged`, `Busy` (also for a frozen volume); `Refused` for writing to a mirror.
        """
        path = Path(path)
        if not writable:
            return cls(path, writable=False)
        volume = cls._manage(path, writerlock.WRITING, wait_s)
        if volume.record.role is not Role.LIVE:
            volume.close()
            raise writerlock.read_only(path)
        _open_volumes[os.path.realpath(path)] = volume
        return volume

    @classmethod
    def _manage(cls, path: Path, purpose: str, wait_s: float) -> Volume:
        """Open the volume with its lock; `Busy` when that is not free within `wait_s`."""
        rootrecord.load(path)
        try:
            locked = writerlock.take(path, purpose, wait_s)
        except Busy:
            if is_frozen(path):
                raise writerlock.frozen(path) from None
            raise
        return cls(path, writable=True, locked=locked)

    @classmethod
    @contextmanager
    def managed(cls, path: Path, purpose: str) -> Iterator[Volume]:
        """A volume of any role, to change its record: the one open in this process, or a new one.

        Waits for writers in other processes; then `Busy`.
        """
        shared = open_volume(path)
        if shared is not None:
            with shared.mutex:
                yield shared
            return
        volume = cls._manage(path, purpose, _PATIENCE_S)
        try:
            yield volume
        finally:
            volume._release()

    @classmethod
    def freeze(cls, path: Path) -> Volume:
        """Flush the live volume, and block all writes until `thaw` is called or this process ends.
        In this process `managed` still works. `Busy` when another process has the volume open for
        writing; `Refused` for a mirror.
        """
        shared = open_volume(path)
        volume = shared or cls._manage(path, writerlock.FREEZING, _PATIENCE_S)
        try:
            with volume.mutex:
                if volume.record.role is not Role.LIVE:
                    raise writerlock.read_only(path)
                volume.commit("BLOCK:FREEZE:ROOT")
                volume.frozen = True
                if shared is None:
                    volume._closed = True
                    _open_volumes[os.path.realpath(path)] = volume
        except BaseException:
            if shared is None:
                volume._release()
            raise
        return volume

    def thaw(self) -> None:
        """End the freeze, if there is one."""
        with self.mutex:
            self.frozen = False
            if self._closed:
                self._release()

    def close(self) -> None:
        """Flush and close. May be called twice. (A freeze has flushed already.)"""
        try:
            if self.writable and self.record.role is Role.LIVE and not self.frozen:
                self.flush()
        finally:
            self._release()

    def _release(self) -> None:
        with self.mutex:
            self._closed = True
            if self.frozen:
                return  # the lock is needed until the thaw
            self.writable = False
            if open_volume(self.path) is self:
                del _open_volumes[os.path.realpath(self.path)]
            self.store.close()
            self._locked.close()

    def __enter__(self) -> Self:
        """The volume itself."""
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        """Close it; after an error, unflushed writes are discarded."""
        if error is None:
            self.close()
        else:
            self._release()

    # Content

    @property
    def size_bytes(self) -> int:
        """The volume's length in bytes, including holes."""
        return self.image.root.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the live content (for a mirror: of what it shows). `Damaged`."""
        with self.mutex:
            self._check_range(offset, length)
            if length == 0:
                return b""
            while True:
                try:
                    return read_bytes(self.store, self.image.tree, offset, length)
                except Damaged:
                    # The image that a reader opened is not held: it may have been replaced
                    # and its blocks reused. Then the current one is read.
                    if self.writable:
                        raise
                    record = rootrecord.load(self.path)
                    if record.live == self.record.live:
                        raise
                    self.store.close()
                    self._start(record)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes. `NoSpace`, `IoFailed`: reverts to the last flush. `Refused` on a mirror."""
        with self.mutex:
            view = memoryview(data).cast("B")
            self._check_writable()
            self._check_range(offset, len(view))
            with self._reverting():
                while view:
                    skip = offset % BLOCK_BYTES
                    if skip or len(view) < BLOCK_BYTES:
                        taken = min(BLOCK_BYTES - skip, len(view))
                        block = bytearray(
                            read_bytes(self.store, self.image.tree, offset - skip, BLOCK_BYTES)
                        )
                        block[skip : skip + taken] = view[:taken]
                        self.image.write_blocks(offset // BLOCK_BYTES, memoryview(block))
                    else:
                        blocks = min(len(view) // BLOCK_BYTES, _BLOCKS_PER_STEP)
                        taken = blocks * BLOCK_BYTES
                        self.image.write_blocks(offset // BLOCK_BYTES, view[:taken])
                    view, offset = view[taken:], offset + taken
                    self._bound_memory()

    def trim(self, offset: int, length: int) -> None:
        """Make a range read as zeroes and free its blocks. Errors as for `write`."""
        with self.mutex:
            self._check_writable()
            self._check_range(offset, length)
            end = offset + length
            first, last = -(-offset // BLOCK_BYTES), end // BLOCK_BYTES
            if end == self.size_bytes:
                last = -(-end // BLOCK_BYTES)
            if first >= last:
                self.write(offset, bytes(length))
                return
            self.write(offset, bytes(first * BLOCK_BYTES - offset))
            if last * BLOCK_BYTES < end:
                self.write(last * BLOCK_BYTES, bytes(end - last * BLOCK_BYTES))
            with self._reverting():
                for begin in range(first, last, CHANGED_NODES_MAX * 128):
                    count = min(last - begin, CHANGED_NODES_MAX * 128)
                    self.image.free_blocks(begin, count)
                    self._bound_memory()

    def flush(self) -> None:
        """Make all writes durable, in one step."""
        with self.mutex:
            self._check_writable()
            self.commit("BLOCK:FLUSH:ROOT")

    # Snapshots

    def snapshot(self, name: str) -> Snapshot:
        """A user snapshot of the current content. Constant time after a flush. `Refused` when a
        user snapshot has that name.
        """
        with self.mutex:
            self._check_writable()
            if self._named(name, SnapshotKind.OWN) is not None:
                raise Refused(
                    f"there is a snapshot '{name}' already",
                    where=str(self.path),
                    hint="Choose another name, or delete that snapshot first.",
                )
            return self.take_snapshot(name, SnapshotKind.OWN)

    def take_snapshot(
        self, name: str, kind: SnapshotKind, change: Change | None = None
    ) -> Snapshot:
        """Flush and record the root under a new identity; an existing name is returned. change: of
        the same record.
        """
        found = self._named(name, kind)
        if found is not None:
            return found.snapshot()
        guid, now = uuid.uuid4().hex, clock.now_ns()

        def add(record: RootRecord) -> RootRecord:
            digest = content_digest(guid, record.live)
            added = record.with_snapshot(Entry(guid, name, kind, now, record.live, digest, 0))
            return added if change is None else change(added)

        self.commit("BLOCK:SNAPSHOT:ROOT", add)
        return self.entry(guid).snapshot()

    def _named(self, name: str, kind: SnapshotKind) -> Entry | None:
        found = (one for one in self.record.snapshots if one.name == name and one.kind is kind)
        return next(found, None)

    def snapshots(self) -> list[Snapshot]:
        """All snapshots of every kind, oldest first."""
        return [entry.snapshot() for entry in self.record.snapshots]

    def delete_snapshot(self, guid: str) -> None:
        """Delete a user snapshot, on a destination one that was taken there; `NotFound`, `Refused`
        for a mirror's snapshot.
        """
        with self.mutex:
            mirror = self.record.role is Role.MIRROR
            if not mirror:
                self._check_writable()
            entry = self.entry(guid)
            if not entry.owners and (mirror or entry.kind is not SnapshotKind.OWN):
                raise Refused(
                    "this snapshot belongs to a mirror",
                    where=str(self.path),
                    hint=f"'mirrord snapshots {MIRROR} --delete' deletes a diverged one; the "
                    "mirror prunes the others by the rules of its definition.",
                )
            self.drop_snapshots({guid})

    def entry(self, guid: str) -> Entry:
        """The table entry of a snapshot; `NotFound`."""
        return demand_snapshot(self.record.entry(guid), str(self.path), guid)

    def info(self) -> dict[str, object]:
        """What `mirrord volume info` shows; sizes in bytes."""
        live = self.record.live
        on_disk = sum(
            one.stat().st_blocks * 512 for one in self.path.glob("data*") if one.is_file()
        )
        return {
            "path": str(self.path),
            "identity": self.record.identity,
            "role": self.record.role.value,
            "size_bytes": live.size_bytes,
            "block_bytes": BLOCK_BYTES,
            "allocated_bytes": live.allocated * BLOCK_BYTES,
            "disk_bytes": on_disk,
            "segments": [f"{one.segment:06x}" for one in live.segments],
            "snapshots": len(self.record.snapshots),
            "mirror_id": self.record.mirror_id,
            "shown": self.record.shown,
        }

    # For the driver

    def commit(self, op: str, change: Change | None = None) -> None:
        """Write out all changes and replace the root record, in one durable step.

        change: further changes of the record. After an error the volume has the state of the last
        root record that reached the disk.
        """
        before = self.record
        with self._reverting():
            live = self.image.write_out()
            record = before
            if live != before.live:
                allocator = self.image.allocator
                record = replace(before, live=live, chunk=allocator.chunk, grown=allocator.grown)
            if change is not None:
                record = change(record)
            if record != before:
                rootrecord.store(op, self.path, record, urgent=change is not None)
        self._doubtful.clear()
        self.record = record
        if record.live != live or record.segment != before.segment:
            self._start(record)
        else:
            self._refresh_views()
        if live != before.live:
            chunks = (
                (segment, chunk)
                for segment, chunk, _, _ in differing_chunks(self.store, before.live, live)
            )
            punch_runs(self.store, self.image.returnable(before.live, live, chunks))

    def drop_snapshots(self, guids: set[str]) -> None:
        """Delete snapshots, durably, and return the space that only they used."""
        dropped = [one for one in self.record.snapshots if one.guid in guids]
        self.commit("BLOCK:DELETE:ROOT", lambda record: record.without(guids))
        reclaim_snapshots(self.store, self.image, self.record, dropped)

    def _start(self, record: RootRecord) -> None:
        self.record = record
        self.image = LiveImage(
            self.store, record.live, record.segment, chunk=record.chunk, grown=record.grown
        )
        self._refresh_views()

    def _refresh_views(self) -> None:
        """Update the allocator's roots: the last committed live one, and all snapshots."""
        old = self._views
        self._views = {
            key: found
            if (found := old.get(key)) is not None and found.root is root
            else MapView(self.store, root)
            for key, root in self.record.roots.items()
        }
        self.image.allocator.views = self._views | self._doubtful

    @contextmanager
    def _reverting(self) -> Iterator[None]:
        """On an error, revert to the root record on disk.

        If replacing the record failed, either record may be on disk after a power failure:
        until the next one is durable, the blocks of both are held.
        """
        try:
            yield
        except Exception as error:
            kept = {f"old {key}": view for key, view in self._views.items()}
            self._doubtful.update(kept)
            self._start(rootrecord.load(self.path))
            if isinstance(error, NoSpace) and self.record.role is Role.LIVE:
                # The discarded writes may occupy the space that a deletion needs.
                reclaim_unheld(self.store, self.image)
            raise

    def _bound_memory(self) -> None:
        if len(self.image.tree.changed) > CHANGED_NODES_MAX:
            self.commit("BLOCK:FLUSH:ROOT")

    def _check_writable(self) -> None:
        if self.record.role is not Role.LIVE:
            raise writerlock.read_only(self.path)
        if self.frozen:
            raise writerlock.frozen(self.path)
        if not self.writable:
            raise Refused("the volume is open read-only", where=str(self.path))

    def _check_range(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise UsageError(
                f"{length} bytes at offset {offset} are outside the volume",
                where=str(self.path),
                why=f"it has {self.size_bytes} bytes",
            )


def write_first_record(path: Path, record: RootRecord) -> None:
    """Create the directory of a new volume, which exists once the record is written."""
    with io_errors(str(path), "creating the volume's directory"):
        files.make_directory("BLOCK:CREATE:DIRECTORY", path)
    rootrecord.store("BLOCK:CREATE:ROOT", path, record, urgent=True)


def open_volume(path: Path) -> Volume | None:
    """This process's writable volume at `path`, if there is one."""
    return _open_volumes.get(os.path.realpath(path))


def writer_of(path: Path) -> locks.Holder | None:
    """The writer of the volume, in any process; not mirrord's own short operations."""
    shared = open_volume(path)
    if shared is not None and shared.frozen:
        return None
    return writerlock.holder(path, writerlock.WRITING)


def is_frozen(path: Path) -> bool:
    """Whether the volume is frozen, by any process."""
    shared = open_volume(path)
    if shared is not None:
        return shared.frozen
    return writerlock.is_frozen(path)
