"""Lag targets against simulated workloads and links."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.schedules.lag import LagPlan, Run, plan_lag


def simulate(
    target_s: float, count: int, changed: Callable[[float], float], lasts: Callable[[float], float]
) -> tuple[list[Run], list[LagPlan], list[float]]:
    """Runs, plans and the greatest lag of each run."""
    runs: list[Run] = []
    plans: list[LagPlan] = []
    lags: list[float] = []
    busy_s = 0.0  # from the base's snapshot to the end of the run that brought it
    for _ in range(count):
        plan = plan_lag(target_s, runs)
        elapsed_s = max(plan.wait_s, busy_s)
        size = changed(elapsed_s)
        duration_s = lasts(size)
        runs.append(Run(elapsed_s, duration_s, round(size)))
        plans.append(plan)
        lags.append(elapsed_s + duration_s)
        busy_s = duration_s
    return runs, plans, lags


@given(
    st.sampled_from([10.0, 60.0, 300.0, 3600.0]),
    st.floats(0.001, 0.35),
    st.floats(0.0, 0.8),
    st.floats(1e3, 1e8),
)
@settings(deadline=None)
def test_a_steady_load_is_held_with_few_runs(
    target_s: float, overhead_part: float, growth: float, change: float
) -> None:
    overhead_s = overhead_part * target_s
    best_s = 2 * overhead_s / (1 - growth)
    throughput = change / growth if growth else math.inf
    runs, plans, lags = simulate(
        target_s,
        60,
        lambda elapsed_s: change * elapsed_s,
        lambda size: overhead_s + size / throughput,
    )
    if best_s > 0.85 * target_s:
        return
    assert max(lags) <= target_s
    assert plans[-1].feasible and plans[-1].best_s <= target_s
    # The best possible: each lag is the target itself.
    longest_s = max((target_s - overhead_s) / (1 + growth), overhead_s)
    needed = sum(run.elapsed_s for run in runs) / longest_s
    assert len(runs) <= 1.4 * needed + 3


@given(st.integers(0, 10**6))
@settings(deadline=None)
def test_a_noisy_load_is_held_nearly_always(seed: int) -> None:
    noise = random.Random(seed)
    _, _, lags = simulate(
        300,
        200,
        lambda elapsed_s: 1e6 * elapsed_s * noise.uniform(0.7, 1.2),
        lambda size: (5 + size / 5e6) * noise.uniform(0.8, 1.15),
    )
    assert sum(lag > 300 for lag in lags) <= 4
    assert max(lags) < 330


@pytest.mark.parametrize("overhead_s", [40.0, 100.0])
def test_a_target_out_of_reach_says_what_the_link_can_do(overhead_s: float) -> None:
    runs, plans, _ = simulate(
        60, 30, lambda elapsed_s: 3e7 * elapsed_s, lambda size: overhead_s + size / 3e8
    )
    last = plans[-1]
    assert not last.feasible and last.wait_s == 1.0
    assert last.best_s == pytest.approx(2 * overhead_s / 0.9, rel=0.15)
    assert "the last 20 runs took" in last.why and "smallest lag" in last.why
    assert runs[-1].elapsed_s == pytest.approx(runs[-2].duration_s)


def test_changes_that_outrun_the_link() -> None:
    plan = plan_lag(60, [Run(10, 25, 10**9), Run(25, 60, 25 * 10**8), Run(60, 140, 6 * 10**9)])
    assert not plan.feasible and math.isinf(plan.best_s) and "outrun" not in plan.why
    assert "data changes faster than this link" in plan.why


def test_without_history_the_first_run_comes_early() -> None:
    plan = plan_lag(300, [])
    assert plan.wait_s == 75 and plan.feasible and "no history yet" in plan.why
    assert plan_lag(2, []).wait_s == 1


def test_one_odd_run_does_not_upset_the_plan() -> None:
    usual = [Run(200 + n % 7 * 10, 10 + n % 7, (200 + n % 7 * 10) * 10**6) for n in range(19)]
    odd = Run(210, 130, 210 * 10**6)
    before = plan_lag(300, usual)
    after = plan_lag(300, [*usual[:10], odd, *usual[10:]])
    assert after.feasible and after.wait_s > 0.9 * before.wait_s


@given(
    st.floats(1, 1e6),
    st.lists(
        st.builds(Run, st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 1 << 50)), max_size=30
    ),
)
@settings(deadline=None)
def test_any_history_makes_a_plan(target_s: float, runs: list[Run]) -> None:
    plan = plan_lag(target_s, runs)
    assert 1 <= plan.wait_s <= max(target_s, 1)
    assert plan.best_s >= 0 and plan.why
    assert plan.feasible == (plan.best_s <= target_s)
