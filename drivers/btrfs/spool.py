"""The spool: the received stream, kept so that an interrupted transfer can be resumed.

`btrfs receive` cannot be resumed in the middle of a stream. The stream of a resumable transfer is
therefore written here while it is applied; the next attempt applies it again from here, and only
the rest is sent (the file `spool/<transfer>`: spool_format.py).

The beginning of a stream stays in memory, so a small update needs no file. After that a thread
writes the data and makes it durable. When the program ends, nothing that was written is lost. A
power failure may lose `LAG_BYTES`, or on a fast link the data of the last `LAG_S`: waiting for
the disk more often would slow all transfers by a seventh, to save a few seconds of one. When the
spool cannot be written (a full disk), the spool is abandoned, not the transfer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import CheckpointUseless
from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.drivers.btrfs import layout
from mirrord.drivers.btrfs.ioctl import opened
from mirrord.drivers.btrfs.known import stamp
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.spool_format import (
    HEAD_BYTES,
    PAYLOAD_BYTES,
    SLOT_BYTES,
    SLOT_HEADER_BYTES,
    end_of,
    head_of,
    last_good,
    read_head,
    read_slot,
    seal_slot,
    slot_at,
)
from mirrord.system import clock, files, steps
from mirrord.system.native import StreamDigest
from mirrord.system.waiting import Waiting

#: How much of the stream is kept in memory before a file is created, in bytes.
MEMORY_BYTES = 4 << 20
#: What a power failure may lose, and how much of it is made durable at a time. While data is
#: written to the disk, there must be space for the data that arrives.
LAG_BYTES = 8 << 20
_SYNC_SLOTS = 3
_WAITING_SLOTS = LAG_BYTES // SLOT_BYTES - 1 - _SYNC_SLOTS
#: Above this rate, in bytes per second, the data of the last LAG_S seconds may be lost instead.
FAST_BYTES_S = 64 << 20
LAG_S = 30.0
#: The least data for which a file is created when a transfer without one is interrupted.
_KEEP_BYTES = 1 << 20
_IOC_GETFLAGS, _IOC_SETFLAGS, _NOCOW = 0x80086601, 0x40086602, 0x00800000


class Spooled(NamedTuple):
    """The content of a spool: the first bytes of a snapshot's stream, and their BLAKE3 digest."""

    path: Path
    base: str | None
    snapshot: Snapshot
    stream_bytes: int
    digest: str

    @property
    def checkpoint(self) -> dict[str, int | str] | None:
        """Where a sender resumes; None when there is nothing to resume from."""
        if not self.stream_bytes:
            return None
        return {"bytes": self.stream_bytes, "digest": self.digest}


def path_of(place: Layout, transfer_id: str, where: str) -> Path:
    """The spool of a transfer."""
    return place.spool / layout.component(transfer_id, where)


def held(place: Layout) -> dict[str, Spooled]:
    """The existing spools, by transfer. One whose header cannot be read counts as empty."""
    try:
        names = sorted(os.listdir(place.spool))
    except FileNotFoundError:
        return {}
    nothing = Snapshot("", "", SnapshotKind.REFERENCE, 0, 0, intact=False)
    found = {}
    for name in names:
        path = place.spool / name
        found[name] = look(place, path) or Spooled(path, None, nothing, 0, "")
    return found


def remove(op: str, place: Layout, path: Path) -> None:
    """Remove a spool, if it is there; durable."""
    place.known.spools.pop(path, None)
    if path.exists():
        files.remove_file(op, path)


def look(place: Layout, path: Path) -> Spooled | None:
    """The content of the spool up to its last valid slot; None when the file is not a spool.

    Reads the last slots only: all earlier ones were durable before these were written, and are
    verified when they are replayed.
    """
    with contextlib.suppress(FileNotFoundError), opened(path) as descriptor:
        now = os.fstat(descriptor)
        known = place.known.spools.get(path)
        if known is not None and known[0] == stamp(now):
            return known[1]
        head = read_head(descriptor)
        if head is None:
            return None
        count, digest, length = last_good(descriptor, now.st_size)
        found = Spooled(path, *head, count * PAYLOAD_BYTES + length, digest)
        place.known.spools[path] = stamp(now), found
        return found
    return None


