"""The policies that are always in one mode."""

from __future__ import annotations

from mirrord.core.live import Mode
from mirrord.policies.policy import Directive, Observation


class Fixed:
    """Always the same mode. lag_bytes: of semi-synchronous mode, how many bytes may be missing at
    the replica before clients wait.
    """

    def __init__(self, mode: Mode, lag_bytes: int | None = None) -> None:
        self._directive = Directive(mode, lag_bytes=lag_bytes, max_lag_bytes=lag_bytes)

    def begin(self) -> None:
        """It remembers nothing."""

    def decide(self, _observation: Observation, _memory: None) -> tuple[Directive, None]:
        """See `Policy.decide`."""
        return self._directive, None
