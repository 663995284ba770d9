"""The replay of a large trace, and of one larger than memory, compared with DuckDB and Polars.

Each measurement is a separate process, so that its memory can be measured. The peers compute only
the transfers with update in place, in the fastest way found for each: from the time of a block's
previous write, with a window function in DuckDB's SQL, and in Polars with a hand-written sort (the
same SQL takes Polars ten times as long).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.harness import Row, folder
from mirrord.traces.model import Batch

RECORDS = int(os.environ.get("MIRRORD_BENCH_RECORDS", 100_000_000))
BLOCKS = 50_000_000
PEERS = {"duckdb": "DuckDB's SQL", "polars": "Polars by hand"}
#: The rate of records, whatever their number: 100 million per day.
RECORD_S = 86_400 / 100_000_000
GIB = 1 << 30


def measure() -> list[Row]:
    """Takes about five minutes, and 2 GB below /var/tmp."""
    with folder() as inside:
        large, larger = inside / "large.parquet", inside / "larger.parquet"
        generate(RECORDS, large)
        memory = run("memory", large)
        stored = run("stored", large)
        peers = {name: run(name, large) for name in PEERS}
        for name, peer in peers.items():
            assert peer["blocks"] == stored["blocks"], f"{name} found something else"
        generate(3 * RECORDS, larger)
        out_of_core = run("stored", larger)
    speed = RECORDS / stored["seconds"] / 1e6
    what = f"{RECORDS / 1e6:g} million records, 50 million blocks, 8 intervals, all three volumes"
    slope = (out_of_core["seconds"] - stored["seconds"]) / 2 / stored["seconds"]
    rows = [
        Row(what + ", in memory", RECORDS / memory["seconds"] / 1e6, "M/s", ">=", 10),
        Row("the same from the stored trace", speed, "M/s", ">=", 10),
        Row("its peak memory", stored["rss"] / GIB, "GiB", "<=", 8),
        Row(
            f"{3 * RECORDS / 1e6:g} million records out of core: time of each further record",
            slope, "x", "<=", 1.2, note=f"{out_of_core['seconds']:.0f} s",
        ),
        Row("its peak memory", out_of_core["rss"] / GIB, "GiB", "<=", 8),
    ]  # fmt: skip
    for name, peer in peers.items():
        times = peer["seconds"] / stored["seconds"]
        other = RECORDS / peer["seconds"] / 1e6
        note = f"{other:.1f} M/s, {peer['rss'] / GIB:.1f} GiB, only the update in place"
        target = 3 if name == "duckdb" else 1
        rows.append(Row(f"times faster than {PEERS[name]}", times, "x", ">=", target, note=note))
    return rows


def generate(records: int, path: Path) -> None:
    """Generate a trace by Zipf's law and store it."""
    from mirrord.traces.generators import HotSpots
    from mirrord.traces.store import TraceWriter

    workload = HotSpots(records, BLOCKS, records * RECORD_S)
    with TraceWriter(path, workload.facts, durable=False) as writer:
        for batch in workload.batches():
            writer.write(batch)


def run(name: str, path: Path) -> dict[str, float]:
    """Run one measurement in a process: seconds, peak memory in bytes, the sum of blocks."""
    words = [sys.executable, "-m", "benchmarks.replay", name, str(path)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def by_mirrord(path: Path, *, in_memory: bool) -> tuple[float, int]:
    """Seconds and the sum of blocks over the intervals."""
    from mirrord.analysis.replay import COLUMNS, replay
    from mirrord.traces.store import TraceFile

    trace = TraceFile(path)
    batches: Iterable[Batch] = trace.batches(COLUMNS)
    threads = None
    if in_memory:
        # No thread is needed to read: all processors count.
        batches, threads = list(batches), len(os.sched_getaffinity(0))
    started = time.perf_counter()
    found = replay(batches, trace.facts, threads=threads)
    seconds = time.perf_counter() - started
    assert found.records == trace.records
    return seconds, sum(int(grid.update_in_place.sum()) for grid in found.grids)


def by_duckdb(path: Path) -> tuple[float, int]:
    """With a window over the writes of each block."""
    import duckdb

    from mirrord.analysis.grids import PAPER_S

    counts = ", ".join(
        f"count(*) FILTER (before IS NULL OR before // {s}000000000 < now // {s}000000000)"
        for s in PAPER_S
    )
    started = time.perf_counter()
    connection = duckdb.connect()
    connection.execute(f"SET temp_directory='{path.parent}'")
    found = connection.execute(
        f'WITH writes AS (SELECT time_ns AS now, lag(time_ns) OVER (PARTITION BY "offset" // 4096 '
        f"ORDER BY time_ns) AS before FROM '{path}' WHERE op = 0) SELECT {counts} FROM writes"
    ).fetchone()
    assert found is not None
    return time.perf_counter() - started, sum(found)


def by_polars(path: Path) -> tuple[float, int]:
    """With a sort: the previous write is the previous row."""
    import polars as pl

    from mirrord.analysis.grids import PAPER_S

    started = time.perf_counter()
    writes = (
        pl.scan_parquet(path)
        .filter(pl.col("op") == 0)
        .select(now=pl.col("time_ns"), block=pl.col("offset") // 4096)
        .sort("block", maintain_order=True)
        .with_columns(before=pl.col("now").shift(1), other=pl.col("block").shift(1))
    )
    other = pl.col("other").is_null() | (pl.col("other") != pl.col("block"))
    found = writes.select(
        (other | (pl.col("before") // (s * 10**9) < pl.col("now") // (s * 10**9)))
        .sum()
        .alias(str(s))
        for s in PAPER_S
    ).collect()
    return time.perf_counter() - started, sum(found.row(0))


def main(name: str, path: Path) -> None:
    """The work of the separate process."""
    ways: dict[str, Callable[[Path], tuple[float, int]]] = {
        "memory": lambda path: by_mirrord(path, in_memory=True),
        "stored": lambda path: by_mirrord(path, in_memory=False),
        "duckdb": by_duckdb,
        "polars": by_polars,
    }
    seconds, blocks = ways[name](path)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "rss": rss, "blocks": blocks}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
