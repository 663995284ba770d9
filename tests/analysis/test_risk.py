"""Lag, loss and the link needed: against closed forms, and against looking at many moments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.analysis import risk
from mirrord.analysis.grids import NS
from mirrord.analysis.numbers import Updates, Workload
from mirrord.analysis.results import Writes
from mirrord.schedules.rates import parse_rates

KIND = "active_map"
MIB = 1 << 20


def updates(blocks: list[int], seconds: float = 60.0) -> Updates:
    """Updates of a fixed interval that transfer so many blocks of 4 KiB each."""
    ends = (np.arange(len(blocks), dtype=np.int64) + 1) * round(seconds * NS)
    sizes = np.array(blocks, dtype=np.int64)
    return Updates("x", seconds, ends - round(seconds * NS), ends, {KIND: sizes})


def workload(per_second: list[int], given: Updates) -> Workload:
    """A trace that writes so many bytes in each second."""
    series = Writes(0, NS, np.array(per_second, dtype=np.int64))
    written = max(int(series.bytes.sum()), 1)
    return Workload(
        "w",
        0,
        len(per_second) * NS,
        None,
        max(written // 4096, 1),
        written,
        1,
        0.0,
        (given,),
        series,
    )


def test_instant_updates_have_a_lag_that_is_even_between_nothing_and_the_interval() -> None:
    given = updates([0] * 10)
    trace = workload([100] * 600, given)
    shown = risk.showing(trace, given, risk.commits(given, KIND, 1e9))
    lag = risk.lag(shown)
    assert lag.mean_s == pytest.approx(30)
    assert lag.median_s == pytest.approx(30)
    assert lag.p95_s == pytest.approx(57)
    assert lag.worst_s == pytest.approx(60)
    loss = risk.Account(trace.writes).loss(shown)
    assert loss.expected == pytest.approx(3000)
    assert loss.worst == pytest.approx(6000)


def test_a_transfer_of_half_an_interval_makes_the_copy_older_by_it() -> None:
    blocks = 30 * 256  # 30 s at 1 MiB/s
    given = updates([blocks] * 10)
    trace = workload([MIB] * 600, given)
    shown = risk.showing(trace, given, risk.commits(given, KIND, MIB))
    # After the first commit the age runs from 30 to 90 s, again and again.
    assert risk.lag(shown).worst_s == pytest.approx(90)
    loss = risk.Account(trace.writes).loss(shown)
    assert loss.worst == pytest.approx(90 * MIB)
    overhead = risk.commits(given, KIND, MIB, overhead_s=5)
    assert risk.lag(risk.showing(trace, given, overhead)).worst_s == pytest.approx(95)


def test_what_arrives_after_the_end_of_the_trace_is_in_lag_and_loss() -> None:
    given = updates([0, 256 * 600])  # 10 min at 1 MiB/s, from the end of a trace of 2 min
    trace = workload([0] * 60 + [10 * MIB] * 60, given)
    shown = risk.showing(trace, given, risk.commits(given, KIND, MIB))
    lag, loss = risk.lag(shown), risk.Account(trace.writes).loss(shown)
    assert lag.worst_s == pytest.approx(660) and lag.at_least
    assert (loss.worst, loss.at_least) == (600 * MIB, True)
    # 600 MiB for 10 min, and half of them for the minute in which they are written.
    assert loss.expected == pytest.approx((600 * 600 + 300 * 60) * MIB / 120)
    before = updates([256 * 30, 0, 0])
    even = workload([MIB] * 30 + [0] * 150, before)
    early = risk.showing(even, before, risk.commits(before, KIND, MIB))
    assert risk.lag(early).at_least is risk.Account(even.writes).loss(early).at_least is False


def test_an_update_takes_its_fixed_time_and_its_transfer_one_after_the_other() -> None:
    given = updates([256 * 50, 256 * 50, 0, 256 * 50])  # 50 s each at 1 MiB/s
    arrived = risk.commits(given, KIND, MIB, overhead_s=15)
    assert (arrived / NS).tolist() == pytest.approx([125, 190, 190, 305])
    by_hour = parse_rates("1MiB/s 08:00-10:00 Mon-Fri, else 1GiB/s")
    epoch_ns = 1_704_099_600 * NS
    same = risk.commits(given, KIND, by_hour, overhead_s=15, epoch_ns=epoch_ns)
    assert (same / NS).tolist() == pytest.approx([125, 190, 190, 305])
    need = risk.link_need(given, KIND, 15)
    assert need.rate == pytest.approx(50 * MIB / 45)
    assert not len(risk.late(given, risk.commits(given, KIND, need.rate, overhead_s=15)))


def test_the_worst_loss_is_a_lower_limit_where_the_mean_is_more() -> None:
    given = updates([256 * 50, 256 * 4000])  # at 1 MiB/s: 50 s, then more than the trace
    trace = workload([MIB] * 50 + [0] * 10 + [MIB] * 40 + [0] * 20, given)
    loss = risk.Account(trace.writes).loss(
        risk.showing(trace, given, risk.commits(given, KIND, MIB))
    )
    assert loss.worst_at_ns == 110 * NS and loss.worst == 90 * MIB < loss.expected
    assert loss.at_least


def test_a_link_sustains_what_it_carries_in_the_time_of_the_trace() -> None:
    given = updates([256 * 90, 256 * 10, 0, 256 * 20])  # 120 s at 1 MiB/s, of 240 s
    assert risk.sustains(given, KIND, MIB / 2) and not risk.sustains(given, KIND, MIB / 2 - 1)
    assert risk.sustains(given, KIND, MIB, overhead_s=40)
    assert not risk.sustains(given, KIND, MIB, overhead_s=41)
    assert not risk.sustains(given, KIND, 1e15, overhead_s=80)
    by_hour = parse_rates("8KiB/s 08:00-10:00 Mon-Fri, else 1GiB/s")
    assert not risk.sustains(given, KIND, by_hour, epoch_ns=1_704_099_600 * NS)
    assert risk.sustains(given, KIND, by_hour, epoch_ns=(1_704_099_600 + 3500) * NS)


def test_updates_that_do_not_end_in_time_queue_and_are_named() -> None:
    given = updates([256 * 90, 256 * 90, 0, 0])  # 90 s each at 1 MiB/s
    arrived = risk.commits(given, KIND, MIB)
    assert (arrived / NS).tolist() == pytest.approx([150, 240, 240, 240])
    assert risk.late(given, arrived).tolist() == [0, 1]
    assert risk.late(given, risk.commits(given, KIND, 2 * MIB)).tolist() == []


def test_the_link_needed_is_that_of_the_update_with_least_time() -> None:
    given = updates([60, 240, 120])
    need = risk.link_need(given, KIND)
    assert need.rate == 240 * 4096 / 60
    assert need.at_ns == 120 * NS
    assert risk.late(given, risk.commits(given, KIND, need.rate)).tolist() == []
    assert risk.late(given, risk.commits(given, KIND, need.rate * 0.99)).tolist() == [1]


def test_a_calendar_of_rates_carries_by_its_hours() -> None:
    # Monday 2024-01-01 09:00 UTC is the trace's zero: the slow hours last until 10:00.
    epoch_ns = 1_704_099_600 * NS
    given = updates([256 * 3600 * 2], seconds=1800)  # 2 h at 1 MiB/s, from 09:30 on
    rates = parse_rates("1MiB/s 08:00-10:00 Mon-Fri, else 3MiB/s")
    [arrived] = risk.commits(given, KIND, rates, epoch_ns=epoch_ns)
    # Half an hour at 1 MiB/s, the other 5400 MiB at 3 MiB/s.
    assert arrived / NS == pytest.approx(3600 + 1800, abs=0.001)


@settings(max_examples=80, deadline=None)
@given(
    blocks=st.lists(st.integers(0, 20_000), min_size=1, max_size=12),
    per_second=st.lists(st.integers(0, 5_000), min_size=30, max_size=130),
    rate=st.integers(10_000, 3_000_000),
    seconds=st.sampled_from([7.0, 10.0, 33.0]),
)
def test_lag_and_loss_equal_those_observed_at_many_moments(
    blocks: list[int], per_second: list[int], rate: int, seconds: float
) -> None:
    given = updates(blocks, seconds)
    trace = workload(per_second, given)
    arrived = risk.commits(given, KIND, rate)
    free_ns, slow = 0.0, []
    for size, end_ns in zip(given.sizes(KIND), given.end_ns, strict=True):
        free_ns = max(free_ns, end_ns) + size / rate * NS
        slow.append(free_ns)
    assert np.allclose(arrived, slow, rtol=1e-9, atol=1000)

    shown = risk.showing(trace, given, arrived)
    account = risk.Account(trace.writes)
    lag, loss = risk.lag(shown), account.loss(shown)
    # Also after the end of the trace, until all has arrived.
    assert shown.end_ns == max(trace.last_ns, arrived[-1])
    moments = np.linspace(0, shown.end_ns, 20_001)[1:-1]
    snapshots = [
        max([0, *(e for e, a in zip(given.end_ns, arrived, strict=True) if a <= at)])
        for at in moments
    ]
    ages = (moments - snapshots) / NS
    total = np.append(0, np.cumsum(per_second))
    seconds_at = np.arange(len(total)) * NS
    lost = np.interp(moments, seconds_at, total) - np.interp(snapshots, seconds_at, total)
    trace_s, span_s = len(per_second), shown.end_ns / NS
    assert lag.mean_s == pytest.approx(ages.mean(), abs=span_s / 1000)
    assert lag.median_s == pytest.approx(np.median(ages), abs=span_s / 500)
    assert lag.p95_s == pytest.approx(np.quantile(ages, 0.95), abs=span_s / 500)
    assert lag.worst_s == pytest.approx(ages.max(), abs=span_s / 1000)
    step = max(per_second) * span_s / 10_000 + 1
    # All the time at which data are at risk, per second of the trace.
    exposed = lost.mean() * span_s / trace_s
    assert loss.expected == pytest.approx(
        exposed, abs=(step + lost.max() / 1000) * span_s / trace_s
    )
    # What was written in a second may all have come at its beginning, or at its end.
    worst = 0
    for at in [*arrived, shown.end_ns]:
        kept = max([0, *(e for e, a in zip(given.end_ns, arrived, strict=True) if a < at)])
        until = min(-(-int(at) // NS), trace_s)
        worst = max(worst, total[until] - total[min(int(kept) // NS, trace_s)])
    assert lost.max() - 1 <= loss.worst == worst
    _, course = account.course(shown, 50)
    assert course.max() == pytest.approx(loss.worst, abs=1)


def test_a_synchronous_link_carries_the_peak_of_the_window() -> None:
    writes = Writes(0, NS, np.array([0, 10, 30, 0, 0, 20], dtype=np.int64))
    assert risk.peak_rate(writes, 1) == 30
    assert risk.peak_rate(writes, 2) == 20
    assert risk.peak_rate(writes, 60) == 1  # the trace is shorter than the window


def test_snapshots_hold_what_later_updates_wrote_again() -> None:
    given = updates([1, 5, 2, 4])
    assert risk.snapshot_space(given, KIND, 1) == 5 * 4096
    assert risk.snapshot_space(given, KIND, 2) == 7 * 4096
    assert risk.snapshot_space(given, KIND, 10) == 12 * 4096
