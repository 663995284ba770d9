"""Kernel calls that libbtrfsutil lacks: send, tree search, file system information.

All take open descriptors or paths and raise OSError; `guarded` turns those into mirrord errors
in the methods of the driver.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import shlex
import struct
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from mirrord.core.errors import IoFailed, MirrordError, NoSpace, Refused
from mirrord.drivers import refusals
from mirrord.system import explain
from mirrord.system.files import opened
from mirrord.system.libc import checked, lib
from mirrord.system.native import BtrfsBlocks, BtrfsExtents

SEND_NO_FILE_DATA = 0x1
SEND_VERSION = 0x8
SEND_COMPRESSED = 0x10

_BTRFS_SUPER_MAGIC = 0x9123683E
_IOC_SEND = 0x40489426
_IOC_GETFLAGS, _IOC_SETFLAGS = 0x80086601, 0x40086602
#: FS_APPEND_FL and FS_IMMUTABLE_FL.
_PROTECTED = 0x20 | 0x10
_IOC_SNAP_CREATE_V2 = 0x50009417
#: Source descriptor, flags (struct btrfs_ioctl_vol_args_v2), then the name in the folder.
_SNAPSHOT = struct.Struct("=q8xQ32x4040s")
_SNAPSHOT_READ_ONLY = 2
_IOC_SET_RECEIVED = 0xC0C89425
#: uuid, stransid (struct btrfs_ioctl_received_subvol_args).
_RECEIVED = struct.Struct("=16sQ176x")
_IOC_SYNC = 0x9408
_IOC_START_SYNC = 0x80089418
_IOC_TREE_SEARCH_V2 = 0xC0709411
_IOC_FS_INFO = 0x8400941F
_IOC_GET_SUBVOL_INFO = 0x81F8943C
_SUBVOLUME_BYTES = 504
#: ctransid; otime: seconds, nanoseconds.
_SUBVOLUME_CHANGED, _SUBVOLUME_MADE = struct.Struct("=344xQ"), struct.Struct("=392xQI")
#: uuid of what it is a snapshot of, and of what it was received from.
_SUBVOLUME_ORIGIN = struct.Struct("=312x4Q")
_FS_INFO_GENERATION = 1 << 1
_EXTENT_DATA = 108
_INODE_ITEM = 1
#: Header of each found item: generation of its leaf, object, offset, type, length.
_ITEM = struct.Struct("=3Q2I")
_FIRST_INODE = 256
_UUID_TREE = 9
_RECEIVED_UUID = 252
_UUID_BUFFER_BYTES = 64 << 10
_MAX = (1 << 64) - 1
#: tree, min and max of object, offset, generation, then types and item count (struct
#: btrfs_ioctl_search_key), then the size of the buffer that follows.
_SEARCH = struct.Struct("=7Q3I36xQ")
_SEARCH_BUFFER_BYTES = 16 << 20
_QUICK_BUFFER_BYTES = 256 << 10
_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_MOUNT_ID = 0x1000
_SEND_VERSION_FILE = Path("/sys/fs/btrfs/features/send_stream_version")

lib.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]

P = ParamSpec("P")
T = TypeVar("T")


class _SendArguments(ctypes.Structure):
    _fields_ = (
        ("send_fd", ctypes.c_int64),
        ("clone_sources_count", ctypes.c_uint64),
        ("clone_sources", ctypes.POINTER(ctypes.c_uint64)),
        ("parent_root", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 28),
    )


class _Statfs(ctypes.Structure):
    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_long * 32))


def _ioctl(
    descriptor: int, request: int, argument: ctypes.Structure | ctypes.Array[ctypes.c_char]
) -> None:
    """ioctl without the GIL; raises OSError."""
    checked(lib.ioctl(descriptor, request, ctypes.byref(argument)))


def _ioctl_at(path: str | Path, request: int, argument: ctypes.Array[ctypes.c_char]) -> None:
    """`_ioctl` on a path."""
    with opened(path) as descriptor:
        _ioctl(descriptor, request, argument)


def snapshot(source: str | Path, path: str | Path, *, read_only: bool) -> None:
    """BTRFS_IOC_SNAP_CREATE_V2: make `path` a snapshot of a subvolume. (libbtrfsutil holds the GIL
    during its call.)
    """
    folder, name = os.path.split(os.fsencode(path))
    with opened(source) as descriptor:
        flags = _SNAPSHOT_READ_ONLY if read_only else 0
        words = _SNAPSHOT.pack(descriptor, flags, name)
        _ioctl_at(os.fsdecode(folder), _IOC_SNAP_CREATE_V2, ctypes.create_string_buffer(words))


def is_protected(path: str | Path) -> bool:
    """Whether a directory is immutable or append-only (`chattr +i`, `+a`)."""
    with opened(path, os.O_DIRECTORY) as descriptor:
        return bool(_attributes(descriptor) & _PROTECTED)


def remove_protection(path: str | Path) -> None:
    """Do what `chattr -i -a` does to a directory; OSError in a read-only subvolume that has any."""
    with opened(path, os.O_DIRECTORY) as descriptor:
        flags = _attributes(descriptor)
        if flags & _PROTECTED:
            words = struct.pack("=q", flags & ~_PROTECTED)
            _ioctl(descriptor, _IOC_SETFLAGS, ctypes.create_string_buffer(words))


def _attributes(descriptor: int) -> int:
    words = ctypes.create_string_buffer(8)
    _ioctl(descriptor, _IOC_GETFLAGS, words)
    return int(struct.unpack_from("=i", words)[0])


def send(
    subvolume: int,
    pipe: int,
    *,
    parent_root: int,
    shared: bool,
    flags: int,
    version: int,
) -> None:
    """BTRFS_IOC_SEND: write the stream of an open read-only subvolume to `pipe`; blocks.

    parent_root: the id of the base, 0 for a full stream. shared: clone data from it. The calling
    thread must have its signals blocked: a signal makes the kernel start the stream again.
    """
    if version > 1:
        flags |= SEND_VERSION
    arguments = _SendArguments(
        send_fd=pipe,
        clone_sources_count=1 if shared else 0,
        clone_sources=ctypes.pointer(ctypes.c_uint64(parent_root)),
        parent_root=parent_root,
        flags=flags,
        version=version if version > 1 else 0,
    )
    _ioctl(subvolume, _IOC_SEND, arguments)


def set_received(path: str | Path, uuid: str, stransid: int) -> None:
    """BTRFS_IOC_SET_RECEIVED_SUBVOL: the identity (hex) that a writable subvolume was sent with."""
    words = _RECEIVED.pack(bytes.fromhex(uuid), stransid)
    _ioctl_at(path, _IOC_SET_RECEIVED, ctypes.create_string_buffer(words, len(words)))


def start_sync(path: str | Path) -> None:
    """Start a commit of the file system's trees; OSError. Returns when the commit has begun, which
    can take a whole commit interval (30 s). Releases the GIL.
    """
    _ioctl_at(path, _IOC_START_SYNC, (ctypes.c_char * 8)())


def sync(path: str | Path) -> None:
    """Commit the changes of the file system, and wait for it; OSError. Releases the GIL."""
    _ioctl_at(path, _IOC_SYNC, (ctypes.c_char * 8)())


@functools.cache
def send_stream_version() -> int:
    """The highest send stream version that this kernel supports (1 before Linux 6.0)."""
    try:
        return min(2, int(_SEND_VERSION_FILE.read_text()))
    except (OSError, ValueError):
        return 1


class Reader(Protocol):
    """Takes the buffers of a tree search."""

    def feed(self, data: memoryview, count: int) -> tuple[int, int, int] | None:
        """Take `count` items; the key (object, type, offset) of the last of them."""


def search_extents(
    subvolume: int, tree: int, *, newer_than: int, encoded: bool, part: int = 0, parts: int = 1
) -> BtrfsExtents:
    """The extents of a subvolume's tree that are newer than a generation (0: all of them). A large
    tree is read in parts, to limit the memory used.

    subvolume: a descriptor anywhere on the file system; tree: the subvolume's id. Only leaves
    written after that generation are read, so the time is proportional to the change. Part 0 comes
    first; its `parts` is the number of parts to read.
    """
    found = BtrfsExtents(newer_than, encoded, part=part, parts=parts)
    _search(subvolume, tree, newer_than, found)
    return found


def search_blocks(subvolume: int, tree: int) -> BtrfsBlocks:
    """The blocks that the files of a subvolume refer to; reads the complete tree."""
    found = BtrfsBlocks()
    _search(subvolume, tree, 0, found)
    return found


def _search(subvolume: int, tree: int, newer_than: int, reader: Reader) -> None:
    # A large buffer saves calls, but clearing it takes milliseconds: too slow for few changes.
    room = _QUICK_BUFFER_BYTES if newer_than else _SEARCH_BUFFER_BYTES
    buffer = ctypes.create_string_buffer(_SEARCH.size + room)
    view = memoryview(buffer).cast("B")
    low = (_FIRST_INODE, 0, 0)
    while True:
        least = newer_than + 1 if newer_than else 0
        key = (tree, low[0], _MAX, low[2], _MAX, least, _MAX)
        _SEARCH.pack_into(buffer, 0, *key, low[1], _EXTENT_DATA, 0xFFFFFFFF, room)
        _ioctl(subvolume, _IOC_TREE_SEARCH_V2, buffer)
        count = struct.unpack_from("=I", buffer, 64)[0]
        last = reader.feed(view[_SEARCH.size :], count)
        if last is None:
            return
        low = _after(last)


class _NewestInode:
    """Reads inode items; `transaction` is that of the newest change among them."""

    def __init__(self) -> None:
        self.transaction = 0

    def feed(self, data: memoryview, count: int) -> tuple[int, int, int] | None:
        last, at = None, 0
        for _ in range(count):
            _leaf, inode, offset, kind, length = _ITEM.unpack_from(data, at)
            at += _ITEM.size
            if kind == _INODE_ITEM:
                changed = struct.unpack_from("<Q", data, at + 8)[0]
                self.transaction = max(self.transaction, changed)
            at += length
            last = inode, kind, offset
        return last


def newest_inode(path: str | Path, tree: int, *, newer_than: int) -> int:
    """The transaction of the newest inode change of a subvolume on disk, among the leaves written
    after a generation; 0 when there is none. tree: the subvolume's id.
    """
    found = _NewestInode()
    with opened(path, os.O_DIRECTORY) as descriptor:
        _search(descriptor, tree, newer_than, found)
    return found.transaction


def transaction_in_memory(path: str | Path) -> int | None:
    """The transaction of the last change of the subvolume at `path`, as the kernel has it in
    memory, including changes not yet written to disk. None before Linux 4.18.
    """
    found = _subvolume(path, _SUBVOLUME_CHANGED)
    return int(found[0]) if found else None


def made_at_ns(path: str | Path) -> int | None:
    """When the subvolume at `path` was created (libbtrfsutil's Python module truncates to seconds).
    None before Linux 4.18.
    """
    found = _subvolume(path, _SUBVOLUME_MADE)
    return int(found[0]) * 1_000_000_000 + int(found[1]) if found else None


def is_copied(path: str | Path) -> bool:
    """Whether a directory is a subvolume that began as a snapshot, or was received. False before
    Linux 4.18.
    """
    if os.lstat(path).st_ino != _FIRST_INODE or not is_btrfs(path):
        return False
    return any(_subvolume(path, _SUBVOLUME_ORIGIN))


def _subvolume(path: str | Path, fields: struct.Struct) -> tuple[int, ...]:
    """Fields of struct btrfs_ioctl_get_subvol_info_args; none if the kernel lacks the call."""
    found = ctypes.create_string_buffer(_SUBVOLUME_BYTES)
    try:
        _ioctl_at(path, _IOC_GET_SUBVOL_INFO, found)
    except OSError as error:
        if error.errno == errno.ENOTTY:
            return ()
        raise
    return fields.unpack_from(found)


class _Statx(ctypes.Structure):
    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("_1", ctypes.c_uint8 * 140),
        ("mount_id", ctypes.c_uint64),
        ("_2", ctypes.c_uint8 * 104),
    )


def mount_id(path: str | Path) -> int | None:
    """The id of the mount that `path` is on, itself included if it is a mount point (statx);
    None when the kernel does not report it (before Linux 5.8) or the path does not exist.
    """
    found = _Statx()
    failed = lib.statx(
        _AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_MOUNT_ID, ctypes.byref(found)
    )
    return found.mount_id if not failed and found.mask & _STATX_MOUNT_ID else None


def received_as(path: str | Path, uuid: str) -> list[int]:
    """Ids of all subvolumes of the file system with the received UUID `uuid` (hex), in the order in
    which `btrfs receive` prefers them.
    """
    low, high = struct.unpack("<2Q", bytes.fromhex(uuid))
    buffer = ctypes.create_string_buffer(_SEARCH.size + _UUID_BUFFER_BYTES)
    key = (_UUID_TREE, low, low, high, high, 0, _MAX, _RECEIVED_UUID, _RECEIVED_UUID, 1)
    _SEARCH.pack_into(buffer, 0, *key, _UUID_BUFFER_BYTES)
    _ioctl_at(path, _IOC_TREE_SEARCH_V2, buffer)
    if struct.unpack_from("=I", buffer, 64)[0] == 0:
        return []
    length = struct.unpack_from("=I", buffer, _SEARCH.size + 28)[0]
    return list(struct.unpack_from(f"<{length // 8}Q", buffer, _SEARCH.size + 32))


def _after(key: tuple[int, int, int]) -> tuple[int, int, int]:
    """The next possible tree key."""
    inode, kind, offset = key
    if offset < _MAX:
        return inode, kind, offset + 1
    return (inode, kind + 1, 0) if kind < 0xFF else (inode + 1, 0, 0)


def filesystem_facts(path: str | Path) -> tuple[str, int]:
    """The id (hex) of the btrfs file system of `path`, and its current generation."""
    information = ctypes.create_string_buffer(1024)
    struct.pack_into("=Q", information, 48, _FS_INFO_GENERATION)
    _ioctl_at(path, _IOC_FS_INFO, information)
    return information.raw[16:32].hex(), int(struct.unpack_from("=Q", information, 56)[0])


def is_btrfs(path: str | Path) -> bool:
    """Whether `path` (links are followed) is on btrfs."""
    result = _Statfs()
    checked(lib.statfs(os.fsencode(path), ctypes.byref(result)), str(path))
    return int(result.type) & 0xFFFFFFFF == _BTRFS_SUPER_MAGIC


def as_mirrord_error(error: OSError, where: str) -> MirrordError:
    """The mirrord error for an operating-system error."""
    why = error.strerror or str(error)
    if error.filename:
        why = f"{os.fsdecode(error.filename)}: {why}"
    if error.errno in (errno.EPERM, errno.EACCES):
        need = "; btrfs snapshots and streams need root" if os.geteuid() else ""
        return refusals.permission_missing(where, why + need)
    if error.errno == errno.EDQUOT:
        return quota_exceeded(where, why)
    if error.errno == errno.ENOSPC:
        return refusals.no_space(where, why)
    if error.errno == errno.EROFS:
        return Refused(
            "the file system is mounted read-only",
            where=where,
            why=why,
            hint="Remount it read-write. After errors btrfs becomes read-only: see dmesg.",
        )
    return IoFailed(
        "an operation on the file system failed",
        where=where,
        why=why,
        hint=refusals.failed_hint(
            error, "See dmesg for errors of the device. Committed data is unchanged."
        ),
    )


def quota_exceeded(where: str, why: str) -> NoSpace:
    """The error for a qgroup whose limit is reached. where: the volume."""
    path = where.removeprefix("btrfs:")
    shown_by = f"'btrfs qgroup show -re {shlex.quote(path)}'"
    return explain.quota_exceeded(where, why, shown_by)


def guarded(method: Callable[P, T]) -> Callable[P, T]:
    """A driver method whose OSErrors are turned into mirrord errors."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except OSError as error:
            raise as_mirrord_error(error, str(args[0])) from error

    return call
