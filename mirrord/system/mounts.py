"""The mounts that this process or others see: which there are, and when they change."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TABLE = Path("/proc/self/mountinfo")
#: For a thread that has a mount namespace of its own.
OF_THREAD = Path("/proc/thread-self/mountinfo")
#: The kernel writes these as a backslash with three octal digits.
_ESCAPES = {ord(one): f"\\{ord(one):03o}" for one in " \t\n\\"}


class Mount(NamedTuple):
    """A mount. device: number of the file system's device; root: what of the file system is mounted
    there; kind: its type; source: a device or a name.
    """

    device: int
    root: str
    path: str
    kind: str
    source: str


class MountTable:
    """The mounts that this process sees. The kernel reports changes (proc(5))."""

    def __init__(self) -> None:
        self._descriptor = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLPRI)

    def changed(self) -> bool:
        """Whether they have changed since the last call."""
        return any(events & select.POLLPRI for _, events in self._poll.poll(0))

    def close(self) -> None:
        """Close the table. Call once only."""
        os.close(self._descriptor)


def here(table: Path = _TABLE) -> list[Mount]:
    """All that this process sees, in the order of the table: a later one hides an earlier one."""
    return list(_listed(table.read_bytes()))


def everywhere(within: str = "") -> Iterator[Mount]:
    """Those of all mount namespaces, this process's first. Some are in several.

    within: only those whose `root` may begin with it, which is much quicker where there are none.
    """
    wanted = os.fsencode(within.translate(_ESCAPES))
    seen = set()
    for process in ("self", *filter(str.isdecimal, os.listdir("/proc"))):  # quicker than a Path
        try:
            namespace = os.readlink(f"/proc/{process}/ns/mnt")
            if namespace in seen:
                continue
            with open(f"/proc/{process}/mountinfo", "rb", buffering=0) as file:  # noqa: PTH123
                table = file.read()
        except OSError:
            continue  # it ended, or this user may not read it
        seen.add(namespace)
        if wanted in table:
            yield from _listed(table)


def of_type(kind: str) -> list[str]:
    """The mount points of file systems of a type, in the order of the table."""
    return [mount.path for mount in here() if mount.kind == kind]


def type_at(path: str) -> str | None:
    """The type of the file system that is mounted there; None: that is not a mount point."""
    there = os.path.realpath(path)
    return next((mount.kind for mount in reversed(here()) if mount.path == there), None)


def _listed(table: bytes) -> Iterator[Mount]:
    # (A path may contain what `splitlines` takes for the end of a line.)
    for line in os.fsdecode(table).split("\n")[:-1]:
        fields, _, rest = line.partition(" - ")
        _id, _parent, device, root, path, *_ = fields.split(" ")
        major, _, minor = device.partition(":")
        kind, source, *_ = rest.split(" ")
        number = os.makedev(int(major), int(minor))
        yield Mount(number, unescaped(root), unescaped(path), kind, unescaped(source))


def unescaped(text: str) -> str:
    """Without the octal escapes of the kernel's tables (`\\040` for a space)."""
    parts = text.split("\\")
    octal = [chr(int(part[:3], 8)) + part[3:] for part in parts[1:]]
    return "".join((parts[0], *octal))
