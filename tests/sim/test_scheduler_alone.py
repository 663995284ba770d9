"""The scheduler alone, with a thousand mirrors."""

from __future__ import annotations

from tests.sim.alone import AlonePlan, simulate_alone


def test_a_day_without_trouble_misses_no_time_and_no_lag() -> None:
    report = simulate_alone(AlonePlan(1, mirrors=1000, hours=24))
    assert report.slots > 30_000
    assert report.runs > report.slots * 0.9
    assert report.alarms.keys() <= {"lag"}


def test_trouble_with_runs_and_clock_passes_and_all_is_well_again() -> None:
    report = simulate_alone(AlonePlan(2, mirrors=300, hours=24, troubled=True))
    assert report.failed > 500
    assert "failure" in report.alarms


def test_one_seed_is_one_run() -> None:
    digests = [
        simulate_alone(AlonePlan(seed, mirrors=50, hours=12, troubled=True)).digest
        for seed in (5, 5, 6)
    ]
    assert digests[0] == digests[1] != digests[2]
