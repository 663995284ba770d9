"""Detects mounts and unmounts without reading the complete table each time."""

from __future__ import annotations

import os
import select

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
