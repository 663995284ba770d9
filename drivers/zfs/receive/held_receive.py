"""The `zfs recv` of a transfer that is complete but not committed.

It has read all but the stream's END record, and waits for that: then all becomes visible in one
step. It is a child of this process, stored here by dataset, so that the driver object that commits
finds it. When this process ends, also when it is killed, the end of the pipe ends the `zfs recv`,
and what it has received is kept as a checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import termios
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from mirrord.core.errors import Busy, MirrordError
from mirrord.core.model import ReceiveRequest, Staging
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset.locking import lock_file
from mirrord.system import clock, locks
from mirrord.system import command as programs
from mirrord.system.waiting import Waiting

_ERROR_BYTES_MAX = 16 << 10
_END_S = 120.0
_WAIT_S = 60.0
_POLL_S = 0.02


@dataclass(slots=True)
class HeldReceive:
    """child: None when there is nothing to receive, as the snapshot already exists. writing: its
    input. lock: the lock that it holds while it runs. target: the snapshot's name here.
    """

    where: str
    arguments: list[str]
    child: programs.Process | None
    errors: IO[bytes]
    writing: int
    lock: int
    target: str = ""
    request: ReceiveRequest | None = None
    staging: Staging | None = None
    end_record: bytes = b""

    def write(self, data: bytes | memoryview, waiting: Waiting) -> None:
        """Pass data to it; raises its error when it has ended."""
        try:
            waiting.write_all(self.writing, data)
        except BrokenPipeError as error:
            raise self.failure() from error

    def alive(self) -> bool:
        """Whether it still accepts data."""
        return self.child is None or self.child.poll() is None

    def drained(self, waiting: Waiting) -> bool:
        """Wait until it has read all that was written; False when it ended before."""
        unread = bytearray(4)
        while self.child is not None:
            if self.child.poll() is not None:
                return False
            fcntl.ioctl(self.writing, termios.FIONREAD, unread)
            if not any(unread):
                break
            waiting.look()
            clock.sleep_s(0.001)
        return True

    def finish(self) -> None:
        """Pass the END record to it, and wait until all is visible and durable."""
        if self.child is None:
            return
        self.write(self.end_record, Waiting())
        self._shut()
        if self.child.wait() != 0:
            raise self.failure()

    def failure(self) -> MirrordError:
        """The error with which it ended."""
        status = self.child.wait() if self.child is not None else 0
        self.errors.seek(0)
        said = self.errors.read(_ERROR_BYTES_MAX).decode(errors="replace")
        if not said.strip() and status < 0:
            said = f"'zfs recv' was ended by signal {-status}"
        return command.failure(self.where, self.arguments, said)

    def _shut(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        """End it. Without the END record ZFS keeps what it received, with a resume token."""
        self._shut()
        if self.child is not None:
            if programs.ended(self.child, timeout_s=_END_S) is None:
                programs.end_session(self.child)
            self.child.wait()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1
        self.errors.close()


_guard = threading.Lock()
_kept: dict[str, HeldReceive] = {}


def keep(location: str, running: HeldReceive) -> None:
    """Keep a complete transfer until it is committed or discarded."""
    with _guard:
        before = _kept.pop(location, None)
        _kept[location] = running
    if before is not None:
        before.close()


def kept(location: str, transfer_id: str | None = None) -> HeldReceive | None:
    """The complete transfer that is kept for a dataset, if it still runs and has that id."""
    with _guard:
        found = _kept.get(location)
    if found is None or found.staging is None:
        return None
    if not found.alive():
        drop(location)
        return None
    return found if transfer_id in (None, found.staging.transfer_id) else None


def drop(location: str) -> None:
    """End the transfer that is kept for a dataset."""
    with _guard:
        found = _kept.pop(location, None)
    if found is not None:
        found.close()


def receive_lock(location: str, where: str) -> tuple[int, bool]:
    """Take the lock that `zfs recv` holds while it runs: that of a killed process may still be
    saving what it received. Returns its descriptor, and whether the lock had to be waited for.
    Raises `Busy` when that takes too long.
    """
    descriptor = os.open(lock_file(location, "recv"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    until_s, waited = clock.monotonic_s() + _WAIT_S, False
    try:
        while not locks.try_lock(descriptor):
            if clock.monotonic_s() > until_s:
                raise _busy(where, descriptor)
            waited = True
            clock.sleep_s(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor, waited
    except BaseException:
        os.close(descriptor)
        raise


def _busy(where: str, descriptor: int) -> MirrordError:
    owner = ""
    with suppress(OSError):
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return Busy(
        "another transfer is being received there",
        where=where,
        why=f"a 'zfs recv' that process {owner or '?'} started is still running",
        hint="Wait until it has ended; 'pgrep -af \"zfs recv\"' shows it.",
    )
