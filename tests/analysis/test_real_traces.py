"""The numbers that are known of real traces come out again, to the last digit that was printed.

Where the traces are not at hand, generated workloads with known answers take their place; the
summary of the test run says which.
"""

from __future__ import annotations

import csv
import subprocess
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest

from mirrord.analysis.grids import DEFAULT, PAPER_S, fixed
from mirrord.analysis.replay import COLUMNS, replay
from mirrord.traces.generators import Files, HotSpots, LogAndDatabase, Sequential, Workload
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from tests.analysis.percents import percent, percent_of_bytes
from tests.support import traces
from tests.support.replays import WHOLE

#: Percentages are printed with one digit.
DIGIT = 0.05 + 1e-9


class Known(NamedTuple):
    """What is known of a trace: intervals of Figure 2 in percent, as many as the trace spans."""

    file: str
    options: ReadOptions
    blocks_written: int
    unique_blocks: int
    bytes_written: int
    percent: tuple[float, ...]
    at_the_end: float
    percent_of_bytes: tuple[float, ...] = ()
    #: Peaks of 1, 60 and 300 s in MB/s, each with its tolerance.
    peaks: tuple[tuple[float, float], ...] = ()


SHIFTED = ReadOptions(align_shift=512)
REAL = {
    "cloudphysics, grid + 512": Known(
        "cloudphysics-2h.vscsi.zst", SHIFTED, 608_352, 206_292, 2_408_565_760,
        (81.0, 72.6, 71.9, 71.7, 62.3), 33.9, (83.8, 75.1, 74.4, 74.2, 64.5),
        ((148.2, 0.05), (10.5, 0.05), (3.27, 0.005)),
    ),
    "cloudphysics, grid found": Known(
        "cloudphysics-2h.vscsi.zst", ReadOptions(align_shift="auto"),
        608_352, 206_292, 2_408_565_760, (81.0, 72.6, 71.9, 71.7, 62.3), 33.9,
    ),
    "cloudphysics, as recorded": Known(
        "cloudphysics-2h.vscsi.zst", ReadOptions(), 656_169, 208_696, 2_408_565_760,
        (76.9, 68.3, 67.5, 67.3, 58.3), 31.8,
    ),
    "hplajw": Known(
        "hplajw-1week.srt.zst", ReadOptions(), 54_827, 3_857, 201_778_176,
        (65.5, 50.9, 40.4, 33.9, 28.6, 16.6, 14.0, 11.7), 7.0,
        (72.9, 56.7, 45.0, 37.7, 31.9, 18.5, 15.6, 13.0),
        ((0.84, 0.005), (0.08, 0.005), (0.02, 0.005)),
    ),
    "mysql": Known(
        "blkreplay-linux-mysql.load.zst", ReadOptions(), 276_176, 124_283, 1_101_479_936,
        (90.1, 77.3, 60.0, 53.1, 45.0), 45.0, (92.5, 79.4, 61.6, 54.5, 46.2),
        ((26.2, 0.05), (0.97, 0.005), (0.50, 0.005)),
    ),
    "webserver, without doubles": Known(
        "blkreplay-linux-webserver-2.load.zst", ReadOptions(dedup_s=1.0),
        140_576, 79_386, 548_711_424, (88.0, 74.4, 64.5, 59.9, 56.5), 56.5,
    ),
    "webserver, raw": Known(
        "blkreplay-linux-webserver-2.load.zst", ReadOptions(), 290_474, 79_386, 1_116_175_360,
        (42.6, 36.0, 31.2, 29.0, 27.3), 27.3, (),
        ((16.4, 0.05), (1.45, 0.005), (0.52, 0.005)),
    ),
    "cydonia": Known(
        "fixture-cydonia-test_cp.csv.zst", SHIFTED, 1_620, 257, 5_877_248, (50.4, 21.4), 15.9,
    ),
}  # fmt: skip
GENERATED: dict[str, Workload] = {
    "hot spots": HotSpots(500_000, 20_000, 86_400),
    "sequential": Sequential(200_000, 9_000, 86_400),
    "log and database": LogAndDatabase(24 * 60),
    "files": Files(24 * 60),
}
HERE = traces.TRACES_FOLDER is not None


@pytest.mark.parametrize("name", REAL if HERE else GENERATED)
def test_figure_2(name: str) -> None:
    if HERE:
        check_real(REAL[name])
    else:
        check_generated(name)


def check_real(known: Known) -> None:
    with open_trace(traces.real(known.file), options=known.options) as trace:
        found = replay(trace.batches(COLUMNS), trace.facts, [*DEFAULT, WHOLE])
    assert found.blocks_written == known.blocks_written
    assert found.unique_blocks == known.unique_blocks
    assert found.bytes_written == known.bytes_written
    # No trace has trims: what is in place and what the active map has are the same.
    for volume in ("update_in_place", "active_map"):
        *intervals, end = found.grids
        percents = [percent(grid, volume) for grid in intervals]
        assert percents[: len(known.percent)] == pytest.approx(known.percent, abs=DIGIT)
        assert percent(end, volume) == pytest.approx(known.at_the_end, abs=DIGIT)
        of_bytes = [percent_of_bytes(grid, volume) for grid in intervals]
        assert of_bytes[: len(known.percent_of_bytes)] == pytest.approx(
            known.percent_of_bytes, abs=DIGIT
        )
    assert found.written_deleted_percent == pytest.approx(100 - known.at_the_end, abs=DIGIT)
    second = found.writes_series
    assert second.bin_ns == 10**9
    for (peak, tolerance), width in zip(known.peaks, (1, 60, 300), strict=False):
        starts = np.arange(0, len(second.bytes), width)
        rate = np.add.reduceat(second.bytes, starts).max() / width / 1e6
        assert rate == pytest.approx(peak, abs=tolerance), width


def check_generated(name: str) -> None:
    traces.generated(name)
    workload = GENERATED[name]
    intervals = PAPER_S if not isinstance(workload, Files) else (60, 300, 600)
    found = replay(workload.batches(), workload.facts, [fixed(seconds) for seconds in intervals])
    for grid, seconds in zip(found.grids, intervals, strict=True):
        known = workload.share(seconds)
        assert percent(grid, "update_in_place") == pytest.approx(
            100 * known.update_in_place, rel=0.01
        )
        assert percent(grid, "active_map") == pytest.approx(100 * known.active_map, rel=0.01)


@pytest.mark.skipif(not HERE, reason="the table of 106 virtual machines is not here")
def test_106_virtual_machines() -> None:
    """A table of windows of half an hour, not a trace: its own row of numbers."""
    path = traces.real("cloudphysics-106vm-30min-write-features.csv.zst")
    text = subprocess.run(["zstd", "-dc", path], check=True, capture_output=True, text=True).stdout
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    written: dict[str, list[int]] = defaultdict(list)
    unique: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        written[row["workload"]].append(int(row["write_pages"]))
        unique[row["workload"]].append(int(row["uniq_write_pages"]))
    assert (len(written), sum(map(len, written.values()))) == (106, 34_198)
    pages = sum(map(sum, written.values()))
    assert pages * 4096 / 1e12 == pytest.approx(19.84, abs=0.005)
    assert 100 * sum(map(sum, unique.values())) / pages == pytest.approx(54.8, abs=DIGIT)
    percent = [100 * sum(unique[vm]) / sum(written[vm]) for vm in written]
    quantiles = np.percentile(percent, [0, 10, 25, 50, 75, 90, 100])
    assert quantiles == pytest.approx([12.1, 27.4, 39.5, 54.1, 68.2, 83.9, 99.9], abs=DIGIT)
