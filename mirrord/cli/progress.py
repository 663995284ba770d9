"""A progress line at the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Self

from mirrord.core.text import harmless
from mirrord.core.units import format_size

_EVERY_S = 0.2


class ProgressLine:
    """Shows nothing when there is no terminal, and nothing of what is quickly done.

    quiet: what is printed is for a program. Used in a `with`: the line is gone afterwards.
    """

    def __init__(self, *, quiet: bool = False, at_once: bool = False) -> None:
        self._quiet = quiet or not sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._said_s = self._began_s - _EVERY_S if at_once else self._began_s
        self._shown = False

    def say(self, text: Callable[[], str]) -> None:
        """Show what `text` makes, when it is time to."""
        now_s = time.monotonic()
        if self._quiet or now_s - self._said_s < _EVERY_S:
            return
        self._said_s, self._shown = now_s, True
        line = harmless(text())[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def close(self, *, keep: bool = False) -> None:
        """Clear the line, or leave it where it is."""
        if self._shown:
            print("" if keep else "\r\x1b[K", end="\n" if keep else "", file=sys.stderr, flush=True)
            self._shown = False

    def __enter__(self) -> Self:
        """The line itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Clear it."""
        self.close()

    # What is counted

    def reading(self, source: str, done: int, size: int | None, records: int) -> None:
        """Of a trace: bytes read of bytes in all, and records."""

        def text() -> str:
            share = f"{100 * done / size:.0f} % of {format_size(size)}" if size else ""
            rate = records / max(time.monotonic() - self._began_s, 0.001)
            return (
                f"{source}: {share or format_size(done)}, {records:,} records, "
                f"{rate / 1e6:.1f} million/s"
            )

        self.say(text)

    def replaying(self, name: str, done: int, total: int) -> None:
        """Of a replay: so many records of so many."""
        share = f" ({100 * done // total} %)" if total else ""
        self.say(lambda: f"{name}: replayed {done:,} of {total:,} records{share}")

    def verifying(self, blocks: int) -> None:
        """Of a check: so many blocks of 4 KiB."""
        self.say(lambda: f"{format_size(blocks * 4096)} verified")
