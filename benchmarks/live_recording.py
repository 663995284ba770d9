"""What a recording of a live mirror costs: writes per second with it and without, in turns.

`python -m benchmarks.live_recording FILE` records a run for the pictures of docs/policies.md: fewer
and more outstanding writes, as the paper's Figures 7 and 8 have them (*Dynamic
synchronous/asynchronous replication*), and a link that becomes slow and good again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Row, folder, median
from benchmarks.live_modes import Pair, in_memory
from mirrord.analysis.recorded import read
from tests.live.command import WORDS

_ROUNDS = 5
_SECONDS = 4.0
#: 40 Mbit/s and 25 miles: 8 KiB take 1.6 ms, so that 12 outstanding writes take 20 ms.
_RATE, _ROUND_TRIP_US = 5_000_000, 400
_DYNAMIC = ("--policy", "dynamic", "--max-lat=20ms", "--hold-down=5s")
_DEPTHS = (1, 2, 4, 6, 8, 10, 12, 14, 16)


@contextmanager
def recorded(pair: Pair, file: Path) -> Iterator[None]:
    """The mirror is recorded."""
    words = [*WORDS, "trace", "record", "db", "-o", str(file)]
    recorder = subprocess.Popen(words, env=pair.mirror.home.environment)
    while not pair.status()["recording"]:
        time.sleep(0.1)
    try:
        yield
    finally:
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(60) == 0


def measure() -> list[Row]:
    rows: list[Row] = []
    with folder() as inside, in_memory(inside) as memory:
        (memory / "pair").mkdir()
        pair = Pair(memory / "pair", "--policy", "sync", is_sampled=False)
        try:
            for depth in (1, 16):
                rows.append(_cost(pair, memory / "cost.live", depth))
        finally:
            pair.close()
    return rows


def _cost(pair: Pair, file: Path, depth: int) -> Row:
    found: dict[bool, list[float]] = {False: [], True: []}
    writes = dropped = 0
    pair.fio(depth, 1)
    for _ in range(_ROUNDS):
        found[False].append(pair.fio(depth, _SECONDS).iops)
        with recorded(pair, file):
            found[True].append(pair.fio(depth, _SECONDS).iops)
        recording = read(file)
        writes, dropped = writes + len(recording.writes), dropped + recording.dropped
    on, off = median(found[True]), median(found[False])
    note = f"{on:.0f} to {off:.0f} IOPS; {writes} writes recorded, {dropped} not"
    return Row(f"qd{depth}: recorded to not recorded", on / off, "x", ">=", 0.9, note=note)


def record_pictures(file: Path) -> None:
    """Record the run for the pictures."""
    with folder() as inside, in_memory(inside) as memory:
        (memory / "pair").mkdir()
        pair = Pair(memory / "pair", *_DYNAMIC, is_sampled=False)
        try:
            pair.link.set(rate=_RATE, round_trip_us=_ROUND_TRIP_US)
            with recorded(pair, file):
                for depth in _DEPTHS:
                    pair.fio(depth, 4)
                # Fewer writes than the link carries, so that M shrinks and sync is entered again.
                quiet = ("--rate_iops=200", "--rate_process=poisson")
                pair.fio(4, 25, *quiet)
                pair.link.set(rate=_RATE // 8, round_trip_us=_ROUND_TRIP_US)
                pair.fio(4, 10, *quiet)
                pair.link.set(rate=_RATE, round_trip_us=_ROUND_TRIP_US)
                pair.fio(4, 30, *quiet)
        finally:
            pair.close()


if __name__ == "__main__":
    record_pictures(Path(sys.argv[1]))
