"""Whether the simulation foresees what a live mirror does: real ones with the policy `dynamic`, on
a link of a limited rate, under workloads that are too much for it part of the time.

What the data path recorded of the clients' writes is given to the simulation, with the same policy,
link and keys. The clients write at fixed times, whatever they wait for, as the simulation assumes.
Images and redo log are on ext4 on a loop device in memory. (tmpfs alone takes half a second to
reserve a redo log, and writes wait meanwhile.)
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import Row, folder, run
from benchmarks.live_modes import SIZE, Pair, in_memory
from benchmarks.live_recording import recorded
from mirrord.analysis.modes import Link, Outcome, Scenario, simulate
from mirrord.analysis.recorded import Recording, lag_bytes, read, received_us
from mirrord.core.dynamickeys import DynamicKeys
from mirrord.core.live import Mode
from mirrord.policies.dynamic import Dynamic
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from tests.live.lab import Client
from tests.live.test_commands import Served
from tests.support.replays import balanced_accuracy

#: In the field `received` of a recording's writes.
_NOT_RECEIVED = 0xFFFFFFFF
#: 40 Mbit/s: 8 KiB take 1.6 ms.
RATE = 5_000_000
_ROUND_TRIP_S = 0.010
_KEYS = DynamicKeys(0.100, window_s=2.0, hold_down_s=4.0)
_BLOCK = 4096
#: With so many bytes on the way the link has no pause.
_BEHIND = 1_000_000


class Phase(NamedTuple):
    """load: of what the link carries."""

    seconds: float
    load: float


def _square() -> list[Phase]:
    return [Phase(5, 0.3), *[Phase(6, 1.25), Phase(20, 0.3)] * 3]


def _bursts() -> list[Phase]:
    return [Phase(5, 0.1), *[Phase(2.5, 2.0), Phase(18, 0.15)] * 4]


def _wander() -> list[Phase]:
    chosen = random.Random(7)
    return [Phase(chosen.uniform(1, 7), chosen.choice([0.1, 0.3, 0.5, 1.3])) for _ in range(22)]


#: By name: phases, and the sizes of writes in blocks.
WORKLOADS = {
    "square": (_square(), (2,)),
    "bursts": (_bursts(), (2,)),
    "wander": (_wander(), (1, 2, 4, 8)),
}


def arrivals(phases: list[Phase], sizes: tuple[int, ...], seed: int) -> Iterator[tuple[float, int]]:
    """When writes come (s), and their bytes: at random, at the rate of each phase."""
    chosen, at, end = random.Random(seed), 0.0, 0.0
    for phase in phases:
        end += phase.seconds
        mean = sum(sizes) / len(sizes) * _BLOCK
        while at < end:
            yield at, chosen.choice(sizes) * _BLOCK
            at += chosen.expovariate(phase.load * RATE / mean)


class OpenLoop:
    """A client that does not wait for answers."""

    def __init__(self, client: Client, writes: list[tuple[float, int]]) -> None:
        self._client, self._writes = client, writes

    def run(self) -> None:
        """Write everything in time; returns when all is answered."""
        receiver = threading.Thread(target=self._receive)
        receiver.start()
        chosen, began_s = random.Random(1), time.monotonic()
        data = chosen.randbytes(max(size for _, size in self._writes))
        for number, (at_s, size) in enumerate(self._writes, 1):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            offset = chosen.randrange((SIZE - size) // _BLOCK) * _BLOCK
            self._client.send(1, number, offset, data[:size])
        receiver.join()

    def _receive(self) -> None:
        for _ in self._writes:
            _, code = self._client.answer()
            assert code == 0, code


def measure() -> list[Row]:
    rows: list[Row] = []
    with folder() as inside, in_memory(inside) as memory, on_ext4(memory) as disk:
        for number, (name, (phases, sizes)) in enumerate(WORKLOADS.items()):
            file = memory / f"{name}.live"
            _record(disk / name, file, list(arrivals(phases, sizes, number)))
            rows += compare(name, file)
            shutil.rmtree(disk / name)
    return rows


@contextmanager
def on_ext4(memory: Path) -> Iterator[Path]:
    """A file system whose disk is in memory."""
    device, place = memory / "device", memory / "disk"
    place.mkdir()
    run("fallocate", "-l", "1200M", device)
    run("mkfs.ext4", "-q", "-E", "nodiscard", device)
    run("mount", "-o", "loop", device, place)
    try:
        yield place
    finally:
        run("umount", place)


def _record(inside: Path, file: Path, writes: list[tuple[float, int]]) -> None:
    """Record a live mirror under these writes."""
    inside.mkdir()
    keys = (f"--max-lat={_KEYS.max_lat_s * 1000:g}ms", f"--hold-down={_KEYS.hold_down_s:g}s")
    pair = Pair(inside, "--policy", "dynamic", *keys, is_sampled=False)
    try:
        pair.link.set(rate=RATE, round_trip_us=round(_ROUND_TRIP_S * 1e6))
        time.sleep(3)
        with recorded(pair, file), Client(Served(pair.mirror)) as client:
            OpenLoop(client, writes).run()
    finally:
        pair.close()


def link_rate(recording: Recording, lag: int) -> float | None:
    """What the link carried, bytes per second, in the seconds that began with such a lag (bytes);
    None: there was none.
    """
    received = received_us(recording)
    is_known = recording.writes["received"] != _NOT_RECEIVED
    edges = np.arange(recording.first_us, recording.last_us + 1, 1_000_000)
    length = recording.writes["length"][is_known].astype(np.float64)
    carried = np.histogram(received[is_known], edges, weights=length)[0]
    times, lags = lag_bytes(recording)
    before = np.searchsorted(times, edges[:-1], side="right") - 1
    is_busy = (before >= 0) & (np.append(lags, 0)[before] >= lag)
    return float(carried[is_busy].mean()) if is_busy.any() else None


def foreseen(file: Path, recording: Recording, rate: int) -> Outcome:
    """What the simulation says of the recorded arrivals on a link of this rate."""
    storage_s = float(np.median(recording.writes["local"])) / 1e6
    link = Link(rate, _ROUND_TRIP_S, storage_s)
    scenario = Scenario("dynamic", link, Dynamic(_KEYS), _KEYS.max_lat_s)
    with open_trace(str(file), options=ReadOptions()) as trace:
        span_ns = trace.first_ns, trace.last_ns
        return simulate(trace.batches(), trace.facts, span_ns, [scenario])[0]


def compare(name: str, file: Path) -> list[Row]:
    """The rows of a recorded run."""
    recording = read(file)
    # A busy host does not forward at the proxy's rate.
    rate = round(link_rate(recording, _BEHIND) or RATE)
    outcome = foreseen(file, recording, rate)
    begin_us = int(recording.writes["arrived"][0])
    end_us = int(recording.writes["arrived"][-1])
    modes = [(begin_us + at_ns // 1000, mode) for at_ns, mode in outcome.course.modes]
    accuracy = balanced_accuracy(recording.modes, modes, (begin_us, end_us))
    lag = int(lag_bytes(recording)[1].max(initial=0))
    outside, simulated = 1 - recording.share(Mode.SYNC), 1 - outcome.share(Mode.SYNC)
    note = (
        f"out of sync {100 * outside:.0f} % (simulated {100 * simulated:.0f} %), "
        f"{recording.changes} changes (simulated {outcome.changes}), "
        f"{len(recording.writes)} writes, {recording.dropped} not recorded, "
        f"the link carried {rate * 8 / 1e6:.0f} Mbit/s"
    )
    lags = f"{lag / 1e6:.2f} MB (simulated {outcome.peak_bytes / 1e6:.2f} MB)"
    error = 100 * abs(outcome.peak_bytes / max(1, lag) - 1)
    return [
        Row(f"{name}: balanced accuracy of the mode", 100 * accuracy, "%", ">=", 90, note=note),
        Row(f"{name}: error of the greatest lag", error, "%", "<=", 15, note=lags),
    ]
