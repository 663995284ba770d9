"""The data files of a volume: verified reads, labelled writes.

This module does not interpret blocks. Blocks that are tree nodes are cached by address *and*
checksum, so that a reused address never returns old content.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.core.errors import Damaged, IoFailed, MirrordError
from mirrord.drivers.block.format import (
    BLOCK_BYTES,
    Pointer,
    data_file_name,
    describe,
    number_of,
    segment_of,
)
from mirrord.drivers.refusals import failed_hint, no_space
from mirrord.system import files, steps
from mirrord.system.explain import quota_exceeded
from mirrord.system.libc import lib
from mirrord.system.native import block_checksums

#: Tree nodes kept in memory for an open volume: 24 MiB.
_CACHED_NODES_MAX = (24 << 20) // BLOCK_BYTES
#: Data files that are open at once: a volume may have many more.
_FILES_MAX = 64
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
lib.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


@contextmanager
def io_errors(where: str, doing: str) -> Iterator[None]:
    """Turn an `OSError` into `NoSpace` or `IoFailed`. doing: the operation, for the message."""
    try:
        yield
    except OSError as error:
        raise io_error(where, doing, error) from error


def io_error(where: str, doing: str, error: OSError) -> MirrordError:
    """The error for a failed system call. doing: the operation."""
    reason = error.strerror or str(error)
    if error.errno == errno.EDQUOT:
        return quota_exceeded(where, f"{doing}: {reason}")
    if error.errno == errno.ENOSPC:
        return no_space(where, f"{doing}: {reason}")
    return IoFailed(
        f"{doing} failed",
        where=where,
        why=reason,
        hint=failed_hint(
            error, "Check the kernel log for disk errors ('dmesg'); committed data is unchanged."
        ),
    )


def data_extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges (begin, end) of a sparse file of `size` bytes that are not holes, ascending."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:
            return  # only a hole is left
        at = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, at


def block_damaged(where: str, address: int, why: str = "its checksum does not match") -> Damaged:
    """A block that does not match its pointer."""
    return Damaged(
        f"block {describe(address)} is damaged",
        where=where,
        why=why,
        hint=f"'mirrord volume check {shlex.quote(where)}' lists all damage. The other end of a "
        "mirror has an intact copy of all data that was transferred.",
    )


class BlockStore:
    """The data files of the volume in `directory`; opened as they are needed."""

    def __init__(self, directory: Path, *, writable: bool) -> None:
        self.directory = directory
        self.where = str(directory)
        self._writable = writable
        self._files: dict[int, int] = {}
        self._unsynced: set[int] = set()
        self._nodes: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. May be called twice."""
        while self._files:
            os.close(self._files.popitem()[1])
        self._nodes.clear()

    def node(self, address: int, checksum: int) -> bytes:
        """A verified block, from the cache or the disk; for nodes of trees and map blocks."""
        key = (address, checksum)
        found = self._nodes.get(key)
        if found is not None:
            self._nodes.move_to_end(key)
            return found
        block = self.read(address, 1)
        if block_checksums(block, BLOCK_BYTES) != checksum.to_bytes(8, "little"):
            raise block_damaged(self.where, address)
        self.remember(Pointer(address, checksum), block)
        return block

    def remember(self, pointer: Pointer, block: bytes) -> None:
        """Cache a node that was just written: it will be read next."""
        self._nodes[pointer.address, pointer.checksum] = block
        if len(self._nodes) > _CACHED_NODES_MAX:
            self._nodes.popitem(last=False)

    def read(self, address: int, count: int) -> bytes:
        """`count` blocks from `address` on, not verified. `Damaged` when they do not exist."""
        file = self._file(segment_of(address), address)
        size = count * BLOCK_BYTES
        try:
            data = os.pread(file, size, number_of(address) * BLOCK_BYTES)
        except OSError as error:
            raise io_error(self.where, f"reading block {describe(address)}", error) from error
        if len(data) != size:
            raise block_damaged(self.where, address, "its data file ends before it")
        return data

    def read_into(self, address: int, buffer: memoryview) -> None:
        """Like `read`, into a buffer of complete blocks."""
        file = self._file(segment_of(address), address)
        try:
            done = os.preadv(file, [buffer], number_of(address) * BLOCK_BYTES)
        except OSError as error:
            raise io_error(self.where, f"reading block {describe(address)}", error) from error
        if done != len(buffer):
            raise block_damaged(self.where, address, "its data file ends before it")

    def read_verified(self, address: int, checksums: bytes) -> bytes:
        """As many blocks as there are checksums (8 bytes each), each of which must match."""
        data = self.read(address, len(checksums) // 8)
        found = block_checksums(data, BLOCK_BYTES)
        if found != checksums:
            bad = next(
                n for n in range(0, len(found), 8) if found[n : n + 8] != checksums[n : n + 8]
            )
            raise block_damaged(self.where, address + bad // 8)
        return data

    def write(self, op: str, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write complete blocks; durable only after `sync`."""
        segment = segment_of(address)
        with io_errors(self.where, "writing blocks"):
            steps.reached(op)
            file = self._file_for_writing(segment)
            self._unsynced.add(segment)
            view, offset = memoryview(data), number_of(address) * BLOCK_BYTES
            while view:
                done = os.pwrite(file, view, offset)
                view, offset = view[done:], offset + done

    def sync(self, op: str) -> None:
        """Make all writes durable."""
        for segment in sorted(self._unsynced):
            with io_errors(self.where, "flushing blocks to the disk"):
                steps.reached(op)
                os.fdatasync(self._files[segment])
            self._unsynced.discard(segment)

    def punch(self, op: str, address: int, count: int) -> None:
        """Return the space of free blocks to the file system, if it supports that."""
        # Best effort: if it fails, the space is not returned now but reused later.
        try:
            steps.reached(op)
            file = self._file_for_writing(segment_of(address))
        except OSError:
            return
        lib.fallocate(
            file, _PUNCH_HOLE_KEEP_SIZE, number_of(address) * BLOCK_BYTES, count * BLOCK_BYTES
        )

    def segments_on_disk(self) -> dict[int, int]:
        """The existing data files: segment to size in blocks, including number 0."""
        found = {}
        for path in self.directory.glob("data*"):
            text = path.name.partition(".")[2]
            if path.name == "data" or (len(text) == 6 and not set(text) - set("0123456789abcdef")):
                found[int(text or "0", 16)] = path.stat().st_size // BLOCK_BYTES
        return found

    def remove_segment(self, op: str, segment: int) -> None:
        """Remove the data file of a segment that nothing refers to any more."""
        with io_errors(self.where, "removing a data file"):
            files.remove_file(op, self.directory / data_file_name(segment))
        self._unsynced.discard(segment)
        if segment in self._files:
            os.close(self._files.pop(segment))

    def _file(self, segment: int, address: int) -> int:
        name = data_file_name(segment)
        try:
            return self._opened(segment, os.O_RDWR if self._writable else os.O_RDONLY)
        except FileNotFoundError:
            raise block_damaged(self.where, address, f"there is no file '{name}'") from None
        except OSError as error:
            raise io_error(self.where, f"opening '{name}'", error) from error

    def _opened(self, segment: int, flags: int) -> int:
        if segment not in self._files:
            self._close_oldest()
            path = self.directory / data_file_name(segment)
            self._files[segment] = os.open(path, flags | os.O_CLOEXEC, 0o600)
        return self._files[segment]

    def _close_oldest(self) -> None:
        """Make room for another open file. Its writes are still made durable by `sync`."""
        while len(self._files) >= _FILES_MAX:
            segment = next(iter(self._files))
            if segment in self._unsynced:
                os.fdatasync(self._files[segment])
                self._unsynced.discard(segment)
            os.close(self._files.pop(segment))

    def _file_for_writing(self, segment: int) -> int:
        known = segment in self._files
        fresh = not known and not (self.directory / data_file_name(segment)).exists()
        file = self._opened(segment, os.O_RDWR | os.O_CREAT)
        if fresh:
            files.sync_directory(self.directory)
        return file
