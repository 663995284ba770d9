"""Notices when the wall clock jumps: it is compared with one that cannot."""

from __future__ import annotations

from typing import NamedTuple

from mirrord.core.units import format_duration


class Jump(NamedTuple):
    """The wall clock went by this many seconds more (or less) than really passed.

    text: for people. over: an earlier jump was taken back: the clock is right again.
    """

    by_s: float
    text: str
    over: bool


class ClockWatch:
    """Is shown both clocks from time to time. tolerance_s: slewing and small steps are no jump."""

    def __init__(self, wall_ns: int, boot_s: float, *, tolerance_s: float) -> None:
        self.tolerance_s = tolerance_s
        self._offset_s = wall_ns / 1e9 - boot_s
        #: How far the clock is from where it was before it jumped.
        self.away_s = 0.0

    def look(self, wall_ns: int, boot_s: float) -> float:
        """Seconds that the wall clock went too far (or back) since the last look."""
        offset_s = wall_ns / 1e9 - boot_s
        by_s, self._offset_s = offset_s - self._offset_s, offset_s
        return by_s

    def judge(self, by_s: float) -> Jump | None:
        """What `look` returned, as a jump, when it is one."""
        if abs(by_s) < self.tolerance_s:
            return None
        self.away_s += by_s
        direction = "forward" if by_s > 0 else "back"
        over = abs(self.away_s) < self.tolerance_s
        if over:
            self.away_s = 0.0
        return Jump(by_s, f"it went {direction} by {format_duration(abs(by_s))} at once", over)
