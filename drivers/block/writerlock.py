"""The lock of who writes to a block volume: a program as long as it has the volume open for
writing, mirrord for a moment, or for as long as it freezes the volume.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from mirrord.core.errors import Busy, Refused
from mirrord.drivers.block.store import io_errors
from mirrord.system import clock, locks

#: Purposes that mean more than mirrord's own work of a moment.
WRITING = "writing"
FREEZING = "freezing the volume for a switch"

_FILE = "writer"
_POLL_S = 0.02


def take(path: Path, purpose: str, wait_s: float) -> ExitStack:
    """The lock, until what is returned is closed; `Busy` when who has it keeps it for so long."""
    what = f"the block volume '{path}'"
    deadline = clock.monotonic_s() + wait_s
    with ExitStack() as stack:
        while True:
            try:
                with io_errors(str(path), "locking the volume"):
                    stack.enter_context(locks.exclusive(path / _FILE, purpose, what=what))
                return stack.pop_all()
            except Busy:
                if clock.monotonic_s() > deadline:
                    raise
                clock.sleep_s(_POLL_S)


def holder(path: Path, purpose: str) -> locks.Holder | None:
    """Who has the lock for that purpose."""
    found = locks.holder_of(path / _FILE)
    return found if found is not None and found.purpose == purpose else None


def is_frozen(path: Path) -> bool:
    """Whether a process that has not opened the volume otherwise froze it."""
    try:
        if FREEZING.encode() not in (path / _FILE).read_bytes():
            return False  # without taking the lock for a moment, as asking for the holder does
    except OSError:
        return False
    return holder(path, FREEZING) is not None


def frozen(path: Path) -> Busy:
    """What who wants to write to a frozen volume is told."""
    return Busy(
        "the volume is frozen",
        where=str(path),
        why="mirrord is about to switch its role or roll it back to a snapshot",
        hint="Wait for the operation to end ('mirrord status' shows it), then write to the volume "
        "that is live. Nothing was written.",
    )


def read_only(path: Path) -> Refused:
    """What who wants to write to a destination is told."""
    return Refused(
        "the volume is the destination of a mirror and read-only",
        where=str(path),
        hint="'mirrord break NAME' makes it writable.",
    )
