"""The traps of real traces: each is found, told with numbers, and mended by its option."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mirrord.traces import batches as make
from mirrord.traces import filters
from mirrord.traces.importing import Imported, import_trace, inspect_source
from mirrord.traces.model import Batch
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from mirrord.traces.store import TraceFile
from mirrord.traces.survey import best_shift, survey
from tests.support import traces
from tests.traces.samples import EXAMPLES, FILETIME, R, W

HERE = traces.TRACES_FOLDER is not None
real_ones = pytest.mark.skipif(not HERE, reason="the real traces are not here")


def names(made: Imported) -> list[str]:
    return [each.name for each in made.findings]


def msr(path: Path, rows: list[tuple[float, str, int, int]]) -> Path:
    """Rows of (seconds, operation, offset, length)."""
    path.write_text(
        "".join(
            f"{FILETIME + round(s * 1e7)},h,0,{op},{offset},{length},9\n"
            for s, op, offset, length in rows
        )
    )
    return path


def writes(
    seed: int, count: int, span_s: float, shift: int = 0
) -> list[tuple[float, str, int, int]]:
    """Aligned writes at random places, `shift` bytes off the grid."""
    draw = np.random.default_rng(seed)
    times = np.sort(draw.uniform(0, span_s, count))
    blocks = draw.integers(1, 100_000, count)
    return [
        (float(t), "Write", int(b) * 4096 + shift, 8192) for t, b in zip(times, blocks, strict=True)
    ]


def test_nothing_is_odd_about_a_plain_trace(tmp_path: Path) -> None:
    made = import_trace([msr(tmp_path / "s", writes(1, 2000, 3600))], tmp_path / "t")
    assert names(made) == []


@pytest.mark.parametrize("shift", [512, 1024, 3584])
def test_another_grid(shift: int, tmp_path: Path) -> None:
    source = msr(tmp_path / "s", writes(2, 1000, 600, 4096 - shift))
    made = import_trace([source], tmp_path / "t")
    assert names(made) == ["shifted-grid"] and made.shift_bytes == 0
    assert f"--align-shift {shift} " in made.findings[0].option
    assert "touch 2,000 blocks instead of 3,000" in made.findings[0].text
    for wanted in (shift, "auto"):
        mended = import_trace([source], tmp_path / "t", ReadOptions(align_shift=wanted))
        assert mended.shift_bytes == shift
        stored = TraceFile(tmp_path / "t")
        seen = survey(stored.batches())
        assert (seen.touched[0], seen.unaligned, best_shift(seen)) == (2000, 0, 0)
        assert stored.facts.notes["align_shift_bytes"] == str(shift)


def test_a_grid_that_is_only_chance_is_none(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    rows = [(float(i), "Write", int(draw.integers(0, 10**6)) * 512, 4096) for i in range(5000)]
    assert "shifted-grid" not in names(import_trace([msr(tmp_path / "s", rows)], tmp_path / "t"))


def test_requests_recorded_by_two_layers_are_found(tmp_path: Path) -> None:
    plain = writes(4, 1000, 600)
    # The lower layer sees each request 20 ms later, and joins some.
    twice = sorted([*plain, *((t + 0.02, op, at, length) for t, op, at, length in plain)])
    source = msr(tmp_path / "s", twice)
    made = import_trace([source], tmp_path / "t")
    assert names(made) == ["layered-duplicates"]
    assert made.findings[0].option == "--dedup 1s"
    mended = import_trace([source], tmp_path / "t", ReadOptions(dedup_s=1.0))
    expected = 2000 - survey_dropped(plain)
    assert survey(TraceFile(tmp_path / "t").batches()).touched[0] == expected
    assert mended.records <= 1000


def survey_dropped(rows: list[tuple[float, str, int, int]]) -> int:
    """Block writes of a plain trace that come within 1 s after the one before of their block."""
    last: dict[int, float] = {}
    dropped = 0
    for time, _, offset, length in rows:
        for block in range(offset // 4096, (offset + length) // 4096):
            dropped += time - last.get(block, -9) <= 1.0
            last[block] = time
    return dropped


def brute_dedup(batch: Batch, window_ns: int) -> list[tuple[int, int, int]]:
    """(time, first byte, last byte + 1) of every piece of a block that stays."""
    last: dict[tuple[int, int], int] = {}
    kept = []
    rows = zip(batch.time_ns, batch.volume, batch.op, batch.offset, batch.length, strict=True)
    for time, volume, op, offset, length in rows:
        for block in range(offset // 4096, -(-(offset + length) // 4096)):
            if op == W and length:
                before = last.get((volume, block))
                last[volume, block] = time
                if before is not None and time - before <= window_ns:
                    continue
            begin, end = max(offset, block * 4096), min(offset + length, block * 4096 + 4096)
            kept.append((int(time), int(begin), int(end)))
    return kept


@pytest.mark.parametrize("seed", range(20))
def test_leaving_out_repetitions_agrees_with_the_obvious_way(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count = 400
    batch = make.make(
        np.cumsum(draw.integers(0, 3 * 10**8, count)).tolist(),
        draw.choice([W, W, W, R], count).tolist(),
        draw.integers(0, 40_000, count).tolist(),
        draw.integers(1, 20_000, count).tolist(),
        (8192 * draw.integers(0, 2, count)).tolist(),
    )
    pieces = [make.pick(batch, slice(i, i + 37)) for i in range(0, count, 37)]
    found = make.join(list(filters.deduplicated(pieces, 1.0)))
    expected = brute_dedup(batch, 10**9)
    # Block by block, as what is left of a record may be one piece or several.
    again = []
    for time, offset, length in zip(found.time_ns, found.offset, found.length, strict=True):
        for block in range(offset // 4096, -(-(offset + length) // 4096)):
            begin, end = max(offset, block * 4096), min(offset + length, block * 4096 + 4096)
            again.append((int(time), int(begin), int(end)))
    assert sorted(again) == sorted(expected)
    assert len(found) <= len(expected)


def test_a_time_unit_that_is_wrong_by_a_thousand(tmp_path: Path) -> None:
    draw = np.random.default_rng(8)
    times = np.cumsum(draw.choice([30, 50, 200_000, 400_000], 6000)).tolist()  # µs, in bursts
    source = tmp_path / "s.csv"
    source.write_text("".join(f"{t},{t},w,65536\n" for t in times))
    right = import_trace([source], tmp_path / "t")
    assert not [name for name in names(right) if name.startswith("time-")]
    short = import_trace([source], tmp_path / "t", ReadOptions(time_unit="ns"))
    assert "time-too-short" in names(short)
    assert "come within 1 µs of the previous one" in short.findings[0].text
    assert "--time-unit" in short.findings[0].option
    long = import_trace([source], tmp_path / "t", ReadOptions(time_unit="s"))
    assert "time-too-long" in names(long) and " years" in long.findings[0].text
    long = import_trace([source], tmp_path / "t", ReadOptions(time_unit="ms"))
    assert "time-too-long" in names(long)
    assert "only 0 of 5,999 requests come within 1 ms" in long.findings[0].text
    heavy = tmp_path / "heavy.csv"
    heavy.write_text("".join(f"{t},{t},w,1048576\n" for t in range(40_000)))
    fast = import_trace([heavy], tmp_path / "t", ReadOptions(time_unit="ns"))
    assert "GiB are written within one second" in fast.findings[0].text
    ali = tmp_path / "ali.csv"
    ali.write_text("".join(f"1,W,{i},512,{1577808144360767 + i}\n" for i in range(200)))
    for unit, year in (("ms", "519"), ("ns", "1970")):
        odd = import_trace([ali], tmp_path / "t", ReadOptions(time_unit=unit))
        assert names(odd)[0] == "time-odd-date" and f"year {year}" in odd.findings[0].text


def test_a_size_unit_that_is_wrong(tmp_path: Path) -> None:
    source = msr(tmp_path / "s", [(i, "Write", 0, 1 << 24) for i in range(3)])
    assert "length-odd" not in names(import_trace([source], tmp_path / "t"))
    made = import_trace([source], tmp_path / "t", ReadOptions(size_unit="sector"))
    assert "length-odd" in names(made)


def test_times_that_go_back(tmp_path: Path) -> None:
    rows = writes(5, 1000, 600)
    rows[300], rows[700] = rows[700], rows[300]
    made = import_trace([msr(tmp_path / "s", rows)], tmp_path / "t")
    assert names(made) == ["unsorted"] and "goes back 2 times" in made.findings[0].text
    assert make.in_order(make.join(list(TraceFile(tmp_path / "t").batches())))


def test_blank_operations_and_nanoseconds_beyond(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(EXAMPLES["systor17"].data)
    made = import_trace([tmp_path / "s"], tmp_path / "t")
    assert "blank-operations" in names(made) and made.records == 2
    (tmp_path / "r").write_bytes(EXAMPLES["ransap-write"].data)
    made = import_trace([tmp_path / "r"], tmp_path / "t")
    assert {"nanoseconds-beyond-1e9", "unsorted"} <= set(names(made))
    [batch] = TraceFile(tmp_path / "t").batches()
    # The seconds and 1,042,231,293 ns more come after the next second and 5 ns.
    assert batch.time_ns.tolist() == [0, 42_231_288]
    assert made.facts.epoch_ns == 1623920107 * 10**9 + 5


def test_bursts_no_writes_and_whole_seconds(tmp_path: Path) -> None:
    rows = writes(6, 500, 3600)
    rows += [(1800 + i / 1000, "Write", 4096 * i, 1 << 20) for i in range(100)]
    made = import_trace([msr(tmp_path / "s", sorted(rows))], tmp_path / "t")
    assert "bursts" in names(made) and "100 MiB" in made.findings[-1].text
    reads = [(t, "Read", at, length) for t, _, at, length in writes(7, 200, 60)]
    made = import_trace([msr(tmp_path / "s", reads)], tmp_path / "t")
    assert names(made) == ["no-writes"]
    whole = [(i, "Write", 4096 * i, 4096) for i in range(200)]
    (tmp_path / "s").write_text(
        "".join(f"153832{3199 + s},{at // 512},8,1,7\n" for s, _, at, _ in whole)
    )
    assert "coarse-time" in names(import_trace([tmp_path / "s"], tmp_path / "t"))


def test_units_that_were_guessed(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(EXAMPLES["disksim"].data)
    made = import_trace([tmp_path / "s"], tmp_path / "t")
    assert names(made) == ["units-guessed"] and "disksim" in made.findings[0].text
    told = import_trace([tmp_path / "s"], tmp_path / "t", ReadOptions(format="disksim"))
    assert names(told) == []


@real_ones
@pytest.mark.parametrize(
    ("file", "expected", "text"),
    [
        ("cloudphysics-2h.vscsi.zst", {"shifted-grid", "bursts"}, "66,822 of 66,898 writes"),
        ("blkreplay-linux-mysql.load.zst", {"bursts"}, ""),
        ("blkreplay-linux-webserver-2.load.zst", {"layered-duplicates", "bursts"}, "--dedup 1s"),
        ("hplajw-1week.srt.zst", {"bursts"}, ""),
        ("fixture-cydonia-test_cp.csv.zst", {"shifted-grid", "bursts"}, "953 of 953 writes"),
        ("fixture-takeoverjp-sample.blktrace.0.zst", {"no-writes"}, ""),
    ],
)
def test_the_real_ones_have_what_is_known_of_them(file: str, expected: set[str], text: str) -> None:
    _, _, found = inspect_source([traces.real(file)])
    assert {each.name for each in found} == expected
    assert text in " ".join(each.text + each.option for each in found)


@real_ones
@pytest.mark.parametrize(
    ("file", "records", "written", "size", "span_s", "volumes", "end", "touched", "epoch_s"),
    [
        (
            "cloudphysics-2h.vscsi.zst",
            113_872,
            66_898,
            2_408_565_760,
            7200.09,
            1,
            33.6e9,
            656_169,
            None,
        ),
        (
            "hplajw-1week.srt.zst",
            44_519,
            31_479,
            201_778_176,
            603_064.6,
            5,
            335e6,
            54_827,
            707184186,
        ),
        # (The table counts plain R only; 1 and 344 reads of the next two are RA, read ahead.)
        (
            "blkreplay-linux-mysql.load.zst",
            80_793 + 1,
            73_607,
            1_101_479_936,
            3599.89,
            1,
            32.6e9,
            276_176,
            None,
        ),
        (
            "blkreplay-linux-webserver-2.load.zst",
            268_663 + 344,
            119_989,
            1_116_175_360,
            3600.95,
            1,
            773.7e9,
            290_474,
            None,
        ),
        ("fixture-cydonia-test_cp.csv.zst", 1000, 953, 5_877_248, 860.3, 1, 19.7e9, 2368, None),
        ("fixture-takeoverjp-sample.blktrace.0.zst", 963, 0, 0, 0.35, 1, 1269.8e9, 0, None),
    ],
)
def test_the_real_ones_come_out_as_they_are_known(
    file: str,
    records: int,
    written: int,
    size: int,
    span_s: float,
    volumes: int,
    end: float,
    touched: int,
    epoch_s: int | None,
) -> None:
    with open_trace(traces.real(file)) as trace:
        seen = survey(trace.batches(rows=10_000))
        assert trace.records == seen.count == records
        assert len(trace.facts.volumes) == volumes
        if epoch_s is not None:
            assert trace.facts.epoch_ns is not None
            assert trace.facts.epoch_ns // 10**9 == epoch_s
    assert (seen.writes, seen.sizes["write"], seen.touched[0]) == (written, size, touched)
    assert seen.records["trim"] == 0
    assert seen.span_s == pytest.approx(span_s, abs=0.05)
    assert seen.end_bytes == pytest.approx(end, rel=0.005)


@real_ones
@pytest.mark.parametrize(
    ("file", "format_name", "unit"),
    [
        ("fixture-cydonia-test_cp.csv.zst", "cydonia", "us"),
        ("blkreplay-linux-mysql.load.zst", "blkreplay", "s"),
        ("blkreplay-linux-webserver-2.load.zst", "blkreplay", "s"),
    ],
)
def test_real_times_read_by_a_wrong_unit_look_odd(file: str, format_name: str, unit: str) -> None:
    others = {"us": ("ns", "ms"), "s": ("ms", None)}[unit]
    for wrong, expected in zip(others, ("time-too-short", "time-too-long"), strict=True):
        if wrong is not None:
            _, _, found = inspect_source([traces.real(file)], ReadOptions(time_unit=wrong))
            assert expected in {each.name for each in found}


def test_an_absurd_length_is_not_taken_apart() -> None:
    """A wrong unit of sizes; looking for repetitions block by block would take for ever."""
    batch = make.make([0, 1], [W, W], [0, 0], [(1 << 63) - 1, 4096])
    [found] = filters.deduplicated([batch], 1.0)
    assert found.length.tolist() == batch.length.tolist()
