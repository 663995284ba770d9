"""The clocks. Wall time is shown to people; durations and deadlines use the monotonic one."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Wall time, nanoseconds since 1970, UTC. May jump: never order anything by it."""
    return time.time_ns()


def monotonic_s() -> float:
    """Seconds on a clock that never jumps."""
    return time.monotonic()
