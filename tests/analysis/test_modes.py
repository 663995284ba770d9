"""Live modes, simulated: cases computed by hand, a slow simulation that agrees, real traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.analysis.modes import MODES, Link, Outcome, Scenario, round_trip_s, simulate
from mirrord.analysis.replay import COLUMNS
from mirrord.cli.main import run
from mirrord.core.dynamickeys import DynamicKeys
from mirrord.core.errors import Refused, UsageError
from mirrord.core.live import Mode
from mirrord.policies.congestion import PullAhead
from mirrord.policies.dynamic import Dynamic, Memory
from mirrord.policies.fixed import Fixed
from mirrord.policies.policy import AnyPolicy, Directive, Observation
from mirrord.policies.scheduled import Scheduled
from mirrord.schedules.spans import parse_span
from mirrord.system.native import ModeSimulator
from mirrord.traces.generators import Sequential
from mirrord.traces.model import Batch, Facts, Op
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from tests.analysis.brute import Record, batch_of
from tests.analysis.slowmodes import Mirror, Points
from tests.analysis.studies import stored
from tests.support.traces import TRACES_FOLDER, generated, real

MS, S = 10**6, 10**9
MB = 1_000_000
#: 1 MB/s, 4 ms there and back, 1 ms of storage.
LINK = Link(MB, 0.004, 0.001)
Captured = pytest.CaptureFixture[str]


def writes(times_ms: Sequence[float], length: int, *, apart: bool = True) -> Batch:
    """Writes at these times, each at its own place or all at one."""
    return batch_of(
        [
            Record(round(at * MS), 0, Op.WRITE, place * length if apart else 0, length)
            for place, at in enumerate(times_ms)
        ]
    )


def steadily(rate: float, from_s: float, to_s: float, length: int = 10_000) -> list[float]:
    """Times in ms of writes of this length at so many bytes per second."""
    step = length / rate
    return [1000 * (from_s + step * k) for k in range(round((to_s - from_s) / step))]


def simulated(
    batch: Batch, policy: AnyPolicy, link: Link = LINK, *, end_s: float = 0, **more: Any
) -> Outcome:
    """The outcome, on a trace that goes on until end_s."""
    last_ns = max(int(batch.time_ns[-1]), round(end_s * S))
    end = batch_of([Record(last_ns, 0, Op.READ, 0, 4096)])
    facts = Facts("t", "test", ("v",), **more)
    scenario = Scenario("s", link, policy, 0.025)
    span_ns = int(batch.time_ns[0]), last_ns
    [found] = simulate([batch, end], facts, span_ns, [scenario])
    return found


KEYS = DynamicKeys(max_lat_s=0.025)


def dynamic(**keys: Any) -> Dynamic:
    return Dynamic(replace(KEYS, **keys))


def test_a_synchronous_write_takes_the_round_trip_and_its_bytes() -> None:
    found = simulated(writes([0, 100, 200], 8000), Fixed(Mode.SYNC))
    # 1 ms of the replica's storage, 4 ms of distance, 8 ms for 8000 bytes.
    assert found.slowest_s == found.mean_latency_s == pytest.approx(0.013)
    assert (found.peak_bytes, found.exposed_s, found.changes) == (0, 0, 0)
    assert found.share(Mode.SYNC) == 1 and found.exposure_factor == float("inf")
    assert round_trip_s(40.2) == pytest.approx(0.000402)


def test_below_the_link_nothing_waits() -> None:
    found = simulated(writes(steadily(0.5e6, 0, 10), 10_000), Fixed(Mode.SEMI_SYNC, 1 << 40))
    # A write is behind from its arrival until 15 ms later; they come every 20 ms.
    assert found.peak_bytes == 10_000
    assert found.peak_s == pytest.approx(0.015)
    assert found.mean_bytes == pytest.approx(7500, rel=0.01)
    assert found.mean_latency_s == found.slowest_s == 0.001 and found.late == 0


def test_above_the_link_the_lag_grows_by_the_difference() -> None:
    found = simulated(writes(steadily(1.5e6, 0, 10), 10_000), Fixed(Mode.SEMI_SYNC, 1 << 40))
    # 0.5 MB/s for 10 s, and what is on the way for 5 ms at 1 MB/s.
    assert found.peak_bytes == pytest.approx(5 * MB + 5000, abs=20_000)
    assert found.peak_s == pytest.approx(5.0, abs=0.03)
    # Until the end of the trace the lag is 0.5 t; then it shrinks by 1 MB/s for 5 s.
    assert found.mean_bytes * found.span_s == pytest.approx(25 * MB + 12.5 * MB, rel=0.01)
    assert found.at_least and found.exposed_s == pytest.approx(15, rel=0.01)


def test_semi_sync_makes_writers_wait_for_what_exceeds_the_lag() -> None:
    burst = writes([0] * 100, 10_000)
    found = simulated(burst, Fixed(Mode.SEMI_SYNC, 200_000))
    # 800 KB have to arrive before the last is answered: 800 ms and the reply.
    assert found.slowest_s == pytest.approx(0.805)
    assert found.peak_bytes == 200_000
    assert simulated(burst, Fixed(Mode.SEMI_SYNC, 1 << 40)).slowest_s == 0.001


def test_a_burst_leaves_sync_for_the_hold_down() -> None:
    before, burst = steadily(0.1e6, 0, 10), steadily(2e6, 10, 20)
    after = steadily(0.1e6, 20, 700)
    found = simulated(writes([*before, *burst, *after], 10_000), dynamic(), end_s=700)
    [first, left, back] = found.course.modes
    assert (first, left[1], back[1]) == ((0, Mode.SYNC), Mode.SEMI_SYNC, Mode.SYNC)
    # The mean of 3 s exceeds 25 ms soon after the burst begins, and it stays out for 5 min.
    assert 10 < left[0] / S < 11
    assert back[0] / S == pytest.approx(left[0] / S + 300, abs=0.51)
    # 1 MB/s for some 9 s exceed the link.
    assert found.peak_bytes == pytest.approx(10 * MB, rel=0.05)
    assert (found.changes, found.left_sync, found.share(Mode.ASYNC)) == (2, 1, 0)
    # Writes waited only until sync was left: afterwards never longer than the maximum latency.
    assert found.late < 0.1 * found.writes


def test_m_is_what_the_maximum_latency_needs() -> None:
    # The link carries it, but a write of 15 KB every 16 ms takes 20 ms: over 18 ms on average.
    times = steadily(15_000 / 0.016, 0, 100, 15_000)
    found = simulated(writes(times, 15_000), dynamic(max_lat_s=0.018), end_s=100)
    assert found.left_sync == 1
    # Then only what has waited for half of it is answered ahead: two writes at most.
    assert 0 < found.peak_bytes <= 2 * 15_000
    assert found.slowest_s == pytest.approx(0.02)


def test_the_lag_never_exceeds_max_rpo() -> None:
    burst = writes(steadily(2e6, 0, 30), 10_000)
    bounded = simulated(burst, dynamic(max_rpo_bytes=500_000))
    assert bounded.peak_bytes <= 500_000
    assert bounded.slowest_s > 10 and bounded.share(Mode.ASYNC) == 0
    assert simulated(burst, dynamic()).peak_bytes > 20 * MB


class WithoutPrediction(Dynamic):
    """A seeded error: it returns without asking how fast the replica would answer."""

    def _is_fast(self, memory: Memory) -> bool:
        return True


class Forgetful(Dynamic):
    """A seeded error: a failed return does not double the hold-down."""

    def decide(self, observation: Observation, memory: Memory) -> tuple[Directive, Memory]:
        directive, memory = super().decide(observation, memory)
        return directive, memory._replace(hold_down_s=300)


def _held_s(found: Outcome) -> list[float]:
    """How long it was out of sync each time."""
    left = [at_ns / S for at_ns, mode in found.course.modes if mode is Mode.SEMI_SYNC]
    back = [at_ns / S for at_ns, mode in found.course.modes[1:] if mode is Mode.SYNC]
    return [b - a for a, b in zip(left, back, strict=False)]


def test_a_failed_return_doubles_the_hold_down() -> None:
    # Five seconds of burst in each minute: whenever sync is entered, the next burst ends it.
    bursts = [at for minute in range(60) for at in steadily(2e6, 60 * minute, 60 * minute + 5)]
    found = simulated(writes(bursts, 10_000), dynamic(), end_s=3600)
    held = _held_s(found)
    assert len(held) >= 3
    doubled = [pytest.approx(300 * 2**place, abs=30) for place in range(3)]
    assert held[:3] == doubled
    wrong = simulated(writes(bursts, 10_000), Forgetful(KEYS), end_s=3600)
    assert _held_s(wrong)[:3] != doubled and wrong.left_sync > found.left_sync
    ahead = simulated(writes(bursts, 10_000), PullAhead(20_000), end_s=3600)
    assert ahead.left_sync >= 60 > 10 * found.left_sync


def test_a_return_that_holds_resets_the_hold_down() -> None:
    # The second burst comes just after the return, the third much later.
    bursts = [at for begin in (0, 310, 3000) for at in steadily(2e6, begin, begin + 5)]
    found = simulated(writes(bursts, 10_000), dynamic(), end_s=4000)
    left = [at_ns / S for at_ns, mode in found.course.modes if mode is Mode.SEMI_SYNC]
    back = [at_ns / S for at_ns, mode in found.course.modes[1:] if mode is Mode.SYNC]
    assert [round(b - a, -1) for a, b in zip(left, back, strict=True)] == [300, 600, 300]


def test_pull_ahead_flaps_where_dynamic_does_not() -> None:
    # 20 % more than the link carries, for ten minutes.
    load = writes(steadily(1.2e6, 0, 600), 10_000)
    ahead = simulated(load, PullAhead(20_000))
    steady = simulated(load, dynamic())
    # It leaves, waits for a second, returns, is full again.
    assert ahead.changes > 300 and steady.changes == 1
    assert steady.share(Mode.SEMI_SYNC) > 0.99


def test_sync_is_not_left_for_latency_that_leaving_does_not_cure() -> None:
    slow = Link(100 * MB, 0.0001, 0.03)
    found = simulated(writes(steadily(0.1e6, 0, 60), 10_000), dynamic(), slow)
    assert found.mean_latency_s > 0.025 and found.changes == 0


def test_without_a_prediction_it_would_return() -> None:
    # Writes of 15 KB take 20 ms: M is small, the hold-down over, and sync would be too slow.
    batch = writes(steadily(0.1e6, 0, 700, 15_000), 15_000)
    found = simulated(batch, dynamic(max_lat_s=0.018), end_s=700)
    assert [mode for _, mode in found.course.modes] == [Mode.SYNC, Mode.SEMI_SYNC]
    wrong = simulated(batch, WithoutPrediction(replace(KEYS, max_lat_s=0.018)), end_s=700)
    assert wrong.left_sync > 1 and wrong.changes > found.changes


def test_full_buffers_track_changes_and_all_is_copied() -> None:
    load = writes(steadily(4e6, 0, 20), 10_000)
    found = simulated(load, dynamic(buffer_bytes=5 * MB), end_s=400)
    modes = [mode for _, mode in found.course.modes]
    assert modes == [Mode.SYNC, Mode.SEMI_SYNC, Mode.ASYNC, Mode.SEMI_SYNC, Mode.SYNC]
    # All is sent once; of tracked writes complete blocks.
    assert 80 * MB <= found.sent < 81.5 * MB
    # It leaves sync after a window of 3 s, and tracks from the next decision on, as 9 MB wait. What
    # was tracked is shown when the last of it is copied, 80 s after the beginning.
    assert found.peak_bytes == pytest.approx((80 - 13) * MB, rel=0.001)
    assert found.peak_s == pytest.approx(80 - 3.25, abs=1) and not found.at_least


def test_repeated_writes_are_merged_above_the_threshold() -> None:
    load = writes(steadily(4e6, 0, 30), 10_000, apart=False)
    found = simulated(load, dynamic(merge_bytes=1 * MB), end_s=40)
    assert found.sent < found.bytes / 3
    assert simulated(load, dynamic(merge_bytes=1 << 40), end_s=40).sent == found.bytes


def test_working_hours() -> None:
    # The trace begins on a Monday at 00:00; a burst at 07:00, one at 09:00.
    bursts = [*steadily(2e6, 7 * 3600, 7 * 3600 + 20), *steadily(2e6, 9 * 3600, 9 * 3600 + 20)]
    policy = Scheduled((parse_span("08:00-18:00"),), Fixed(Mode.SYNC), dynamic())
    batch = writes([0, *bursts], 10_000)
    found = simulated(batch, policy, end_s=10 * 3600, epoch_ns=1_704_067_200 * S)
    left = [at_ns / S / 3600 for at_ns, mode in found.course.modes if mode is not Mode.SYNC]
    assert len(left) == 1 and left[0] == pytest.approx(7, abs=0.001)
    again = simulated(batch, dynamic(), end_s=10 * 3600, epoch_ns=1_704_067_200 * S)
    assert again.left_sync == 2


def test_working_hours_begin_while_nothing_is_written() -> None:
    policy = Scheduled(
        (parse_span("08:00-18:00"),), Fixed(Mode.SYNC), Fixed(Mode.SEMI_SYNC, 1 << 40)
    )
    batch = writes([0, 9 * 3600], 10_000)
    found = simulated(batch, policy, end_s=10 * 3600, epoch_ns=1_704_067_200 * S)
    begun = [at_ns / S for at_ns, mode in found.course.modes if mode is Mode.SYNC and at_ns]
    assert len(begun) == 1 and begun[0] == pytest.approx(8 * 3600, abs=0.3)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"max_lat_s": 0}, "a maximum latency of 0"),
        ({"window_s": 1.0}, "a window of 1.0 s"),
        ({"lower": 0.8}, "the shares 0.8 and 0.7"),
    ],
)
def test_invalid_keys(keys: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dynamic(**keys)


def test_a_trace_without_writes() -> None:
    reads = batch_of([Record(0, 0, Op.READ, 0, 4096)])
    with pytest.raises(Refused, match="there are no writes"):
        simulated(reads, Fixed(Mode.SYNC))


LIMITS = range(0, 61_000, 1000)
GIVEN = st.one_of(st.none(), st.sampled_from(LIMITS))
WITHIN = st.one_of(st.none(), st.sampled_from(range(2, 32, 2)))
MOST = st.sampled_from([1 << 60, *LIMITS])
DIRECTIVES = st.one_of(
    st.just(Points("sync")),
    st.tuples(GIVEN, WITHIN, MOST).map(lambda each: Points("semi", *each)),
)
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 150), st.integers(0, 9), st.integers(1, 12)), min_size=1, max_size=30
)


@settings(deadline=None, max_examples=300)
@given(ARRIVALS, st.lists(DIRECTIVES, min_size=1, max_size=7), st.integers(0, 9), st.integers(0, 3))
def test_a_slow_simulation_agrees(
    arrivals: list[tuple[int, int, int]], script: list[Points], reply: int, local: int
) -> None:
    # 1000 bytes take a millisecond; control instants every 50 ms after the first record, at 0.
    ordered = sorted((at, place * 4096, length * 1000) for at, place, length in arrivals)
    ordered.insert(0, (0, 0, 1000))
    end = ordered[-1][0] // 50 * 50 + 50
    slow = Mirror(1000, reply, local)

    def decide(now: int) -> Points | None:
        return script[min(now // 50, len(script) - 1)] if now % 50 == 0 else None

    expected = slow.run(ordered, end, decide)
    native = ModeSimulator(MB, reply * MS, local * MS, 0, 50 * MS, keep_answers=True)
    records = [Record(at * MS, 0, Op.WRITE, offset, length) for at, offset, length in ordered]
    batch = batch_of([*records, Record(end * MS, 0, Op.READ, 0, 0)])
    native.feed(*(np.ascontiguousarray(getattr(batch, name)).data for name in COLUMNS))
    native.end()

    def direct(now: int) -> None:
        points = script[min(now // 50, len(script) - 1)]
        within = None if points.within is None else points.within * MS
        code = {"sync": 0, "semi": 1}[points.mode]
        native.direct(code, points.limit, within, points.most, False, True)

    direct(0)
    while not native.ended():
        seen = native.run(0)
        assert seen is not None
        direct(seen[0] // MS)
    native.drain()
    found = sorted(native.answers(), key=lambda each: each[0])
    latencies: dict[int, list[int]] = {}
    for (at, _, _), latency in zip(ordered, expected, strict=True):
        latencies.setdefault(at * MS, []).append(latency * MS)
    for at_ns, latency_ns in found:
        assert latency_ns in latencies[at_ns]
        latencies[at_ns].remove(latency_ns)
    assert not any(latencies.values())
    lag = native.totals()[1]
    assert lag[0] == max(lag_bytes for lag_bytes, _ in slow.lags)
    byte_ms = sum(lag_bytes for lag_bytes, _ in slow.lags)
    assert lag[4] * 1000 == pytest.approx(byte_ms)


def analyzed(capsys: Captured, *words: str) -> dict[str, Any]:
    status = run(["analyze", "modes", *words, "--json"])
    out, error = capsys.readouterr()
    assert status == 0, error
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.fixture
def hour(tmp_path: Path) -> Path:
    return stored(tmp_path, Sequential(7200, 600, 7200), "hour", dated=True)


def test_analyze_modes_writes_its_report(hour: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    words = [str(hour), "--max-lat", "4ms,7ms", "--bandwidth", "1Gbit,1Mbit", "--distance", "25mi"]
    assert run(["analyze", "modes", *words, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "hour, 1 Gbit/s, 4 ms: synchronous 100 % of the time; no changes" in said
    names = {path.name for path in out.iterdir()}
    assert {"modes.html", "modes.json", "modes.txt", "in-sync.png", "hour-lag.csv"} <= names
    document = json.loads((out / "modes.json").read_text())
    [trace] = document["traces"]
    assert len(trace["scenarios"]) == 8
    # A write of 4 KiB takes 4.096 ms on 8 Mbit/s alone, and 0.9 ms of distance and storage.
    needed = [each["link"] * 8 / 1e6 for each in trace["needed"]]
    assert needed == [pytest.approx(11), pytest.approx(5.6)]
    made_by = document["provenance"]["command"]
    assert "--max-lat 4ms,7ms --bandwidth 1Gbit,1Mbit" in made_by


def test_the_search_finds_the_slowest_link(hour: Path, capsys: Captured) -> None:
    [found] = analyzed(capsys, str(hour), "--max-lat", "5ms")["traces"]
    rate = found["needed"][0]["link"]
    for factor, enough in ((1.0, True), (0.9, False)):
        words = ["--max-lat", "5ms", "--in-sync", "0", "--bandwidth", f"{rate * factor / 125}kbit"]
        [trace] = analyzed(capsys, str(hour), *words)["traces"]
        assert (trace["scenarios"][0]["share"]["sync"] >= 0.999) is enough
    far = analyzed(capsys, str(hour), "--max-lat", "5ms", "--distance", "600mi")
    assert far["traces"][0]["needed"][0]["link"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "hopeful"], "'hopeful' is not a policy that can be simulated"),
        (["--max-lat", "0ms"], "a maximum latency of 0"),
        (["--max-lat", ","], "--max-lat is empty"),
        (["--max-lat", "soon"], "'soon' is not a duration"),
        (["--bandwidth", "fast"], "fast"),
        (["--bandwidth", "unlimited"], "'unlimited' is not the rate of a link"),
        (["--bandwidth", ""], "--bandwidth is empty"),
        (["--distance", "far"], "'far' is not a distance"),
        (["--window", "9s"], "a window of 9.0 s is out of range"),
        (["--sync-hours", "lunch"], "lunch"),
        (["--zone", "Atlantis"], "Atlantis"),
    ],
)
def test_invalid_options(words: list[str], said: str, tmp_path: Path, capsys: Captured) -> None:
    # The trace is not even looked for.
    assert run(["analyze", "modes", str(tmp_path / "none"), *words]) == 2
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert said in error and hint.startswith("hint: ")


REAL = ("cloudphysics-2h.vscsi.zst", "blkreplay-linux-mysql.load.zst", "hplajw-1week.srt.zst")


@pytest.mark.parametrize("name", REAL)
def test_real_traces(name: str, tmp_path: Path) -> None:
    if TRACES_FOLDER is None:
        generated("sequential")
        path = stored(tmp_path, Sequential(7200, 600, 7200), "sequential")
    else:
        path = real(name)
    rate = {"hplajw-1week.srt.zst": 125_000}.get(name, 1_250_000)
    link = Link(rate, round_trip_s(40), 0.0005)
    policies: list[AnyPolicy] = [
        Fixed(Mode.SYNC), Fixed(Mode.SEMI_SYNC, 1 << 50), Dynamic(DynamicKeys(0.004)),
        PullAhead(round(rate * 0.004)),
    ]  # fmt: skip
    scenarios = [Scenario(str(place), link, each, 0.004) for place, each in enumerate(policies)]
    with open_trace(path, options=ReadOptions()) as trace:
        batches = list(trace.batches(COLUMNS))
        span_ns = trace.first_ns, trace.last_ns
        sync, lagging, dynamically, ahead = simulate(batches, trace.facts, span_ns, scenarios)
    for found in (sync, lagging, dynamically, ahead):
        assert sum(found.mode_s) == pytest.approx(found.span_s)
        assert found.writes == sync.writes and found.bytes == sync.bytes
    assert sync.peak_bytes == 0 and lagging.slowest_s == pytest.approx(0.0005)
    # Without merging the replica has each write at the same time in every mode: plainly, by numpy.
    latency = plain_latency(batches, link)
    assert sync.mean_latency_s == pytest.approx(float(latency.mean()), rel=1e-6)
    assert lagging.peak_s == pytest.approx(float(latency.max()), rel=1e-6)
    assert dynamically.peak_bytes <= lagging.peak_bytes
    assert dynamically.mean_latency_s <= sync.mean_latency_s
    assert dynamically.changes < ahead.changes or ahead.changes == 0


def plain_latency(batches: Sequence[Batch], link: Link) -> Any:
    """Seconds from each write's arrival to the replica's acknowledgement: Lindley's recursion."""
    found, free = [], float("-inf")
    for batch in batches:
        for at_ns, op, length in zip(batch.time_ns, batch.op, batch.length, strict=True):
            if op == Op.WRITE and length:
                free = max(free, int(at_ns) / S) + int(length) / link.rate
                found.append(free + link.round_trip_s + link.storage_s - int(at_ns) / S)
    return np.array(found)


def test_modes_are_those_of_the_kernel() -> None:
    assert MODES == (Mode.SYNC, Mode.SEMI_SYNC, Mode.ASYNC)


def test_the_policy_of_the_document() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(code, names)
    load = writes(
        [*steadily(0.1e6, 0, 10), *steadily(3e6, 10, 13), *steadily(0.1e6, 13, 200)], 10_000
    )
    found = simulated(load, names["Patient"]())
    assert [mode for _, mode in found.course.modes] == [Mode.SYNC, Mode.SEMI_SYNC, Mode.SYNC]
    assert found.share(Mode.SEMI_SYNC) * found.span_s == pytest.approx(60, abs=0.5)


def test_a_moment_is_too_short_to_judge_modes(tmp_path: Path, capsys: Captured) -> None:
    source = tmp_path / "one.csv"
    source.write_text("0,w,0,4096\n")
    columns = ("--columns", "time=0,op=1,offset=2,length=3", "--time-unit", "us")
    assert run(["analyze", "modes", str(source), *columns]) == 0
    said = capsys.readouterr().out
    assert "one: the trace lasts only a moment: too short to judge modes." in said
    assert "no link is enough" not in said
