"""The record of a pause that is in progress: a locked file that exists as long as the pause.

If the process that would resume is killed, or cannot resume, the file remains, and lists what may
still be paused: the next command resumes it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from mirrord.core.errors import MirrordError
from mirrord.core.pause import LeftPaused
from mirrord.pausers.applock import lock
from mirrord.pausers.registry import open_pauser
from mirrord.system import locks

#: Longer than another process needs to resume.
_PATIENCE_S = 5.0
_BYTES_MAX = 1 << 20
#: In the place of a pauser.
UNKNOWN = "an application"
_KILLED = "the process that paused it was killed"


@contextmanager
def recorded(
    path: Path, paused: Sequence[LeftPaused]
) -> Iterator[tuple[list[LeftPaused], list[LeftPaused]]]:
    """Record a pause during a block, which resumes all before it ends, and adds what it could not
    resume to the first list that is yielded. That stays recorded, like what an earlier pause has
    left. The second list: what an earlier one has left of what is paused now.
    """
    left: list[LeftPaused] = []
    with _held(path, os.O_CREAT, math.inf) as descriptor:
        assert descriptor is not None, path
        same = {one[:3] for one in paused}  # all but the reason
        known = _read(descriptor)
        before = [one for one in known if one[:3] not in same]
        with _named(path):
            _write(descriptor, [*before, *paused])
        yield left, [one for one in known if one[:3] in same]
        _settle(path, descriptor, [*before, *left])


def check(path: Path, paused: Sequence[LeftPaused]) -> None:
    """Before a pause, and before that of any other host: OSError when it could not be recorded."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent) as file, _named(path):
        os.posix_fallocate(file.fileno(), 0, len(_packed(paused)))


def add(path: Path, left: Sequence[LeftPaused]) -> None:
    """Record that applications of other hosts may still be paused."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with _held(path, os.O_CREAT, math.inf) as descriptor:
        assert descriptor is not None, path
        same = {(one.host, one.pauser) for one in left}
        before = [one for one in _read(descriptor) if (one.host, one.pauser) not in same]
        _write(descriptor, [*before, *left])


def left_in(path: Path) -> list[LeftPaused]:
    """What may still be paused, and why. While a process is at work: what was left before."""
    with _held(path, 0, 0) as descriptor:
        if descriptor is None:
            return [one for one in _peek(path) if one.why]
        found = _read(descriptor)
        return [one._replace(why=one.why or _KILLED) for one in found if _exists(one)]


def resume_left(
    path: Path,
    patience_s: float = _PATIENCE_S,
    elsewhere: Callable[[LeftPaused], str] = lambda one: one.why,
    at_work: str = "",
) -> list[LeftPaused]:
    """Resume what was left paused; returns what could not be. What no longer exists is dropped: a
    unit that was restarted is not touched. patience_s: how long to wait for a process that is at
    work. elsewhere: resumes what is on another host; returns why it could not, or "". at_work: the
    reason to return for what a process is still at work with; "": it is not returned.
    """
    with _held(path, 0, patience_s) as descriptor:
        if descriptor is None:
            return [one._replace(why=at_work) for one in _peek(path)] if at_work else []
        left = []
        for one in _read(descriptor):
            why = elsewhere(one) if one.host else _resumed(one, patience_s, path)
            if why:
                left.append(one._replace(why=why))
        _settle(path, descriptor, left)
        return left


def _resumed(one: LeftPaused, patience_s: float, record: Path) -> str:
    """Resume an application; returns why that failed, or ""."""
    if one.pauser == UNKNOWN:
        return one.why
    try:
        with closing(open_pauser(one.pauser)) as pauser, ExitStack() as stack:
            if pauser.find(one.mark):
                if place := pauser.lock_path():
                    if not place.exists():
                        return f"{place} does not exist; resume it by hand, then delete {record}"
                    # Another mirror's pause of it is not ended.
                    pauser.held_lock = lock(place, stack, patience_s)
                pauser.resume()
    except (MirrordError, OSError) as error:
        return str(error)
    return ""


def _exists(one: LeftPaused) -> bool:
    if one.host:
        return True
    try:
        with closing(open_pauser(one.pauser)) as pauser:
            return pauser.find(one.mark)
    except (MirrordError, OSError):
        return True


@contextmanager
def _held(path: Path, flags: int, patience_s: float) -> Iterator[int | None]:
    """The record, locked; None when there is none, or another process is at work with it.
    patience_s: how long to wait for that.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        except FileNotFoundError:
            if flags:
                raise
            yield None
            return
        try:
            if not locks.lock_within(descriptor, patience_s):
                yield None
                return
            if os.fstat(descriptor).st_nlink:
                yield descriptor
                return
            # It was removed while this process waited for the lock.
        finally:
            os.close(descriptor)


def _read(descriptor: int) -> list[LeftPaused]:
    line, end, _ = os.pread(descriptor, _BYTES_MAX, 0).partition(b"\n")
    if not end:
        return []  # nothing was paused yet
    try:
        found = json.loads(line)  # perhaps of a newer version, with more fields
        fields = LeftPaused._fields
        return [LeftPaused(**{key: one[key] for key in fields if key in one}) for one in found]
    except (ValueError, TypeError):
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        why = f"the record {place} is damaged; check each that mirrord pauses, then delete it"
        return [LeftPaused(UNKNOWN, why=why)]


def _peek(path: Path) -> list[LeftPaused]:
    """What another process is at work with; nothing when it has resumed everything."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return _read(file.fileno())
    return []


def _packed(every: Sequence[LeftPaused]) -> bytes:
    return json.dumps([one._asdict() for one in every]).encode() + b"\n"


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """An error of what is done with a descriptor names the record."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _write(descriptor: int, every: Sequence[LeftPaused]) -> None:
    data = _packed(every)
    os.posix_fallocate(descriptor, 0, len(data))  # on a full disk it fails here: nothing is lost
    if os.pwrite(descriptor, data, 0) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(data))


def _settle(path: Path, descriptor: int, left: Sequence[LeftPaused]) -> None:
    """Record what is left; without anything the record is removed."""
    if left:
        _write(descriptor, left)
    else:
        path.unlink(missing_ok=True)
