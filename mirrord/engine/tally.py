"""The progress of the transfers of several members, combined into that of one transfer."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mirrord.core.results import Silent, Watcher
from mirrord.core.states import Activity
from mirrord.engine.progress import RunFiles


class Tally:
    """The sum of the legs. run, watcher: receive it. check: raises when a leg is to end."""

    def __init__(self, run: RunFiles, watcher: Watcher, check: Callable[[], None]) -> None:
        self.run, self.watcher, self.check = run, watcher, check
        self.lock = threading.Lock()
        self._legs: list[LegProgress] = []

    def leg(self) -> LegProgress:
        """The progress of one more member."""
        with self.lock:
            self._legs.append(LegProgress(self))
            return self._legs[-1]

    def begin(self, name: str) -> None:
        """A leg has begun, perhaps again: update the total estimate."""
        estimate_bytes = sum(leg.estimate_bytes for leg in self._legs)
        done_bytes = sum(leg.done_bytes for leg in self._legs)
        moved_bytes = sum(leg.moved_bytes for leg in self._legs)
        if moved_bytes:
            self.run.expect(estimate_bytes, done_bytes)
        else:
            self.run.begin_transfer(name, estimate_bytes, done_bytes)
        self.watcher.transfer(name, estimate_bytes, done_bytes)

    def moved(self, stream_bytes: int) -> None:
        """A leg has moved `stream_bytes` more bytes."""
        self.run.moved(stream_bytes, sum(leg.done_bytes for leg in self._legs))
        self.watcher.moved(stream_bytes)


class LegProgress:
    """The progress of one leg: what a transfer needs of `RunFiles`."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.watcher: Watcher = _Activities(tally)
        #: As in `RunFiles`; done_bytes: of the stream, including an earlier attempt.
        self.estimate_bytes = self.moved_bytes = self.done_bytes = 0

    def check_abort(self) -> None:
        """See `RunFiles.check_abort`; another leg's failure counts as well."""
        self._tally.check()
        self._tally.run.check_abort()

    def begin_transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """See `RunFiles.begin_transfer`."""
        with self._tally.lock:
            self.estimate_bytes, self.moved_bytes, self.done_bytes = estimate_bytes, 0, done_bytes
            self._tally.begin(name)

    def moved(self, stream_bytes: int, done_bytes: int) -> None:
        """See `RunFiles.moved`."""
        with self._tally.lock:
            self.moved_bytes += stream_bytes
            self.done_bytes = done_bytes
            self._tally.moved(stream_bytes)


class _Activities(Silent):
    """The watcher of one leg; bytes are reported by its progress."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def activity(self, activity: Activity, note: str) -> None:
        """See `Watcher.activity`."""
        with self._tally.lock:
            self._tally.watcher.activity(activity, note)
