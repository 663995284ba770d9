"""Lag targets in a replay: the daemon's own planner, given what each update would transfer."""

from __future__ import annotations

from mirrord.analysis.grids import NS, UPDATES_MAX, LagTarget
from mirrord.core.errors import UsageError
from mirrord.schedules.lag import Run, plan_lag

#: Number of recent runs that the planner uses.
_RUNS = 20


class LagRunner:
    """Plans when the updates of a lag target start, during a replay.

    The first base is taken at the first record. An update without writes takes no time, and the
    planner does not learn from it, as in the daemon.
    """

    def __init__(self, target: LagTarget, first_ns: int) -> None:
        self._target = target
        self._runs: list[Run] = []
        self._base_ns = first_ns
        self.instants: list[int] = []
        self.next_ns = self._plan(first_ns)

    def update(self, transferred_bytes: int) -> None:
        """Record the transfer of the update at `next_ns` and plan the following one."""
        at_ns = self.next_ns
        self.instants.append(at_ns)
        if len(self.instants) > UPDATES_MAX:
            raise UsageError(
                f"the lag target leads to more than {UPDATES_MAX:,} updates",
                hint="Give a longer lag, or a part of the trace ('mirrord trace slice').",
            )
        duration_s = 0.0
        if transferred_bytes:
            duration_s = self._target.overhead_s + transferred_bytes / self._target.rate
            run = Run((at_ns - self._base_ns) / NS, duration_s, transferred_bytes)
            self._runs = [*self._runs[1 - _RUNS :], run]
        self._base_ns = at_ns
        self.next_ns = self._plan(at_ns + round(duration_s * NS))

    def _plan(self, earliest_ns: int) -> int:
        """When the next update starts: not before the end of the previous one."""
        plan = plan_lag(self._target.target_s, self._runs)
        at_ns = max(self._base_ns + round(plan.wait_s * NS), earliest_ns)
        if self._target.schedule is not None:
            epoch_ns = self._target.epoch_ns
            at_ns = self._target.schedule.next_allowed(at_ns + epoch_ns) - epoch_ns
        return at_ns
