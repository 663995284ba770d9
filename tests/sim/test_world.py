"""The simulated threads and their clock."""

from __future__ import annotations

import threading

import pytest

from mirrord.system import clock
from tests.sim.world import START_NS, Event, Sim


def test_jobs_take_turns_in_simulated_time() -> None:
    said: list[tuple[float, str]] = []

    def job(name: str, pause_s: float) -> None:
        for _ in range(3):
            clock.sleep_s(pause_s)
            said.append((clock.monotonic_s(), name))

    with Sim() as sim:
        sim.spawn(lambda: job("slow", 10))
        sim.spawn(lambda: job("quick", 4))
        sim.at(9, lambda: said.append((sim.now_s, "bell")))
        sim.run(25)
        assert sim.now_s == 25
        sim.run(100)
    assert said == [
        (4, "quick"),
        (8, "quick"),
        (9, "bell"),
        (10, "slow"),
        (12, "quick"),
        (20, "slow"),
        (30, "slow"),
    ]


def test_thousands_of_jobs_use_few_threads_that_end_with_the_simulation() -> None:
    before, done = threading.active_count(), [0]

    def job() -> None:
        clock.sleep_s(0.5)
        done[0] += 1

    with Sim() as sim:
        for number in range(3000):
            sim.at(number * 0.1, lambda: sim.spawn(job))
        sim.spawn(lambda: clock.sleep_s(10**9))
        sim.run(1000)
        assert threading.active_count() - before < 10
    assert done == [3000]
    assert threading.active_count() == before


def test_the_wall_clock_jumps_and_the_others_do_not() -> None:
    with Sim() as sim:
        sim.at(10, lambda: sim.jump(-3600))
        sim.run(20)
        assert clock.now_ns() == START_NS + (20 - 3600) * 10**9
        assert clock.monotonic_s() == clock.boottime_s() == 20
        assert sim.earliest_s(clock.now_ns()) == 0, "it was later than that before"
        assert sim.earliest_s(START_NS + 7 * 10**9) == 7
        sim.jump(7200)
        assert sim.earliest_s(START_NS + 1800 * 10**9) == 20, "the jump passed it"


def test_events_wake_who_waits_or_time_runs_out() -> None:
    seen: list[tuple[float, bool]] = []
    with Sim() as sim:
        event = Event(sim)

        def wait(timeout_s: float | None) -> None:
            came = event.wait(timeout_s)
            seen.append((sim.now_s, came))

        sim.spawn(lambda: wait(None))
        sim.spawn(lambda: wait(3))
        sim.spawn(lambda: wait(30))
        sim.at(7, event.set)
        sim.run(100)
    assert seen == [(3, False), (7, True), (7, True)]


def test_what_a_job_raises_ends_the_run() -> None:
    def job() -> None:
        clock.sleep_s(1)
        raise ValueError("in a job")

    with Sim() as sim:
        sim.spawn(job)
        with pytest.raises(ValueError, match="in a job"):
            sim.run(10)
