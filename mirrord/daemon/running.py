"""Verbs that somebody waits for, and the progress of running ones."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mirrord.control.command import Call
from mirrord.core.errors import Aborted, MirrordError
from mirrord.core.results import Silent, VerbProgress, Watcher
from mirrord.core.states import Activity
from mirrord.core.status import RunningVerb
from mirrord.scheduler.watched import Watched
from mirrord.system import clock


class Asked:
    """A queued verb that somebody waits for."""

    def __init__(self, call: Call[Any], watcher: Watcher) -> None:
        self.call, self.watcher = call, watcher
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def fail(self, error: MirrordError) -> None:
        """Answer with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def cancel(self, by: Call[Any]) -> None:
        """Another verb has ended what goes on with the mirror."""
        text = f"the queued {self.call.command.words} was cancelled"
        self.fail(Aborted(text, why=f"by 'mirrord {by.command.words}'"))


class Running:
    """The watcher of one verb: keeps what `status` shows, and tells the one who asked too.

    Written by one thread and read by another: each field is replaced whole.
    """

    def __init__(self, purpose: str, watched: Watched | None, also: Watcher | None = None) -> None:
        """watched: learns when bytes move; None for a verb that did not wait in the queue."""
        self.purpose, self._watched, self._also = purpose, watched, also or Silent()
        self.started_s = clock.monotonic_s()
        self.now = Activity.IDLE
        self.snapshot = ""
        self.estimate_bytes = self.done_bytes = 0
        self._begun_bytes, self._begun_s = 0, self.started_s

    def activity(self, activity: Activity, note: str) -> None:
        """The activity of the mirror changed."""
        self.now = activity
        if self._watched is not None and activity is not Activity.TRANSFERRING:
            self._watched.moved_s = None
        self._also.activity(activity, note)

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """A transfer begins."""
        self.snapshot, self.estimate_bytes, self.done_bytes = name, estimate_bytes, done_bytes
        self._begun_bytes, self._begun_s = done_bytes, clock.monotonic_s()
        if self._watched is not None:
            self._watched.moved_s = self._begun_s
        self._also.transfer(name, estimate_bytes, done_bytes)

    def moved(self, stream_bytes: int) -> None:
        """Count transferred bytes."""
        self.done_bytes += stream_bytes
        if self._watched is not None:
            self._watched.moved_s = clock.monotonic_s()
        self._also.moved(stream_bytes)

    def verb(self) -> RunningVerb:
        """As `status` shows it."""
        if not self.snapshot:
            return RunningVerb(os.getpid(), self.purpose, VerbProgress(self.now))
        passed_s = clock.monotonic_s() - self._begun_s
        rate = round((self.done_bytes - self._begun_bytes) / passed_s) if passed_s > 0 else 0
        return RunningVerb(
            os.getpid(),
            self.purpose,
            VerbProgress(self.now, self.snapshot, self.estimate_bytes, self.done_bytes, rate),
        )
