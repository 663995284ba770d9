"""Finds what has files of a file system open for writing, from /proc: processes in all mount
namespaces that this one can see, loop devices and swap files.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from mirrord.core.model import OpenWriter
from mirrord.system import files, mounts

_PROC = Path("/proc")
_OPEN_FLAGS = re.compile(rb"^flags:\s*([0-7]+)", re.MULTILINE)
#: A shared writable mapping in /proc/PID/maps; its name in /proc/PID/map_files.
_SHARED_WRITABLE = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) .w.s ", re.MULTILINE)
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
    for link in (*_descriptors(pid), *_mappings(pid)):
        try:
            if wanted(os.stat(link)):
                yield OpenWriter(pid, name_of(pid), os.readlink(link))
        except OSError:
            continue  # it ended, or has closed that file


# Names of files are strings here: of ten thousand open files, each `Path` takes longer than to
# read it.


def _descriptors(pid: int) -> Iterator[str]:
    """Links to what is open for writing. A link may be followed only if its flags say so: stat()
    may block on an unreachable file server.
    """
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return  # it ended
    for number in numbers:
        with suppress(OSError), files.opened(f"/proc/{pid}/fdinfo/{number}") as information:
            found = _OPEN_FLAGS.search(os.read(information, 4096))
            flags = int(found[1], 8) if found else os.O_PATH
            if flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_PATH:
                yield f"/proc/{pid}/fd/{number}"


def _mappings(pid: int) -> Iterator[str]:
    """Links to shared writable mappings, which need no descriptor to write."""
    try:
        found = _SHARED_WRITABLE.findall(Path(f"/proc/{pid}/maps").read_bytes())
    except OSError:
        return
    for place in found:
        yield f"/proc/{pid}/map_files/{os.fsdecode(place)}"


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
