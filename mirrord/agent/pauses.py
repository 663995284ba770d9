"""Pauses applications of this host for a peer, by a guard program (mirrord.pausers)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from mirrord.core.errors import MirrordError, PauseFailed
from mirrord.core.pause import LeftPaused, Resumed
from mirrord.pausers.guard import Order
from mirrord.pausers.record import UNKNOWN, resume_left
from mirrord.pausers.session import Guard
from mirrord.system import clock
from mirrord.wire.methods import PeerPause

_SUFFIX = ".paused"
#: How long a session waits at its beginning.
_FIRST_S = 2.0


class HeldPause(PeerPause):
    """A peer's pause. folder: of the records of pauses. written: what the peer's calls write to
    during the pause.
    """

    def __init__(self, folder: Path, written: Callable[[], list[str]]) -> None:
        self._folder, self._written = folder, written
        self._lock = threading.Lock()
        self._guard: Guard | None = None

    def pause_host(self) -> str:
        """See `PeerPause.pause_host`."""
        return clock.boot_id()

    def pause_open(self, pausers: Sequence[str], max_s: float) -> None:
        """See `PeerPause.pause_open`."""
        self.pause_close()
        resume_all(self._folder)
        record = str(self._folder / f"{secrets.token_hex(8)}{_SUFFIX}")
        guard = Guard(Order(tuple(pausers), max_s, [record, *self._written()], record))
        with self._lock:
            self._guard = guard
        guard.ready(lambda: None)

    def pause_begin(self) -> list[float]:
        """See `PeerPause.pause_begin`."""
        return self._prepared().pause()

    def pause_end(self) -> Resumed:
        """See `PeerPause.pause_end`."""
        return self._prepared().resume()

    def pause_close(self) -> None:
        """See `PeerPause.pause_close`."""
        with self._lock:
            guard, self._guard = self._guard, None
        if guard is not None:
            guard.leave()
            guard.close()

    def pause_left(self, pausers: Sequence[str]) -> list[LeftPaused]:
        """See `PeerPause.pause_left`."""
        found = [
            one
            for path in self._folder.glob(f"*{_SUFFIX}")
            for one in resume_left(path, at_work="it is still being resumed")
        ]
        return [one for one in found if one.pauser in (*pausers, UNKNOWN)]

    def _prepared(self) -> Guard:
        guard = self._guard
        if guard is None:
            raise PauseFailed(
                "the pause has ended",
                why="the connection was made again meanwhile; everything was resumed",
                hint="Run the same command again.",
            )
        return guard


def resume_all(folder: Path) -> None:
    """Resume what was left paused."""
    for path in folder.glob(f"*{_SUFFIX}"):
        resume_left(path, 0)


def resume_first(folder: Path) -> None:
    """The same before a session, which does not wait for a program that hangs."""

    def work() -> None:
        with suppress(MirrordError, OSError):
            resume_all(folder)

    thread = threading.Thread(target=work, name="resume", daemon=True)
    thread.start()
    thread.join(_FIRST_S)
