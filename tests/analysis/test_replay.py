"""The replay agrees with one that is slow and plain, whatever the trace and the intervals."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.analysis.grids import NS, Grid, fixed, lag_target, scheduled
from mirrord.analysis.replay import Parts, combine, count, replay
from mirrord.analysis.results import GridResult
from mirrord.core.errors import Damaged, UsageError
from mirrord.schedules.lag import Run, plan_lag
from mirrord.schedules.schedule import parse_schedule
from mirrord.traces.model import Batch, Facts, Op
from tests.analysis.brute import Counted, Record, batch_of, blocks_of, replay_slowly
from tests.analysis.percents import percent, totals
from tests.support.replays import WHOLE

FACTS = Facts("generated", "none", ("a", "b", "c"))
#: The columns of an update, as the slow replay names them.
COLUMNS = Counted._fields


def updates_of(result: GridResult) -> list[Counted]:
    return [
        Counted(*map(int, row))
        for row in zip(*(getattr(result, name) for name in COLUMNS), strict=True)
    ]


@st.composite
def traces(draw: st.DrawFn) -> list[Record]:
    """Small traces in which blocks meet again: few blocks, odd offsets, gaps, trims, reads."""
    blocks = draw(st.sampled_from([3, 12, 40]))
    gap_ns = draw(st.sampled_from([1, NS // 3, 40 * NS]))
    volumes = draw(st.sampled_from([1, 3]))
    ops = draw(st.sampled_from([[Op.WRITE], [Op.WRITE, Op.WRITE, Op.TRIM], list(Op)]))
    record = st.tuples(
        st.integers(0, gap_ns),
        st.integers(0, volumes - 1),
        st.sampled_from(ops),
        st.integers(0, blocks * 8 - 1),
        st.sampled_from([0, 1, 8, 8, 8, 9, 24]),
    )
    now, records = draw(st.integers(0, 10**18)), []
    for gap, volume, op, sector, sectors in draw(st.lists(record, min_size=1, max_size=60)):
        now += gap
        # Most begin at a block, as most writes do.
        start = sector if sector % 3 == 0 else sector // 8 * 8
        records.append(Record(now, volume, op, start * 512, sectors * 512))
    return records


def batches_of(records: Sequence[Record], cuts: Sequence[int]) -> list[Batch]:
    edges = sorted({0, len(records), *(cut % len(records) for cut in cuts)})
    return [batch_of(records[a:b]) for a, b in pairwise(edges)]


@settings(max_examples=2000, deadline=None)
@given(
    traces(),
    st.lists(st.integers(0, 1000), max_size=3),
    st.sampled_from([1e-6, 0.4, 1.0, 60.0, 3600.0]),
    st.lists(st.integers(-5, 60), max_size=6, unique=True),
    st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9]),
    st.sampled_from([512, 4096]),
)
def test_any_trace(
    records: list[Record],
    cuts: list[int],
    seconds: float,
    places: list[int],
    free_space: float,
    block: int,
) -> None:
    """Fixed intervals, instants at will (also at a record's very time) and a single update."""
    first, last = records[0].time_ns, records[-1].time_ns
    seconds = max(seconds, (last - first) / NS / 500)
    times = [each.time_ns for each in records]
    instants = sorted({times[k % len(times)] + (k // len(times)) for k in places})
    grids = (fixed(seconds), Grid("instants", boundaries=tuple(instants)), WHOLE)
    found = replay(
        batches_of(records, cuts), FACTS, grids, free_space=free_space, block=block, threads=3
    )
    for result, period_ns, at in zip(
        found.grids, (round(seconds * NS), None, None), ((), instants, ()), strict=True
    ):
        slow = replay_slowly(records, period_ns, at, free_space=free_space, block=block)
        assert updates_of(result) == slow, result.label
    writes = [each for each in records if each.op is Op.WRITE]
    written = [(each.volume, b) for each in writes for b in blocks_of(each, block)]
    assert found.blocks_written == len(written)
    assert found.unique_blocks == len(set(written))
    assert found.bytes_written == sum(each.length for each in writes)
    assert (found.first_ns, found.last_ns) == (first, last)
    # What was not deleted is what a single update at the end finds.
    assert found.written_deleted == len(written) - int(found.grids[2].active_map.sum())
    series = found.writes_series
    for bin_number, size in enumerate(series.bytes.tolist()):
        start = series.start_ns + bin_number * series.bin_ns
        inside = [w.length for w in writes if start <= w.time_ns < start + series.bin_ns]
        assert size == sum(inside)
    assert int(series.bytes.sum()) == found.bytes_written


@settings(max_examples=500, deadline=None)
@given(
    traces(),
    st.lists(st.integers(0, 1000), max_size=3),
    st.lists(st.sampled_from([1e-9, 0.3, 1.0, 30.0, 1e4]), max_size=3, unique=True),
)
def test_the_link_of_a_bound_is_the_slowest_on_which_no_write_is_late(
    records: list[Record], cuts: list[int], bounds_s: list[float]
) -> None:
    """What is written between any two moments has passed the bound after the second of them."""
    found = replay(batches_of(records, cuts), FACTS, bounds_s=bounds_s, threads=2)
    writes = [(each.time_ns, each.length) for each in records if each.op is Op.WRITE]
    assert list(found.writes_series.links) == bounds_s
    for bound_s, link in found.writes_series.links.items():
        needed = Fraction(0)
        for first, (begin_ns, _) in enumerate(writes):
            sent = 0
            for time_ns, size in writes[first:]:
                sent += size
                needed = max(needed, Fraction(sent, time_ns - begin_ns + round(bound_s * NS)))
        assert link == pytest.approx(float(needed * NS), rel=1e-12)


def test_a_burst_has_until_the_bound_to_pass() -> None:
    """100 bytes at once, 50 more half a second later, and nothing else: by hand."""
    records = [
        Record(0, 0, Op.WRITE, 0, 1),
        Record(60 * NS, 0, Op.WRITE, 0, 100),
        Record(60 * NS + NS // 2, 0, Op.WRITE, 0, 50),
    ]
    found = replay(batches_of(records, []), FACTS, bounds_s=(0.25, 1.0, 9.5))
    # 0.25 s: the second 50 have 0.75 s together with the first 100, which alone need 400.
    assert found.writes_series.links == pytest.approx({0.25: 400, 1.0: 100, 9.5: 15})


@settings(max_examples=300, deadline=None)
@given(traces(), st.integers(1, 7), st.randoms())
def test_parts_add(records: list[Record], of: int, random: object) -> None:
    """However blocks are split, and in whatever order the parts are added."""
    grids: tuple[Grid, ...] = (fixed(1), WHOLE)
    if records[-1].time_ns - records[0].time_ns > 10**6 * NS:
        grids = (WHOLE,)
    alone = replay([batch_of(records)], FACTS, grids, threads=1)
    parts = [count([batch_of(records)], grids, Parts(k, 1, of)) for k in range(of)]
    random.shuffle(parts)  # type: ignore[attr-defined]
    together = combine(parts, FACTS, grids)
    assert totals(together) == totals(alone)
    for one, other in zip(together.grids, alone.grids, strict=True):
        assert updates_of(one) == updates_of(other)


@pytest.mark.parametrize(
    "schedule",
    [
        parse_schedule("every 15m"),
        parse_schedule(["every 20m", "7 6 * * MON-FRI"], zone="Europe/Berlin"),
        parse_schedule("*/10 * * * *", windows=["Mon-Fri 08:00-18:00"], blackouts=["12:00-13:00"]),
        parse_schedule("every 30m", windows=["Sat,Sun 22:00-23:00"], jitter="5m"),
    ],
    ids=lambda schedule: ", ".join(schedule.rules),
)
def test_any_schedule(schedule: object) -> None:
    """The instants are those at which the daemon would start its updates."""
    random = np.random.default_rng(7)
    # Over the night in which clocks in Berlin are set back.
    epoch_ns = 1_729_900_000 * NS
    times = np.sort(random.integers(0, 3 * 86400 * NS, 800)).tolist()
    records = [
        Record(t, 0, Op.TRIM if random.random() < 0.2 else Op.WRITE, int(b) * 4096, 4096)
        for t, b in zip(times, random.zipf(1.3, 800) % 200, strict=True)
    ]
    facts = Facts("dated", "none", ("a",), epoch_ns)
    grid = scheduled(schedule, facts, times[0], times[-1], seed="m")  # type: ignore[arg-type]
    instants = [
        each.at_ns - epoch_ns
        for each in schedule.times(times[0] + epoch_ns, 5000, seed="m")  # type: ignore[attr-defined]
    ]
    [result] = replay([batch_of(records)], facts, [grid]).grids
    assert updates_of(result) == replay_slowly(records, None, instants, free_space=0.2)
    assert len(result.end_ns) > 3
    assert result.end_ns[:-1].tolist() == [at for at in instants if at <= times[-1]]


@pytest.mark.parametrize("windows", [(), ("00:10-00:20", "01:00-09:00")])
@pytest.mark.parametrize("target_s", [30.0, 600.0])
def test_lag_target(target_s: float, windows: tuple[str, ...]) -> None:
    """Each update starts where the daemon's planner says, from the updates before it."""
    random = np.random.default_rng(3)
    times = np.sort(random.integers(0, 7200 * NS, 3000)).tolist()
    records = [
        Record(t, 0, Op.WRITE, int(b) * 4096, 4096)
        for t, b in zip(times, random.zipf(1.2, 3000) % 500, strict=True)
    ]
    rate, overhead_s = 20_000.0, 2.0
    schedule = parse_schedule(f"lag {int(target_s)}s", windows=windows)
    facts = Facts("lagging", "none", ("a",), 1_704_067_200 * NS)
    grid = lag_target(target_s, rate, overhead_s, schedule=schedule, facts=facts, first_ns=times[0])
    split = batches_of(records, [100, 101, 1700])
    [result, other] = replay(split, facts, [grid, fixed(60)]).grids

    base, runs, instants = times[0], [], []  # type: ignore[var-annotated]
    at = base + round(plan_lag(target_s, runs).wait_s * NS)
    while True:
        at = schedule.next_allowed(at + facts.epoch_ns) - facts.epoch_ns  # type: ignore[operator]
        if at > times[-1]:
            break
        blocks = len({r.offset for r in records if base <= r.time_ns < at})
        took_s = overhead_s + blocks * 4096 / rate if blocks else 0.0
        if blocks:
            runs.append(Run((at - base) / NS, took_s, blocks * 4096))
        instants.append(at)
        end, base = at + round(took_s * NS), at
        at = max(base + round(plan_lag(target_s, runs[-20:]).wait_s * NS), end)
    assert result.end_ns[:-1].tolist() == instants
    assert len(instants) > 5
    assert updates_of(result) == replay_slowly(records, None, instants, free_space=0.2)
    assert updates_of(other) == replay_slowly(records, 60 * NS, (), free_space=0.2)


def test_far_addresses() -> None:
    """Blocks at the end of the largest volumes are told apart, and take little memory."""
    top = (1 << 63) - 8192
    places = [0, 1 << 40, 1 << 50, 1 << 58, top, top]
    records = [Record(k * NS, 0, Op.WRITE, at, 4096) for k, at in enumerate(places)]
    records.append(Record(6 * NS, 0, Op.TRIM, 1 << 49, (1 << 62) - (1 << 49)))
    found = replay([batch_of(records)], FACTS, [WHOLE])
    assert (found.blocks_written, found.unique_blocks) == (6, 5)
    assert found.grids[0].active_map.tolist() == [3]


def record(**changes: Any) -> Record:
    return Record(0, 0, Op.WRITE, 0, 4096)._replace(**changes)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "no record"),
        ([record(time_ns=5), record(time_ns=3 * NS), record(time_ns=NS)], "ordered by time"),
        ([record(offset=-1)], "impossible range"),
        ([record(length=-1)], "impossible range"),
        ([record(offset=(1 << 63) - 10)], "impossible range"),
        ([record(length=1 << 50)], "impossible range"),
        ([record(volume=(1 << 32) - 1)], "does not have"),
    ],
)
def test_bad_traces(records: list[Record], said: str) -> None:
    with pytest.raises(Damaged, match=said) as caught:
        replay([batch_of(records)], FACTS, [fixed(60)])
    assert caught.value.hint


def test_order_is_told_across_batches() -> None:
    batches = [batch_of([record(time_ns=9)] * 3), batch_of([record(time_ns=8)])]
    with pytest.raises(Damaged, match=r"record 4"):
        replay(batches, FACTS, [fixed(60)])


def test_bad_options() -> None:
    good = [batch_of([record(), record(time_ns=10**18)])]
    for given_options in ({"free_space": 1.0}, {"free_space": -0.1}, {"block": 4000}):
        with pytest.raises(UsageError):
            replay(good, FACTS, [fixed(60)], **given_options)
    with pytest.raises(UsageError, match="intervals"):
        replay(good, FACTS, [fixed(1)])
    with pytest.raises(UsageError):
        fixed(0)


def test_without_intervals() -> None:
    found = replay([batch_of([record(), record()])], FACTS, [])
    assert (found.blocks_written, found.unique_blocks, found.written_deleted) == (2, 1, 1)


def test_no_write_in_it() -> None:
    """A trace of reads replays into nothing; there are no percentages of nothing."""
    reads = [record(op=Op.READ), record(op=Op.FLUSH, length=0, time_ns=90 * NS)]
    found = replay([batch_of(reads)], FACTS, [fixed(60)])
    assert (found.records, found.writes, found.blocks_written) == (2, 0, 0)
    assert percent(found.grids[0], "active_map") == 0
    assert len(found.grids[0].end_ns) == 2
    assert found.written_deleted_percent == 0
