"""The lock of an application: one process at a time pauses it, or resumes what another one left."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from mirrord.core.errors import Busy, PauseFailed
from mirrord.system import locks


def lock(path: Path, stack: ExitStack, patience_s: float) -> int:
    """Lock an application until the stack is closed; returns the descriptor that is locked. path:
    `Pauser.lock_path`. patience_s: how long to wait for another mirror; then `Busy`.
    """
    try:
        descriptor = _opened(path)
    except OSError as error:
        raise PauseFailed(
            "the application cannot be paused", where=str(path), why=error.strerror or ""
        ) from None
    stack.callback(os.close, descriptor)
    if not locks.lock_within(descriptor, patience_s):
        raise Busy(
            "another mirror pauses this application",
            where=str(path),
            why="or its hook program, which a killed process has left, is still running",
            hint="Run the same command again.",
        )
    return descriptor


def _opened(path: Path) -> int:
    """A descriptor to lock: nothing is read or written."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # the owner may only write to it
