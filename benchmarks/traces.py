"""Import of traces: blkparse text and MSR CSV per core, compared with Polars; and the memory.

Each import runs in a separate process. Rates are megabytes of source per second of processor time
(user and system, all threads): the rate of one core.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import ROOT, Row

#: Requests in the generated sources; a blkparse text has two lines for each.
RECORDS = int(os.environ.get("MIRRORD_BENCH_TRACE_RECORDS", "2000000"))
ROUNDS = 3
#: Records of the two imports whose memory is compared; the smaller exceeds the sort window.
_SIZES = (8_000_000, 32_000_000)
_RECORD = np.dtype([
    ("sn", "<u4"), ("len", "<u4"), ("nsg", "<u4"), ("cmd", "<u2"), ("ver", "<u2"), ("lbn", "<u8"),
    ("ts", "<u8"),
])  # fmt: skip

_TELL = """
import json, re, resource, sys, time
from pathlib import Path
{needs}
before = resource.getrusage(resource.RUSAGE_SELF)
{work}
after = resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
print(json.dumps({{"cpu_s": cpu, "peak": peak, "records": records}}))
"""
_OURS = """
from mirrord.traces.importing import import_trace
from mirrord.traces.options import ReadOptions
from mirrord.traces.parsing import Parsing
"""
_PARSE = """
records = sum(len(batch) for batch in Parsing([sys.argv[1]], ReadOptions()).batches())
"""
_IMPORT = """
records = import_trace([sys.argv[1]], sys.argv[2]).records
"""
#: The same columns, sorted and stored, in Polars; without the search for anomalies.
_POLARS_MSR = """
names = ["time", "host", "disk", "op", "offset", "length", "latency"]
rows = pl.read_csv(sys.argv[1], has_header=False, new_columns=names)
made = rows.select(
    ((pl.col("time") - pl.col("time").min()) * 100).alias("time_ns"),
    pl.concat_str("host", "disk", separator="-").cast(pl.Categorical).to_physical().alias("volume"),
    (pl.col("op") != "Write").cast(pl.UInt8).alias("op"), pl.col("offset"), pl.col("length"),
    (pl.col("latency") * 100).alias("latency_ns"),
).sort("time_ns", maintain_order=True)
made.write_parquet(sys.argv[2], compression="lz4")
records = len(made)
"""
_POLARS_BLKPARSE = r"""
rows = pl.read_csv(sys.argv[1], has_header=False, separator="\x01", quote_char=None,
                   new_columns=["line"])
pattern = (r"^\s*(?<device>\d+,\d+)\s+\d+\s+\d+\s+(?<s>\d+)\.(?<ns>\d+)\s+\d+\s+Q\s+(?<op>[A-Z]+)"
           r"\s+(?<sector>\d+) \+ (?<sectors>\d+)")
found = rows.select(pl.col("line").str.extract_groups(pattern).alias("g")).unnest("g")
made = found.filter(pl.col("device").is_not_null()).select(
    (pl.col("s").cast(pl.Int64) * 1_000_000_000 + pl.col("ns").cast(pl.Int64)).alias("time_ns"),
    pl.col("device").cast(pl.Categorical).to_physical().alias("volume"),
    (~pl.col("op").str.contains("W")).cast(pl.UInt8).alias("op"),
    (pl.col("sector").cast(pl.Int64) * 512).alias("offset"),
    (pl.col("sectors").cast(pl.Int64) * 512).alias("length"),
).sort("time_ns", maintain_order=True)
made.write_parquet(sys.argv[2], compression="lz4")
records = len(made)
"""


def measure() -> list[Row]:
    """Both formats, and the memory at four times the size."""
    inside = Path(tempfile.mkdtemp(prefix="mirrord-bench-traces-"))
    try:
        rows = [*_speed(inside, "msr", _POLARS_MSR), *_speed(inside, "blkparse", _POLARS_BLKPARSE)]
        return [*rows, *_memory(inside)]
    finally:
        shutil.rmtree(inside)


def _speed(inside: Path, kind: str, peer: str) -> list[Row]:
    source = inside / f"source.{kind}"
    _write(source, kind, RECORDS)
    size = source.stat().st_size / 1e6
    best: dict[str, float] = {}
    for _ in range(ROUNDS):  # in turns, as other load on the machine affects all of them
        for name, work in (("parse", _PARSE), ("import", _IMPORT), ("polars", peer)):
            told = _run(work, source, inside / "out.parquet")
            assert told["records"] == RECORDS, (name, told)
            best[name] = max(best.get(name, 0.0), size / told["cpu_s"])
    note = f"{size:.0f} MB, {RECORDS:,} requests; parse alone {best['parse']:.0f} MB/s"
    return [
        Row(
            f"import of {kind}, a core",
            best["import"],
            "MB/s",
            ">=",
            150,
            "polars",
            best["polars"],
            note,
        ),
    ]


def _memory(inside: Path) -> list[Row]:
    peaks = []
    for records in _SIZES:
        source = inside / "source.vscsi"
        _vscsi(source, records)
        peaks.append(int(_run(_IMPORT, source, inside / "out.parquet")["peak"]))
    few, many = (peak / (1 << 20) for peak in peaks)
    return [
        Row(
            "import, memory at 4 times the size",
            many,
            "MiB",
            "<=",
            few + 50,
            note=f"vscsi, {_SIZES[1]:,} records; of {_SIZES[0]:,}: {few:.0f} MiB",
        ),
    ]


def _vscsi(path: Path, records: int) -> None:
    """Writes to random addresses of 4 TiB, one per microsecond."""
    draw = np.random.default_rng(5)
    with path.open("wb") as out:
        for begin in range(0, records, 1 << 20):
            count = min(1 << 20, records - begin)
            rows = np.zeros(count, _RECORD)
            rows["len"], rows["cmd"], rows["ver"] = 4096, 0x2A, 0x100
            rows["lbn"] = draw.integers(0, 1 << 30, count) * 8
            rows["ts"] = np.arange(begin, begin + count)
            rows.tofile(out)


def _run(work: str, source: Path, target: Path) -> dict[str, float]:
    """One import in a separate process; Polars on one thread, as the rate is per core."""
    needs = "import polars as pl" if "pl." in work else _OURS
    done = subprocess.run(
        [sys.executable, "-c", _TELL.format(needs=needs, work=work), source, target], cwd=ROOT,
        env={**os.environ, "POLARS_MAX_THREADS": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told: dict[str, float] = json.loads(done.stdout)
    return told


def _write(path: Path, kind: str, records: int) -> None:
    """Seeded requests of two volumes: times, addresses and sizes as on a busy server."""
    made = random.Random(7)
    ticks = 0
    with path.open("w") as out:
        lines: list[str] = []
        for number in range(records):
            ticks += made.randrange(100, 20_000)
            offset, length = made.randrange(1 << 24) * 8, made.choice((8, 8, 16, 128))
            op = made.random() < 0.7
            if kind == "msr":
                lines.append(
                    f"{128166372003061629 + ticks},hm,{number & 1},{'Write' if op else 'Read'},"
                    f"{offset * 512},{length * 512},{made.randrange(100, 99_999)}\n"
                )
            else:
                seconds, rest = divmod(ticks * 100, 10**9)
                begin = f"  8,16 {number & 3:>3} {number:>8} {seconds:>5}.{rest:09d} 16766"
                end = f"{'W' if op else 'R'} {offset} + {length}"
                lines.append(f"{begin}  Q   {end} [flush-8:16]\n{begin}  C   {end} [0]\n")
            if len(lines) > 1 << 16:
                out.writelines(lines)
                lines.clear()
        out.writelines(lines)
