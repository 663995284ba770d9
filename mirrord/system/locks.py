"""Locks that record their holder, and that end with their process, even if it is killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import MIRROR, Busy
from mirrord.system import clock

#: How long the lock may be held without a recorded holder: by a query, or while starting.
_QUERY_S = 1.0
_POLL_S = 0.05
_POLL_PLAIN_S = 0.01


class Holder(NamedTuple):
    """The holder of a lock: the process, its purpose, and since when (wall time).

    shared: the process also does other work (the daemon): a signal would end all of it.
    """

    pid: int
    purpose: str
    since_ns: int
    shared: bool = False

    def __str__(self) -> str:
        since = clock.format_moment(self.since_ns)
        return f"process {self.pid} ({self.purpose}) since {since}"


_shared = False


def share_process() -> None:
    """This process is the daemon: locks that it takes from now on record that."""
    global _shared
    _shared = True


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take the kernel lock of an open file or folder; False while another has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(
    descriptor: int,
    patience_s: float,
    *,
    poll_s: float = _POLL_PLAIN_S,
    hopeless: Callable[[], object] = lambda: False,
) -> bool:
    """Take the kernel lock of an open file or folder; False when another has it for that long, or
    as soon as the wait is `hopeless`.
    """
    deadline_s = clock.monotonic_s() + patience_s
    while not try_lock(descriptor):
        if clock.monotonic_s() >= deadline_s or hopeless():
            return False
        clock.sleep_s(poll_s)
    return True


def holder_of(path: str | Path) -> Holder | None:
    """The current holder of the lock at `path`, or None."""
    with suppress(FileNotFoundError), ExitStack() as stack:
        descriptor = _file(path, stack, os.O_RDWR)
        return None if try_lock(descriptor) else _read_holder(descriptor)
    return None


@contextmanager
def exclusive(path: str | Path, purpose: str, *, what: str) -> Iterator[bool]:
    """Hold the lock at `path`; `Busy` with the holder when it is taken. Yields whether the file
    could not be created, and its whole folder is locked instead.

    The lock is a kernel lock (flock): it ends with the process, so a crash leaves none behind. It
    needs no disk space: on a full file system the holder may not be recorded, but it is held.
    what: what is locked, for the message (`mirror 'home'`).
    """
    with ExitStack() as stack:
        descriptor, whole = _opened(Path(path), stack, what)
        if not _take(descriptor):
            raise Busy(
                f"{what} is in use by {_read_holder(descriptor)}",
                hint="Wait for it to end; "
                f"'mirrord abort {MIRROR}' ends the operation of a mirror.",
            )
        # Without space for the record others only learn that the lock is held.
        holder = Holder(os.getpid(), purpose, clock.now_ns(), _shared)
        _record(descriptor, json.dumps(holder._asdict()).encode())
        yield whole
        _record(descriptor, b"")


def _opened(path: Path, stack: ExitStack, what: str) -> tuple[int, bool]:
    """The file to lock, or (True) its folder when there is no space to create the file. A holder of
    the file also holds a shared lock on the folder, so that the two kinds exclude each other.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, folder)
    try:
        descriptor = _file(path, stack)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return folder, True
    if not try_lock(folder, fcntl.LOCK_SH):
        raise Busy(f"{what} is in use", why="its folder is locked: the disk is full")
    return descriptor, False


def _file(path: str | Path, stack: ExitStack, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """The file to lock; one that is on a read-only file system is only read."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno != errno.EROFS or not os.path.exists(path):
            raise
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def _record(descriptor: int, text: bytes) -> None:
    with suppress(OSError):  # a full file system, or a folder: the lock is held anyway
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)


def _take(descriptor: int) -> bool:
    """Take the lock. A lock without a record may just be a query for its holder: wait briefly."""
    return lock_within(descriptor, _QUERY_S, poll_s=0.001, hopeless=lambda: _recorded(descriptor))


def _recorded(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, 4096, 0)
    except IsADirectoryError:
        return b""


def _read_holder(descriptor: int) -> Holder:
    try:
        record = json.loads(_recorded(descriptor))
        return Holder(
            int(record["pid"]),
            str(record["purpose"]),
            int(record["since_ns"]),
            bool(record.get("shared")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Holder(0, "starting", clock.now_ns())


@contextmanager
def waited_for(
    lock: Callable[[], AbstractContextManager[object]],
    patience_s: float,
    *,
    check: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Hold a lock, which `lock` takes; waits for another holder for that long, then `Busy`. check:
    raises when the wait is to end.
    """
    deadline_s = clock.monotonic_s() + patience_s
    while True:
        with ExitStack() as stack:
            try:
                stack.enter_context(lock())
            except Busy:
                if clock.monotonic_s() >= deadline_s:
                    raise
                check()
                clock.sleep_s(_POLL_S)
                continue
            yield
            return


@contextmanager
def passing(path: str | Path, *, what: str) -> Iterator[None]:
    """Hold the lock at `path` briefly, without a record in it; other callers wait. `Busy` with the
    holder when it is held for longer.
    """
    with ExitStack() as stack:
        descriptor = _file(path, stack)
        if not _take(descriptor):
            holder = _read_holder(descriptor)  # who passes, too, has left no record
            raise Busy(
                f"{what} is in use by {holder if holder.pid else 'another process'}",
                hint="Wait for it to end, and run the same command again.",
            )
        yield
