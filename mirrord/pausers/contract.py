"""What a pauser does. docs/consistency-groups.md describes the kinds.

A pause follows *Software-defined Consistency Group Abstractions for Virtual Machines* (Rahman and
others, DCC 2016): it stops new writes and returns at once; nothing is flushed.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path

from mirrord.core.errors import PauseFailed


class Pauser(abc.ABC):
    """Pauses one application. It is used by one process, which is not the one that may be killed
    while it waits for a snapshot (guard.py).
    """

    #: Somebody else had paused it: `pause` failed, and `resume` does nothing.
    others = False
    #: How long the pause may last, in seconds. The guard sets it before `check`.
    max_s = 1.0
    #: The lock on `lock_path`, while `pause` and `resume` are called. A program that goes on when
    #: this process is killed has to hold it.
    held_lock: int | None = None

    def __init__(self, kind: str, argument: str) -> None:
        """`ValueError` says what is expected when the argument is malformed."""
        self.kind, self.argument = kind, argument

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}"

    def failed(self, what: str, *, why: str = "", hint: str = "") -> PauseFailed:
        """The error for a pause that is not possible."""
        return PauseFailed(what, where=str(self), why=why, hint=hint)

    def lock_path(self) -> Path | None:
        """A file or folder to lock, so that two mirrors do not pause the same at the same time, and
        none resumes it while another one takes its set; None: it serves one process at a time
        anyway.
        """
        return None

    def mark(self) -> str:
        """What tells the application that `check` has found from a later one of the same name, such
        as a unit that was restarted; "" where nothing does.
        """
        return ""

    def find(self, mark: str) -> bool:
        """In another process than that of `check`: whether the application of that mark still
        exists. `lock_path` and `resume` are then those of this one.
        """
        try:
            return mark == self.mark()
        except (PauseFailed, OSError):
            return False

    @abc.abstractmethod
    def check(self, written: Sequence[Path]) -> None:
        """Before a pause: raise `PauseFailed` when it is not possible, and open what it needs, so
        that `pause` takes little time. written: what mirrord writes to during the pause.
        """

    @abc.abstractmethod
    def pause(self, timeout_s: float) -> None:
        """Pause it. When this returns, no write is acknowledged any more. `PauseFailed` when that
        takes longer than `timeout_s`; `resume` is called then, too.
        """

    def is_paused(self) -> bool:
        """Whether it is still paused, and was without interruption, as far as that can be known."""
        return True

    @abc.abstractmethod
    def resume(self) -> None:
        """Resume it. Does nothing when it is not paused, or no longer exists. Also called in
        another process than `pause`, when that one was killed.
        """

    def close(self) -> None:  # noqa: B027 - few have anything to release
        """Release what it has opened. It does not resume."""
