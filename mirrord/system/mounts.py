"""The mounts that this process sees: which there are, and when they change."""

from __future__ import annotations

import os
import re
import select
from pathlib import Path

_TABLE = "/proc/self/mountinfo"


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


def of_type(kind: str) -> list[str]:
    """The mount points of file systems of a type, in the order of the table."""
    return [mount for mount, found in _mounts() if found == kind]


def type_at(mount: str) -> str | None:
    """The type of the file system that is mounted there; None: that is not a mount point."""
    there = os.path.realpath(mount)
    return next((kind for path, kind in reversed(_mounts()) if path == there), None)


def _mounts() -> list[tuple[str, str]]:
    """Each mount point with the type of its file system."""
    found = []
    with Path(_TABLE).open("rb") as table:
        for line in table:
            before, _, after = line.partition(b" - ")
            path = re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), before.split()[4])
            found.append((os.fsdecode(path), after.split()[0].decode()))
    return found
