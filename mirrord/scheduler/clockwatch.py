"""Detects jumps of the wall clock by the monotonic clock, and knows what it showed when."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from mirrord.core.units import format_duration

#: Less than this is slewing, and the time between a step and the look that finds it.
_STEP_S = 0.5
_LATE_S = 2.0
#: So many steps are remembered.
_STEPS_KEPT = 64


class Jump(NamedTuple):
    """The wall clock went more (or less) than really passed.

    text: for people. over: an earlier jump was taken back: the clock is right again.
    """

    text: str
    over: bool


class ClockWatch:
    """Is shown both clocks from time to time. tolerance_s: slewing and small steps are no jump."""

    def __init__(self, wall_ns: int, boot_s: float, *, tolerance_s: float) -> None:
        self.tolerance_s = tolerance_s
        self._offset_s = wall_ns / 1e9 - boot_s
        self._apart_s: float | None = None
        #: How far the clock is from where it was before it jumped.
        self.away_s = 0.0

    def look(self, wall_ns: int, boot_s: float) -> float:
        """Seconds that the wall clock went too far (or back) since the last look."""
        offset_s = wall_ns / 1e9 - boot_s
        by_s, self._offset_s = offset_s - self._offset_s, offset_s
        return by_s

    def slept(self, boot_s: float, monotonic_s: float) -> float:
        """Seconds that the machine was suspended since the last look at these two."""
        apart_s = boot_s - monotonic_s
        if self._apart_s is None:
            self._apart_s = apart_s
        slept_s, self._apart_s = apart_s - self._apart_s, apart_s
        return slept_s

    def judge(self, by_s: float) -> Jump | None:
        """What `look` returned, as a jump, when it is one."""
        if abs(by_s) < self.tolerance_s:
            return None
        self.away_s += by_s
        direction = "forward" if by_s > 0 else "back"
        over = abs(self.away_s) < self.tolerance_s
        if over:
            self.away_s = 0.0
        return Jump(f"it moved {direction} by {format_duration(abs(by_s))} in one step", over)


class WallTimes:
    """Tells when the wall clock showed a time, by the clock that never jumps.

    Between a snapshot and the end of its run the wall clock may be stepped: the snapshot's age is
    then not the difference of two of its times. Has to be shown both clocks where work begins and
    ends.
    """

    def __init__(self, wall_ns: int, boot_s: float) -> None:
        #: (since when, how far the wall clock is ahead), oldest first.
        self._spans = [(-math.inf, wall_ns / 1e9 - boot_s)]
        self._now_s = boot_s

    def look(self, wall_ns: int, boot_s: float) -> None:
        """Both clocks as they are now."""
        ahead_s = wall_ns / 1e9 - boot_s
        begin_s, before_s = self._spans[-1]
        self._now_s = boot_s
        if abs(ahead_s - before_s) > _STEP_S:
            (_, oldest_s), *others = self._spans[-_STEPS_KEPT:]
            self._spans = [(-math.inf, oldest_s), *others, (boot_s, ahead_s)]
        else:
            self._spans[-1] = (begin_s, ahead_s)

    def boot_s(self, wall_ns: int, *, since_s: float = -math.inf) -> float:
        """When it showed `wall_ns`: of several times the first after `since_s`, else the first; now
        when it has never shown it.

        The first, since a lag that is too great is a smaller evil than one that is too small.
        """
        found, wall_s = [], wall_ns / 1e9
        end = (self._now_s + _LATE_S, 0.0)  # what it will show later it has not shown
        for (begin_s, ahead_s), (end_s, _) in pairwise([*self._spans, end]):
            at_s = wall_s - ahead_s
            if begin_s - _LATE_S <= at_s <= end_s:
                found.append(min(at_s, self._now_s))
        if not found:  # a step forward passed it
            found = [begin_s for begin_s, ahead_s in self._spans if wall_s - ahead_s < begin_s]
        after = [at_s for at_s in found if at_s >= since_s - _STEP_S]
        return min(after or found or [self._now_s])
