"""The `zfs recv` of a transfer that is whole but not committed.

It has read all but the stream's END record, and waits for that: then all becomes visible in one
step. It is this process's child, kept here by its dataset, so that whichever driver object comes
to commit finds it. When the process ends, however it does, the end of the pipe ends the `zfs recv`,
and what it had received stays as a checkpoint.
"""

from __future__ import annotations

import errno
import fcntl
import os
import termios
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from mirrord.core.errors import Busy, MirrordError
from mirrord.core.model import ReceiveRequest, Staging
from mirrord.drivers.zfs import command
from mirrord.drivers.zfs.locking import lock_file
from mirrord.system import clock
from mirrord.system import command as programs
from mirrord.system.waiting import Waiting

_ERROR_BYTES_MAX = 16 << 10
_END_S = 120.0
_WAIT_S = 60.0
_POLL_S = 0.02


@dataclass(slots=True)
class Running:
    """child: None when there is nothing to receive, as the snapshot is there already. writing: its
    input. alone: the lock that it holds as long as it lives. target: the snapshot's name here.
    """

    where: str
    arguments: list[str]
    child: programs.Process | None
    errors: IO[bytes]
    writing: int
    alone: int
    target: str = ""
    request: ReceiveRequest | None = None
    staging: Staging | None = None
    end_record: bytes = b""

    def write(self, data: bytes | memoryview, waiting: Waiting) -> None:
        """Pass something on to it; raises what it complains of when it has ended."""
        try:
            waiting.write_all(self.writing, data)
        except BrokenPipeError as error:
            raise self.failure() from error

    def alive(self) -> bool:
        """Whether it still takes something."""
        return self.child is None or self.child.poll() is None

    def drained(self, waiting: Waiting) -> bool:
        """Whether it has read all that was written; waits for that. False when it ended."""
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
        """Let it read the END record, and wait until all is visible and durable."""
        if self.child is None:
            return
        self.write(self.end_record, Waiting())
        self._shut()
        if self.child.wait() != 0:
            raise self.failure()

    def failure(self) -> MirrordError:
        """Why it ended, in mirrord's words."""
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
        """End it. Without the END record it keeps what it received, with a resume token."""
        self._shut()
        if self.child is not None:
            if programs.ended(self.child, timeout_s=_END_S) is None:
                programs.end_session(self.child)
            self.child.wait()
        if self.alone >= 0:
            os.close(self.alone)
            self.alone = -1
        self.errors.close()


_guard = threading.Lock()
_kept: dict[str, Running] = {}


def keep(location: str, running: Running) -> None:
    """Keep a whole transfer until it is committed or discarded."""
    with _guard:
        before = _kept.pop(location, None)
        _kept[location] = running
    if before is not None:
        before.close()


def kept(location: str, transfer_id: str | None = None) -> Running | None:
    """The whole transfer that is kept for a dataset (if it is that one), and still alive."""
    with _guard:
        found = _kept.get(location)
    if found is None or found.staging is None:
        return None
    if not found.alive():
        drop(location)
        return None
    return found if transfer_id in (None, found.staging.transfer_id) else None


def drop(location: str) -> None:
    """End what is kept for a dataset."""
    with _guard:
        found = _kept.pop(location, None)
    if found is not None:
        found.close()


def alone(location: str, where: str) -> tuple[int, bool]:
    """A descriptor with a lock that `zfs recv` holds as long as it lives: the one of a process that
    was killed may still be saving what it received. `Busy` when that takes too long. And whether
    it had to be waited for.
    """
    descriptor = os.open(lock_file(location, "recv"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    until_s, waited = clock.monotonic_s() + _WAIT_S, False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK:
                    raise
            else:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return descriptor, waited
            if clock.monotonic_s() > until_s:
                raise _busy(where, descriptor)
            waited = True
            clock.sleep_s(_POLL_S)
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
        why=f"a 'zfs recv' that process {owner or '?'} started has not ended",
        hint="Wait for it to end; look for it with 'pgrep -af \"zfs recv\"'.",
    )


def close_lock(descriptor: int) -> None:
    """Give back what `alone` gave."""
    os.close(descriptor)
