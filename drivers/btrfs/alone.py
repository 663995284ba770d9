"""Waits for a program that applies a stream and that a killed mirrord process left running."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from mirrord.core.errors import Busy
from mirrord.drivers.btrfs.layout import Layout
from mirrord.system import clock, files, locks

#: How long such a program may take to end: its disk may be slow. A query does not wait as long.
_WAIT_S = 60.0
_QUERY_S = 20.0
_POLL_S = 0.02


def locked(folder: Path, where: str) -> int:
    """A descriptor of a folder, locked; `Busy` when somebody else does not unlock it in time: a
    program that inherited such a descriptor keeps it locked until it exits.

    A program whose parent was killed may still write to what a new one creates under the same name.
    """
    with ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        if not locks.lock_within(descriptor, _WAIT_S):
            raise Busy(
                "the program that applies an earlier transfer is still running",
                where=where,
                why="its mirrord process was killed, and the disk is slow or hangs",
                hint="Run the same command again when it has ended ('pgrep -af receive').",
            )
        stack.pop_all()
        return descriptor


def wait_until_idle(place: Layout, is_owned: Callable[[], bool]) -> None:
    """Wait for a moment until no program applies a stream; or until a living process owns what it
    applies, which may take long.
    """
    until_s = clock.monotonic_s() + _QUERY_S
    while not _is_idle(place) and not is_owned() and clock.monotonic_s() < until_s:
        clock.sleep_s(_POLL_S)


def _is_idle(place: Layout) -> bool:
    with suppress(FileNotFoundError), files.opened(place.staging, os.O_DIRECTORY) as used:
        return locks.try_lock(used, fcntl.LOCK_SH)
    return True
