"""The policy `pull-ahead`, to compare others with: DRBD's `on-congestion pull-ahead`.

It leaves synchronous mode when a number of bytes is in flight, and tracks changes; it returns one
second after all that was in flight has arrived, and copies what was tracked meanwhile. (DRBD
requires its protocol A for that, in which clients never wait for the replica.)
"""

from __future__ import annotations

from mirrord.core.live import Mode
from mirrord.policies.policy import Directive, Observation

_TIMER_S = 1.0


class PullAhead:
    """The policy. fill_bytes: in flight, at which it leaves synchronous mode. It remembers when
    nothing was in flight any more.
    """

    def __init__(self, fill_bytes: int) -> None:
        self._fill_bytes = fill_bytes

    def begin(self) -> None:
        """See `Policy.begin`."""

    def decide(
        self, observation: Observation, memory: float | None
    ) -> tuple[Directive, float | None]:
        """See `Policy.decide`."""
        if observation.mode is not Mode.ASYNC:
            full = observation.peak_buffered_bytes >= self._fill_bytes
            return Directive(Mode.ASYNC, copy=False) if full else Directive(Mode.SYNC), None
        if memory is None:
            memory = None if observation.buffered_bytes else observation.now_s
        if memory is not None and observation.now_s >= memory + _TIMER_S:
            return Directive(Mode.SYNC), None
        wake_at_s = None if memory is None else memory + _TIMER_S
        return Directive(Mode.ASYNC, wake_at_s, copy=False), memory
