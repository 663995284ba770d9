"""Waiting for the 'btrfs receive' of a process that was killed."""

from __future__ import annotations

import errno
import fcntl
import os

from mirrord.core.errors import Busy
from mirrord.drivers.btrfs.layout import Layout
from mirrord.system import clock

_WAIT_S = 20.0
_POLL_S = 0.02


def alone(place: Layout, where: str) -> int:
    """A descriptor with a lock that 'btrfs receive' holds as long as it lives: the one of a process
    that was killed may still write into what a new one makes under the same name. `Busy`.
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
