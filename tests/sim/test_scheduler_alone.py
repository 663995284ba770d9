"""The scheduler alone, with a thousand mirrors."""

from __future__ import annotations

import pytest

from mirrord.scheduler.scheduler import Scheduler
from tests.sim.alone import AlonePlan, simulate_alone
from tests.sim.checks import Violation

#: Few may run at once, so that a window may close before a turn comes.
_CROWDED = AlonePlan(4, mirrors=150, hours=24, troubled=True, caps=(4, 64, 4), mean_s=20)


def test_a_day_without_trouble_misses_no_time_and_no_lag() -> None:
    report = simulate_alone(AlonePlan(1, mirrors=1000, hours=24))
    assert report.slots > 30_000
    assert report.runs > report.slots * 0.9
    assert report.alarms.keys() <= {"lag"}


def test_trouble_with_runs_and_clock_passes_and_all_is_well_again() -> None:
    report = simulate_alone(AlonePlan(2, mirrors=300, hours=24, troubled=True))
    assert report.failed > 500
    assert "failure" in report.alarms


def test_runs_that_wait_for_minutes_begin_in_their_windows() -> None:
    assert simulate_alone(_CROWDED).longest_wait_s > 300


def test_a_scheduler_that_looks_at_windows_before_the_turn_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Scheduler, "_is_held_back", lambda *_arguments: False)
    with pytest.raises(Violation, match="begins outside of its windows"):
        simulate_alone(_CROWDED)


def test_one_seed_is_one_run() -> None:
    digests = [
        simulate_alone(AlonePlan(seed, mirrors=50, hours=12, troubled=True)).digest
        for seed in (5, 5, 6)
    ]
    assert digests[0] == digests[1] != digests[2]
