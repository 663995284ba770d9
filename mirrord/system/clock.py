"""The clocks. Wall time is shown to people; durations and deadlines use the monotonic one.

A simulation replaces the real time by its own (`use`), as a test observes the steps with
`mirrord.system.steps.observe`. In production there is no such source, and a call costs one
comparison more than the clock itself.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Source(Protocol):
    """Where time comes from; the methods are the functions of this module."""

    def now_ns(self) -> int:
        """Wall time, nanoseconds since 1970, UTC."""

    def monotonic_s(self) -> float:
        """Seconds that never jump."""

    def boottime_s(self) -> float:
        """Seconds that never jump and go on while the machine is suspended."""

    def sleep_s(self, seconds: float) -> None:
        """Return after that time."""


_source: Source | None = None


def now_ns() -> int:
    """Wall time, nanoseconds since 1970, UTC. May jump: never order anything by it."""
    return time.time_ns() if _source is None else _source.now_ns()


def monotonic_s() -> float:
    """Seconds on a clock that never jumps."""
    return time.monotonic() if _source is None else _source.monotonic_s()


def boottime_s() -> float:
    """Seconds on a clock that never jumps and goes on while the machine is suspended."""
    if _source is None:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return _source.boottime_s()


def boot_id() -> str:
    """What tells this boot of the host from every other one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def sleep_s(seconds: float) -> None:
    """Wait."""
    if _source is None:
        time.sleep(seconds)
    else:
        _source.sleep_s(seconds)


def use(source: Source | None) -> None:
    """Take all time from `source` from now on; None: from the real clocks."""
    global _source
    _source = source


def format_moment(at_ns: int) -> str:
    """`2026-11-22 05:24:48`, local time. at_ns: wall time."""
    from datetime import UTC, datetime  # only for those who show it

    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
