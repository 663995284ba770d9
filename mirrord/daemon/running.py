"""The progress of a running job: written by its thread, read by the event loop."""

from __future__ import annotations

from typing import Any

from mirrord.core.results import Silent, Watcher
from mirrord.core.states import Activity
from mirrord.scheduler.watched import Watched
from mirrord.system import clock


class Running:
    """The watcher of one job: keeps what `status` shows, and tells the one who asked too.

    Written by one thread and read by another: each field is replaced whole.
    """

    def __init__(self, watched: Watched | None, also: Watcher | None = None) -> None:
        self._watched, self._also = watched, also or Silent()
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

    def rate_bytes_s(self) -> float:
        """The mean rate of the running transfer."""
        passed_s = clock.monotonic_s() - self._begun_s
        return (self.done_bytes - self._begun_bytes) / passed_s if passed_s > 0 else 0.0

    def left_s(self) -> float | None:
        """The remaining time at that rate; None when unknown."""
        rate = self.rate_bytes_s()
        if self.now is not Activity.TRANSFERRING or rate <= 0:
            return None
        return max(0, self.estimate_bytes - self.done_bytes) / rate

    def as_dict(self, pid: int, purpose: str) -> dict[str, Any]:
        """As `status` shows it (docs/cli-json.md)."""
        found: dict[str, Any] = {"pid": pid, "purpose": purpose, "activity": self.now.value}
        if self.snapshot:
            found |= {
                "snapshot": self.snapshot,
                "estimate_bytes": self.estimate_bytes,
                "done_bytes": self.done_bytes,
                "rate_bytes_s": round(self.rate_bytes_s()),
            }
        return found
