"""Lag targets: how long to wait so that the copy is never older than asked for.

The lag is greatest just before a run commits: the copy then still has the state of the base, and
its age is `elapsed` (base to the start of the run) plus the run's duration. The duration is
modelled as a fixed overhead plus the changes during `elapsed` divided by the link's throughput.
That is conservative: blocks are overwritten, so changes do not grow linearly with time.

The last runs give the changes per second (an upper quantile), and overhead and seconds per byte (a
line through the medians of all slopes, which a few outliers do not affect). When all runs sent
about the same amount, overhead and throughput cannot be separated: then the duration is attributed
to each alone, and the longer estimate is used. A wait planned like this is slightly too short,
never too long, and the next run adds information.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from mirrord.core.units import format_duration, format_size
from mirrord.schedules.schedule import Next, Schedule

#: The part of the target to plan for; the rest is a margin for runs that take longer.
_USE = 0.9
#: Without history: the part of the target after which the first run starts.
_FIRST = 0.25
_WAIT_MIN_S = 1.0
_RUNS_MAX = 20
#: A run that starts sooner after its base is not used to estimate the change rate.
_ELAPSED_MIN_S = 0.001
#: The weight factor of each older run, and the weighted quantile that is planned for.
_FADE = 0.9
_QUANTILE = 0.85
#: Sizes that differ by less are not used to estimate throughput.
_SPREAD = 0.2


class Run(NamedTuple):
    """A run that was committed.

    elapsed_s: from the base's snapshot to the start. duration_s: from the start to the commit.
    """

    elapsed_s: float
    duration_s: float
    stream_bytes: int


class LagPlan(NamedTuple):
    """When to run next so that the target is met.

    wait_s: how long after the base's snapshot the run must start.
    best_s: the smallest lag, running back to back; infinite when changes exceed the throughput.
    feasible: whether best_s is within the target.
    """

    wait_s: float
    best_s: float
    feasible: bool
    why: str


class _Line(NamedTuple):
    """A duration model: a fixed overhead, and `growth` seconds per second elapsed."""

    overhead_s: float
    growth: float

    def duration_s(self, elapsed_s: float) -> float:
        return self.overhead_s + self.growth * elapsed_s

    def longest_s(self, budget_s: float) -> float:
        """The longest elapsed time whose lag is within the budget."""
        return (budget_s - self.overhead_s) / (1 + self.growth)


def plan_lag(target_s: float, runs: Sequence[Run]) -> LagPlan:
    """When the next run must start. runs: oldest first; the last 20 count."""
    used = [run for run in runs if run.elapsed_s >= _ELAPSED_MIN_S and run.duration_s >= 0][
        -_RUNS_MAX:
    ]
    if not used:
        wait_s = max(target_s * _FIRST, _WAIT_MIN_S)
        why = f"no history yet: the first run starts after {format_duration(wait_s)}"
        return LagPlan(wait_s, 0.0, True, why)
    lines, best_s = _fit(used)
    feasible = best_s <= target_s
    wait_s = min(line.longest_s(_USE * target_s) for line in lines)
    # Not before the previous run ends: that is back to back.
    if not feasible or wait_s < _WAIT_MIN_S:
        wait_s = _WAIT_MIN_S
    elapsed_s = wait_s if feasible else max(wait_s, min(best_s / 2, used[-1].duration_s))
    expected_s = max(line.duration_s(elapsed_s) for line in lines)
    if feasible:
        why = (
            f"a run {format_duration(wait_s)} after the last snapshot takes about "
            f"{format_duration(expected_s)}, as {_describe(used)}"
        )
    elif math.isinf(best_s):
        why = f"{_describe(used)}; data changes faster than this link can transfer it"
    else:
        why = (
            f"{_describe(used)}; the smallest lag that this link can sustain is about "
            f"{format_duration(best_s)}"
        )
    return LagPlan(wait_s, best_s, feasible, why)


def next_runs(plan: LagPlan, schedule: Schedule, first_ns: int) -> Iterator[Next]:
    """The runs that a plan leads to, in the windows of the schedule. first_ns: when the first one
    is due.
    """
    at_ns, why = first_ns, plan.why
    while True:
        at_ns = schedule.next_allowed(at_ns)
        yield Next(at_ns, why)
        at_ns += round(plan.wait_s * 1e9)
        why = "if the previous run takes the expected time"


def _fit(runs: Sequence[Run]) -> tuple[list[_Line], float]:
    """The duration models (the longest applies), and the smallest lag back to back."""
    weights = [_FADE**age for age in range(len(runs) - 1, -1, -1)]
    sizes = [run.stream_bytes for run in runs]
    if max(sizes) - min(sizes) <= _SPREAD * max(sizes):
        duration_s = _quantile([run.duration_s for run in runs], weights, _QUANTILE)
        growth = duration_s / max(run.elapsed_s for run in runs)
        return [_Line(duration_s, 0.0), _Line(0.0, growth)], 2 * duration_s
    slopes, slope_weights = [], []
    for (one, weight), (other, other_weight) in combinations(zip(runs, weights, strict=True), 2):
        apart = abs(other.stream_bytes - one.stream_bytes)
        if apart:
            rise = other.duration_s - one.duration_s
            slopes.append(rise / (other.stream_bytes - one.stream_bytes))
            # Sizes that are further apart give a better slope.
            slope_weights.append(weight * other_weight * apart)
    s_per_byte = max(_quantile(slopes, slope_weights, 0.5), 0.0)
    rests = [run.duration_s - s_per_byte * run.stream_bytes for run in runs]
    overhead_s = max(_quantile(rests, weights, _QUANTILE), 0.0)
    # Runs in quick succession send mostly metadata, so they get less weight for the changes.
    usual_s = sorted(run.elapsed_s for run in runs)[len(runs) // 2]
    weights = [w * min(run.elapsed_s, usual_s) for w, run in zip(weights, runs, strict=True)]
    change = _quantile([run.stream_bytes / run.elapsed_s for run in runs], weights, _QUANTILE)
    line = _Line(overhead_s, s_per_byte * change)
    # Back to back, elapsed is the duration of the previous run: a fixed point.
    best_s = 2 * overhead_s / (1 - line.growth) if line.growth < 1 else math.inf
    return [line], best_s


def _quantile(values: Sequence[float], weights: Sequence[float], part: float) -> float:
    """The weighted quantile: the smallest value at which `part` of the weight is reached."""
    ordered = sorted(zip(values, weights, strict=True))
    left = part * sum(weights)
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]


def _describe(runs: Sequence[Run]) -> str:
    """The median duration and size of the last runs, as text."""
    durations = sorted(run.duration_s for run in runs)
    sizes = sorted(run.stream_bytes for run in runs)
    middle = len(runs) // 2
    number = "the last run" if len(runs) == 1 else f"the last {len(runs)} runs"
    took = f"took {format_duration(durations[middle])} for {format_size(sizes[middle])}"
    return f"{number} {took}"
