"""The writers' lock of a block volume, held by a program while it has the volume open for writing,
and by mirrord for short operations or while it freezes the volume.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from mirrord.core.errors import MIRROR, Busy, Refused
from mirrord.drivers.block.store import io_errors
from mirrord.system import locks

#: Purposes other than mirrord's own short operations.
WRITING = "writing"
FREEZING = "freezing the volume for a switch"

_FILE = "writer"


def take(path: Path, purpose: str, wait_s: float) -> ExitStack:
    """Take the lock until the result is closed; `Busy` when not free within `wait_s`."""
    what = f"the block volume '{path}'"
    with ExitStack() as stack, io_errors(str(path), "locking the volume"):
        lock = partial(locks.exclusive, path / _FILE, purpose, what=what)
        stack.enter_context(locks.waited_for(lock, wait_s))
        return stack.pop_all()


def holder(path: Path, purpose: str) -> locks.Holder | None:
    """The holder of the lock for that purpose."""
    found = locks.holder_of(path / _FILE)
    return found if found is not None and found.purpose == purpose else None


def is_frozen(path: Path) -> bool:
    """Whether a process that does not have the volume open froze it."""
    try:
        if FREEZING.encode() not in (path / _FILE).read_bytes():
            return False  # avoids taking the lock briefly, as `holder` does
    except OSError:
        return False
    return holder(path, FREEZING) is not None


def frozen(path: Path) -> Busy:
    """The error for a write to a frozen volume."""
    return Busy(
        "the volume is frozen",
        where=str(path),
        why="mirrord is about to switch its role or roll it back to a snapshot",
        hint="Wait for the operation to end ('mirrord status' shows it), then write to the volume "
        "that is live. Nothing was written.",
    )


def read_only(path: Path) -> Refused:
    """The error for a write to a destination."""
    return Refused(
        "the volume is the destination of a mirror and read-only",
        where=str(path),
        hint=f"'mirrord break {MIRROR}' makes it writable.",
    )
