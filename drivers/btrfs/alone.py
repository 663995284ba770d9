"""Waits for a 'btrfs receive' that a killed mirrord process left running."""

from __future__ import annotations

import errno
import fcntl
import os

from mirrord.core.errors import Busy
from mirrord.drivers.btrfs.layout import Layout
from mirrord.system import clock

_WAIT_S = 20.0
_POLL_S = 0.02


def receive_lock(place: Layout, where: str) -> int:
    """A locked descriptor, which 'btrfs receive' inherits and so keeps locked until it exits.

    A 'btrfs receive' whose parent was killed may still write to what a new one creates under the
    same name; `Busy` when it does not exit in time.
    """
    descriptor = os.open(place.staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until_s = clock.monotonic_s() + _WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK or clock.monotonic_s() > until_s:
                os.close(descriptor)
                if error.errno != errno.EWOULDBLOCK:
                    raise
                raise Busy(
                    "the 'btrfs receive' process of an earlier transfer is still running",
                    where=where,
                    why="its mirrord process was killed, and the disk is slow or hangs",
                    hint="Run the same command again when it has ended ('pgrep -af btrfs').",
                ) from None
            clock.sleep_s(_POLL_S)
