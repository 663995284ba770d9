"""Any order of records becomes the order of time, in bounded memory, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.traces import batches as make
from mirrord.traces import ordering
from mirrord.traces.importing import import_trace
from mirrord.traces.model import Batch, Facts
from mirrord.traces.ordering import Sorter, merge
from mirrord.traces.store import TraceFile
from tests.support.traces import generated

FACTS = Facts("t", "test", ("0",))


def batch_of(times: list[int], first: int = 0) -> Batch:
    """Records whose offset is their number, so that each can be told."""
    count = len(times)
    return make.make(times, [0] * count, [first + i for i in range(count)], [1] * count)


def sort(times: list[int], cut: int, window: int) -> tuple[TraceFile, Sorter, Batch]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scratch").mkdir()
        target = folder / "t.parquet"
        sorter = Sorter(target, FACTS, folder / "scratch", durable=False, window_rows=window)
        for begin in range(0, len(times), cut):
            sorter.add(batch_of(times[begin : begin + cut], begin))
        writer = sorter.finish()
        assert writer is not None
        writer.close()
        stored = TraceFile(target)
        whole = make.join(list(stored.batches()))
        assert sorted(each.name for each in folder.rglob("*")) == ["scratch", "t.parquet"]
        return stored, sorter, whole


@settings(max_examples=150, deadline=None)
@given(
    times=st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=120),
    cut=st.integers(1, 40),
    window=st.integers(2, 50),
)
def test_any_order_is_put_right(times: list[int], cut: int, window: int) -> None:
    stored, sorter, whole = sort(times, cut, window)
    assert sorter.first_ns == min(times)
    assert whole.time_ns.tolist() == [time - min(times) for time in sorted(times)]
    # Each record is there once, with its own time.
    assert sorted(whole.offset.tolist()) == list(range(len(times)))
    assert [times[number] - min(times) for number in whole.offset] == whole.time_ns.tolist()
    assert (stored.first_ns, stored.last_ns) == (0, max(times) - min(times))


def test_more_runs_than_are_merged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MERGE_RUNS", 3)
    times = list(range(400, 0, -1))
    _, sorter, whole = sort(times, 7, 10)
    assert sorter.runs > 30
    assert whole.time_ns.tolist() == list(range(400))


def test_what_is_in_order_is_one_run() -> None:
    _, sorter, _ = sort([i // 3 for i in range(1000)], 64, 100)
    assert sorter.runs == 1


def test_a_little_disorder_needs_no_second_run() -> None:
    times = [10 * i + (35 if i % 5 == 0 else 0) for i in range(1000)]
    _, sorter, whole = sort(times, 64, 100)
    assert sorter.runs == 1 and make.in_order(whole)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), max_size=30), max_size=6), st.integers(1, 9))
def test_merge_is_the_same_as_sorting_all(streams: list[list[int]], cut: int) -> None:
    sources = [
        [batch_of(sorted(times)[i : i + cut]) for i in range(0, len(times), cut)]
        for times in streams
    ]
    merged = [time for batch in merge(sources) for time in batch.time_ns.tolist()]
    assert merged == sorted(time for times in streams for time in times)


#: Imports in a process of its own and tells its peak of memory.
PEAK = """
import json, re, sys
from pathlib import Path
from mirrord.traces.importing import import_trace
made = import_trace([sys.argv[1]], sys.argv[2], window_rows=int(sys.argv[3]))
# (Of this program alone; what getrusage tells begins with the peak of who started it.)
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps({"records": made.records, "peak": peak, "backward": made.seen.backward}))
"""
WINDOW = 1 << 18
FEW, MANY = 4_000_000, 8_000_000
RECORD = np.dtype([
    ("sn", "<u4"), ("len", "<u4"), ("nsg", "<u4"), ("cmd", "<u2"), ("ver", "<u2"), ("lbn", "<u8"),
    ("ts", "<u8"),
])  # fmt: skip


def vscsi_file(path: Path, records: int, *, shuffled: bool) -> None:
    """A large source: in order, or in blocks of 10,000 records that stand in any order."""
    draw = np.random.default_rng(5)
    rows = np.zeros(records, RECORD)
    rows["len"], rows["cmd"], rows["ver"] = 4096, 0x2A, 0x100
    rows["lbn"] = draw.integers(0, 1 << 30, records) * 8
    rows["ts"] = np.arange(records)
    if shuffled:
        order = draw.permutation(records // 10_000)
        rows = rows.reshape(-1, 10_000)[order].reshape(-1)
    rows.tofile(path)


@pytest.mark.parametrize("shuffled", [False, True])
def test_memory_does_not_grow_with_the_source(shuffled: bool, tmp_path: Path) -> None:
    generated("8 million records, " + ("in any order" if shuffled else "in order"))
    found = {}
    for records in (FEW, MANY):
        source = tmp_path / "source.vscsi"
        vscsi_file(source, records, shuffled=shuffled)
        done = subprocess.run(
            [sys.executable, "-c", PEAK, source, tmp_path / "out.parquet", str(WINDOW)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found[records] = json.loads(done.stdout)
        assert found[records]["records"] == records
        assert (found[records]["backward"] > 0) is shuffled
    stored = TraceFile(tmp_path / "out.parquet")
    last = -1
    for batch in stored.batches(["time_ns"], rows=1 << 18):
        assert batch.time_ns[0] >= last and make.in_order(batch)
        last = int(batch.time_ns[-1])
    assert last == (MANY - 1) * 1000
    # The records that there are more would be 160 MB, if they were held.
    assert found[MANY]["peak"] - found[FEW]["peak"] < 60 << 20, found


def test_import_of_several_files_in_any_order(tmp_path: Path) -> None:
    for index, start in enumerate((500, 0, 1000)):
        lines = [f"{start + i},8,w,512\n" for i in range(100)]
        (tmp_path / f"{index}.csv").write_text("".join(lines))
    made = import_trace([tmp_path / f"{i}.csv" for i in range(3)], tmp_path / "t.parquet")
    assert made.records == 300 and made.seen.backward == 1
    whole = make.join(list(TraceFile(tmp_path / "t.parquet").batches()))
    assert make.in_order(whole) and int(whole.time_ns[-1]) == 1_099_000
    assert [each.name for each in made.findings if each.name == "unsorted"]


HOLD = """
import sys, time
from mirrord.traces.store import scratch_folder
with scratch_folder(sys.argv[1], ".mirrord-trace-") as name:
    print(name, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_import_left_is_removed_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as busy,
    ):
        assert killed.stdout is not None and busy.stdout is not None
        left, used = (Path(one.readline().strip()) for one in (killed.stdout, busy.stdout))
        killed.kill()
        killed.wait()
        for folder in (left, used):
            (folder / "part").write_text("a part")
            os.utime(folder, (0, 0))
        (tmp_path / "0.csv").write_text("5,8,w,512\n")
        import_trace([tmp_path / "0.csv"], tmp_path / "t.parquet")
        busy.kill()
    assert not left.exists() and (used / "part").exists()
