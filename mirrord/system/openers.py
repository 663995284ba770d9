"""Finds what has files of a file system open for writing, from /proc: processes in all mount
namespaces that this one can see, loop devices and swap files.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from mirrord.core.model import OpenWriter
from mirrord.system import files, mounts

_PROC = Path("/proc")
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_STATUS_BYTES = 232
_LOOP_RDEVICE = 16
_LOOP_FLAGS = 52
_LOOP_READ_ONLY = 1
_CAP_SYS_PTRACE = 19
_Wanted = Callable[[os.stat_result], bool]


def writers_on(device: int, *, limit: int = 20) -> list[OpenWriter]:
    """At most `limit` of the openers of files with that `st_dev` for writing. (On btrfs each
    subvolume has its own.) A process that ends in the meantime is left out.
    """
    found: list[OpenWriter] = []
    for one in _all_writers(device):
        if len(found) >= limit:
            break
        if one not in found:
            found.append(one)
    return found


def sees_all() -> bool:
    """Whether this process can see the open files of all others. That needs CAP_SYS_PTRACE for
    processes of other users, and of root with more capabilities.
    """
    for line in (_PROC / "self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _CAP_SYS_PTRACE & 1)
    return False


def writers_of_devices(numbers: Collection[int]) -> Iterator[OpenWriter]:
    """What has one of these block devices (`st_rdev`) open for writing, including loop devices."""

    def wanted(file: os.stat_result) -> bool:
        return stat.S_ISBLK(file.st_mode) and file.st_rdev in numbers

    for pid in _processes():
        yield from _of_process(pid, wanted)
    for number in numbers:
        yield from _loops(number, _LOOP_RDEVICE)


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())


def _all_writers(device: int) -> Iterator[OpenWriter]:
    for pid in _processes():
        yield from _of_process(pid, lambda file: file.st_dev == device)
    yield from _loops(device)
    for path in swap_files(device):
        yield OpenWriter(0, "swap", path)


def _of_process(pid: int, wanted: _Wanted) -> Iterator[OpenWriter]:
    folder = _PROC / str(pid)
    for path in (*_descriptors(folder, wanted), *_mappings(folder, wanted)):
        yield OpenWriter(pid, name_of(pid), path)


def _descriptors(folder: Path, wanted: _Wanted) -> Iterator[str]:
    try:
        numbers = os.listdir(folder / "fd")
    except OSError:
        return  # it ended, or is a kernel thread
    for number in numbers:
        try:
            # Check the flags first: stat() may block on an unreachable file server.
            if _for_writing(folder / "fdinfo" / number):
                link = folder / "fd" / number
                if wanted(os.stat(link)):
                    yield os.readlink(link)
        except OSError:
            continue


def _for_writing(information: Path) -> bool:
    for line in information.read_bytes().splitlines():
        if line.startswith(b"flags:"):
            flags = int(line.split()[1], 8)
            return flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_PATH
    return False


def _mappings(folder: Path, wanted: _Wanted) -> Iterator[str]:
    """Shared writable mappings, which need no descriptor to write."""
    try:
        lines = (folder / "maps").read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][1:2] == b"w" and fields[1][3:4] == b"s":
            link = folder / "map_files" / os.fsdecode(fields[0])
            try:
                if wanted(os.stat(link)):
                    yield os.readlink(link)
            except OSError:
                continue


def name_of(pid: int) -> str:
    """The name of a process; "?": it has ended."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def _loops(device: int, field: int = 0) -> Iterator[OpenWriter]:
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        name = entry.parent.parent.name
        status = bytearray(_LOOP_STATUS_BYTES)
        try:
            with files.opened(f"/dev/{name}") as descriptor:
                fcntl.ioctl(descriptor, _LOOP_GET_STATUS64, status)
            backing = os.fsdecode(entry.read_bytes().rstrip(b"\n"))
        except OSError:
            continue
        (flags,) = struct.unpack_from("=I", status, _LOOP_FLAGS)
        if (
            _decoded(struct.unpack_from("=Q", status, field)[0]) == device
            and not flags & _LOOP_READ_ONLY
        ):
            yield OpenWriter(0, name, backing)


def _decoded(number: int) -> int:
    """The kernel's 64-bit encoding of a device number, as `st_dev`."""
    major = (number & 0xFFF00) >> 8
    minor = (number & 0xFF) | ((number >> 12) & 0xFFF00)
    return os.makedev(major, minor)


def swap_files(device: int) -> Iterator[str]:
    """The active swap files on the file system with that `st_dev`."""
    try:
        lines = os.fsdecode((_PROC / "swaps").read_bytes()).split("\n")[1:-1]
    except OSError:
        return
    for line in lines:
        path = mounts.unescaped(line.partition(" ")[0])
        try:
            if os.stat(path).st_dev == device:
                yield path
        except OSError:
            continue  # in another mount namespace
