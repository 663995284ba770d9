"""The clocks. Wall time is shown to people; durations and deadlines use the monotonic one.

A simulation puts its own time in their place (`use`), as `mirrord.system.steps` lets a test see
every effect. In production there is none, and a reading costs one comparison more.
"""

from __future__ import annotations

import time
from typing import Protocol


class Source(Protocol):
    """Where time comes from."""

    def now_ns(self) -> int:
        """Wall time."""

    def monotonic_s(self) -> float:
        """Seconds that never jump."""

    def boottime_s(self) -> float:
        """Likewise, and they go on while the machine sleeps."""

    def sleep_s(self, duration_s: float) -> None:
        """Wait."""


_source: Source | None = None


def use(source: Source | None) -> None:
    """Take time from `source` from now on; None: from the machine."""
    global _source
    _source = source


def now_ns() -> int:
    """Wall time, nanoseconds since 1970, UTC. May jump: never order anything by it."""
    return time.time_ns() if _source is None else _source.now_ns()


def monotonic_s() -> float:
    """Seconds on a clock that never jumps; it stands still while the machine sleeps."""
    return time.monotonic() if _source is None else _source.monotonic_s()


def boottime_s() -> float:
    """Seconds on a clock that never jumps and goes on while the machine sleeps."""
    if _source is not None:
        return _source.boottime_s()
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def sleep_s(duration_s: float) -> None:
    """Wait that long."""
    if _source is None:
        time.sleep(duration_s)
    else:
        _source.sleep_s(duration_s)