class Spool:
    """The spool of one transfer: replayed from its beginning, then appended to.

    Not thread-safe, but `replay` may run in another thread as long as nothing is appended.
    writing: whether received data is kept. Otherwise the existing content is only read.
    """

    def __init__(
        self, path: Path, request: ReceiveRequest, place: Layout, where: str, *, writing: bool
    ) -> None:
        self._path = path
        self._place = place
        self._request = request
        self._where = where
        found = look(place, path)
        if found is not None and (
            not found.stream_bytes
            or (found.base, found.snapshot.guid) != (request.base, request.snapshot.guid)
        ):
            found = None
        if found is None:
            remove("BTRFS:SPOOL:REMOVE", place, path)
        self._found = found
        self._writing = writing
        self._descriptor = -1
        self._digest = StreamDigest()
        #: The slot that is being filled; the payload follows its header.
        self._slot = _buffer(SLOT_BYTES)
        self._used = 0
        self._kept_used = 0  # how much of it the file already has
        self._full: deque[mmap.mmap] = deque()
        self._spare: deque[mmap.mmap] = deque()
        self._direct_tried = False
        self._number = 0  # number of the next slot to be written
        self._queued = 0  # number of slots that were filled
        self._durable = 0
        self._durable_s = clock.monotonic_s()  # when data was last made durable
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._error: BaseException | None = None

    @property
    def stream_bytes(self) -> int:
        """How much of the stream was in the spool at the start, to be replayed."""
        return self._found.stream_bytes if self._found else 0

    # Reading again

    def replay(self) -> Iterator[memoryview]:
        """The complete content, piece by piece, verified; then the spool can be appended to.

        `CheckpointUseless` when a piece is damaged: the spool is truncated before it.
        """
        if self._found is None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            full, part = divmod(self._found.stream_bytes, PAYLOAD_BYTES)
            for number in range(full + (1 if part else 0)):
                slot = read_slot(descriptor, number)
                wanted = PAYLOAD_BYTES if number < full else part
                if slot is None or len(slot[0]) != wanted:
                    raise self._cut(descriptor, number)
                payload, digest = slot
                if wanted == PAYLOAD_BYTES:
                    self._digest.update(payload)
                    if number == full - 1 and self._digest.hexdigest() != digest:
                        raise self._cut(descriptor, 0)
                yield payload
                first = slot_at(number)
                os.posix_fadvise(descriptor, first, SLOT_BYTES, os.POSIX_FADV_DONTNEED)
            self._resume_writing(descriptor, full, payload if part else None)
            descriptor = -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _resume_writing(self, descriptor: int, full: int, part: memoryview | None) -> None:
        self._number = self._queued = self._durable = full
        if part is not None:
            self._slot[SLOT_HEADER_BYTES : SLOT_HEADER_BYTES + len(part)] = part
            self._used = self._kept_used = len(part)
        end = end_of(full, self._used)
        if self._writing and os.fstat(descriptor).st_size > end:
            steps.reached("BTRFS:SPOOL:CUT")
            os.ftruncate(descriptor, end)
        self._descriptor = descriptor

    def _cut(self, descriptor: int, number: int) -> CheckpointUseless:
        """Truncate the spool before a damaged slot."""
        steps.reached("BTRFS:SPOOL:CUT")
        os.ftruncate(descriptor, end_of(number, 0))
        os.fdatasync(descriptor)
        self._place.known.spools.pop(self._path, None)
        self._writing = False
        error = CheckpointUseless(
            "the data that an earlier attempt received can no longer be read",
            where=self._where,
            why=f"chunk {number} of {self._path} is damaged",
            hint="Run the same command again: it resumes before the damaged chunk. If it happens "
            "again, check for disk errors ('dmesg').",
        )
        error.data["shortened"] = True
        return error

    # Writing

    def append(self, chunk: bytes | memoryview, waiting: Waiting) -> None:
        """Store received data; waits while too much of it is not durable."""
        if not self._writing:
            return
        view = memoryview(chunk)
        while view:
            at = SLOT_HEADER_BYTES + self._used
            piece = view[: SLOT_BYTES - at]
            self._slot[at : at + len(piece)] = piece
            self._used += len(piece)
            view = view[len(piece) :]
            if self._used == PAYLOAD_BYTES:
                self._enqueue(waiting)
                if not self._writing:
                    return

    def _enqueue(self, waiting: Waiting) -> None:
        slot, self._slot, self._used = self._slot, self._empty(), 0
        with self._changed:
            self._full.append(slot)
            self._queued += 1
            self._changed.notify_all()
        self._kept_used = 0
        if self._thread is None:
            new_bytes = (self._queued - self._number) * PAYLOAD_BYTES
            if self._descriptor < 0 and new_bytes < MEMORY_BYTES:
                return
            self._thread = threading.Thread(target=self._run, name="btrfs-spool", daemon=True)
            self._thread.start()
        with self._changed:
            waiting.until(lambda left_s: self._changed.wait_for(self._has_room, left_s))
        if self._error is not None:
            self._abandon()

    def _has_room(self) -> bool:
        return self._queued - self._number <= _WAITING_SLOTS or self._error is not None

    def _empty(self) -> mmap.mmap:
        return self._spare.popleft() if self._spare else _buffer(SLOT_BYTES)

    def _abandon(self) -> None:
        """The spool could not be written: continue without it."""
        error, self._error = self._error, None
        self._writing = False
        self._end_thread()
        if isinstance(error, OSError):
            with contextlib.suppress(OSError):
                remove("BTRFS:SPOOL:REMOVE", self._place, self._path)
        elif error is not None:
            raise error

    def _run(self) -> None:
        """The thread: write full slots and make them durable."""
        try:
            if self._descriptor < 0:
                self._create()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._full or self._stopped)
                    if not self._full:
                        return
                    slot = self._full.popleft()
                self._write(slot, PAYLOAD_BYTES)
                self._spare.append(slot)
                if self._number - self._durable >= _SYNC_SLOTS:
                    self._sync_if_due()
                with self._changed:
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _create(self) -> None:
        files.make_directory("BTRFS:SPOOL:FOLDER", self._path.parent, mode=0o700)
        steps.reached("BTRFS:SPOOL:CREATE")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        _set_nocow(self._descriptor)
        head = _buffer(HEAD_BYTES)
        head[:] = head_of(self._request)
        self._put(memoryview(head), 0)
        files.sync_directory(self._path.parent)

    def _write(self, slot: mmap.mmap, length: int) -> None:
        steps.reached("BTRFS:SPOOL:WRITE")
        view = memoryview(slot)
        self._digest.update(view[SLOT_HEADER_BYTES : SLOT_HEADER_BYTES + length])
        sealed = seal_slot(view, self._number, length, self._digest.hexdigest())
        self._put(sealed, slot_at(self._number))
        if length == PAYLOAD_BYTES:
            self._number += 1

    def _put(self, view: memoryview, offset: int) -> None:
        """Write with O_DIRECT: half the CPU cost, and no page cache is used."""
        if not self._direct_tried:
            self._direct_tried = True
            _set_direct(self._descriptor, True)
        while view:
            try:
                written = os.pwrite(self._descriptor, view, offset)
            except OSError as error:
                if error.errno != errno.EINVAL or not _is_direct(self._descriptor):
                    raise
                _set_direct(self._descriptor, False)  # a device with larger blocks, for example
                continue
            view, offset = view[written:], offset + written

    def _sync_if_due(self) -> None:
        waiting_bytes = (self._number - self._durable) * SLOT_BYTES
        waited_s = clock.monotonic_s() - self._durable_s
        if waiting_bytes < waited_s * FAST_BYTES_S or waited_s > LAG_S:
            self._sync()

    def _sync(self) -> None:
        steps.reached("BTRFS:SPOOL:SYNC")
        os.fdatasync(self._descriptor)
        first = slot_at(self._durable)
        self._durable, self._durable_s = self._number, clock.monotonic_s()
        # It is read again only if the transfer is interrupted: free the page cache.
        os.posix_fadvise(self._descriptor, first, 0, os.POSIX_FADV_DONTNEED)

    # The end

    def close(self, *, keep: bool) -> None:
        """Close the spool; keep: durably keep the data for another attempt. May be called twice."""
        writing, self._writing = self._writing, False
        if not (keep and writing):
            with self._changed:
                self._full.clear()
        self._end_thread(closing=not (keep and writing))
        if not keep:
            remove("BTRFS:SPOOL:REMOVE", self._place, self._path)
        elif writing:
            try:
                self._keep_rest()
            except OSError:
                with contextlib.suppress(OSError):
                    remove("BTRFS:SPOOL:REMOVE", self._place, self._path)
            finally:
                self._end_thread()

    def _keep_rest(self) -> None:
        """Write what is only in memory."""
        if self._error is not None:
            raise self._error
        left_bytes = len(self._full) * PAYLOAD_BYTES + self._used
        if self._descriptor < 0 and left_bytes < _KEEP_BYTES:
            return
        if self._descriptor < 0:
            self._create()
        while self._full:
            self._write(self._full.popleft(), PAYLOAD_BYTES)
        if self._used > self._kept_used:
            self._write(self._slot, self._used)
        self._sync()

    def _end_thread(self, *, closing: bool = True) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if closing and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _buffer(size: int) -> mmap.mmap:
    """Page-aligned memory, as O_DIRECT requires."""
    return mmap.mmap(-1, size)


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def _set_direct(descriptor: int, wanted: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    with contextlib.suppress(OSError):  # if not supported, it is only slower
        fcntl.fcntl(
            descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
        )


def _set_nocow(descriptor: int) -> None:
    """No btrfs checksums, compression or fragmentation: the file is short-lived."""
    with contextlib.suppress(OSError):
        flags = struct.unpack("i", fcntl.ioctl(descriptor, _IOC_GETFLAGS, bytes(4)))[0]
        fcntl.ioctl(descriptor, _IOC_SETFLAGS, struct.pack("i", flags | _NOCOW))
