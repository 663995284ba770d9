"""Progress at the terminal: a bar with rate and time left; plain lines when it is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from mirrord.core.states import Activity
from mirrord.core.units import format_duration, format_size

_LINE_EVERY_S = 10.0
_BAR_AFTER_S = 0.3


@contextmanager
def watcher(*, quiet: bool) -> Iterator[Any]:
    """A watcher for the verb to come: bar, lines, or nothing."""
    if quiet:
        from mirrord.core.results import Silent

        yield Silent()
    elif sys.stderr.isatty():
        with closing(_Bar()) as bar:
            yield bar
    else:
        yield _Lines()


class _Lines:
    """One line at the start of a transfer that takes long, then one every ten seconds."""

    def __init__(self) -> None:
        self._name, self._estimate, self._done, self._moved = "", 0, 0, 0
        self._started_s = self._said_s = time.monotonic()

    def activity(self, activity: Activity, note: str) -> None:
        """Only transfers are worth a line."""

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """Begin to count."""
        self._name, self._estimate, self._done, self._moved = name, estimate_bytes, done_bytes, 0
        self._started_s = self._said_s = time.monotonic()

    def moved(self, stream_bytes: int) -> None:
        """Count, and say so from time to time."""
        self._moved += stream_bytes
        now_s = time.monotonic()
        if now_s - self._said_s < _LINE_EVERY_S:
            return
        self._said_s = now_s
        rate = self._moved / (now_s - self._started_s)
        left = max(0, self._estimate - self._done - self._moved) / rate if rate else 0
        with suppress(OSError):  # a log that is full, or a reader that has gone, ends no transfer
            print(
                f"{self._name}: {format_size(self._done + self._moved)} of about "
                f"{format_size(self._estimate)}, {format_size(rate)}/s, about "
                f"{format_duration(left)} left",
                file=sys.stderr,
            )


class _Bar:
    """A bar, once a transfer takes longer than a blink (Rich is loaded only then)."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._name, self._estimate, self._pending = "", 0, 0
        self._started_s = 0.0

    def activity(self, activity: Activity, note: str) -> None:
        """Show what goes on beside the bar."""
        if self._progress is not None:
            self._progress.update(self._task, description=f"{activity.value} {note}")

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """Begin a bar, or the next one."""
        self.close()
        self._name, self._estimate = name, max(estimate_bytes, 1)
        self._pending, self._started_s = done_bytes, time.monotonic()

    def moved(self, stream_bytes: int) -> None:
        """Advance it."""
        if self._progress is not None:
            self._progress.advance(self._task, stream_bytes)
            return
        self._pending += stream_bytes
        if time.monotonic() - self._started_s > _BAR_AFTER_S:
            self._open()

    def close(self) -> None:
        """Take it away."""
        if self._progress is not None:
            with suppress(OSError):  # the terminal was closed
                self._progress.stop()
            self._progress = None

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(
            self._name, total=self._estimate, completed=self._pending
        )
        with suppress(OSError):
            self._progress.start()
