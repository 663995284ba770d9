"""Whether anything was mounted or unmounted, without reading the whole table each time."""

from __future__ import annotations

import select
from pathlib import Path

_TABLE = Path("/proc/self/mountinfo")


class MountTable:
    """The mounts that this process sees. The kernel says when they change (proc(5))."""

    def __init__(self) -> None:
        self._file = _TABLE.open("rb")  # as long as the process lives
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLPRI)

    def changed(self) -> bool:
        """Whether they have changed since the last call."""
        return any(events & select.POLLPRI for _, events in self._poll.poll(0))
