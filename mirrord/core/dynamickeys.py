"""The keys of the policy `dynamic`. Few commands load them."""

from __future__ import annotations

from dataclasses import dataclass

from mirrord.core.errors import UsageError
from mirrord.core.units import format_duration

_WINDOW_S = (2.0, 5.0)


@dataclass(frozen=True)
class DynamicKeys:
    """The keys of the policy `dynamic`. max_lat_s: the latency that clients accept. max_rpo_bytes:
    the lag that may be lost, None: any. window_s: over which latencies are averaged. lower: M gets
    smaller while waits are below this share of max_lat_s; returning: the same when the hold-down is
    over, and what the replica's answers may take for the return. merge_bytes: from this M on,
    repeated writes are merged. sync_bytes: the return needs a smaller M. hold_down_s: time out of
    sync. buffer_bytes: with more than that on the way, changes are only tracked.
    """

    max_lat_s: float
    max_rpo_bytes: int | None = None
    window_s: float = 3.0
    lower: float = 0.25
    returning: float = 0.7
    merge_bytes: int = 10_000_000
    sync_bytes: int = 500_000
    hold_down_s: float = 300.0
    buffer_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.max_lat_s <= 0:
            raise UsageError("a maximum latency of 0 is out of range", hint="Give for example 4ms.")
        if not _WINDOW_S[0] <= self.window_s <= _WINDOW_S[1]:
            raise UsageError(
                f"a window of {format_duration(self.window_s)} is out of range",
                hint="Give 2 to 5 seconds.",
            )
        if not 0 < self.lower <= self.returning <= 1:
            raise UsageError(
                f"the shares {self.lower:g} and {self.returning:g} of the maximum latency are "
                "out of range",
                hint="Give shares of at most 1, the larger one for the return.",
            )
