"""Modes of a live mirror on a link that is too slow for synchronous mode: semi-sync, and the policy
`dynamic` by the daemon. The link is a proxy with a rate and a delay that change; fio writes by NBD.

Images and redo log are in memory, so that link and policy are measured. What the paper *Dynamic
synchronous/asynchronous replication* shows in Figures 7 to 10 is in the notes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Row, folder, median, need, run
from benchmarks.live import build
from mirrord.system import native
from tests.live.command import Mirror
from tests.live.lab import Client, wait_until
from tests.live.lab import Pair as Ends
from tests.support.ports import free_port

SIZE = 256 << 20
GBIT = 125_000_000
#: The latency that clients accept (the paper's).
MAX_LAT_MS = 4
MAX_RPO = 16 << 20
_WINDOW_S = 2
_HOLD_DOWN_S = 10
_SAMPLE_S = 0.05
_ROUNDS = 3
_LONG_S, _LONG_ROUNDS = 300, 6


class Load(NamedTuple):
    """What fio says of one run: mean latency in us."""

    iops: float
    latency_us: float


class Sample(NamedTuple):
    """What the primary said. at_s: monotonic."""

    at_s: float
    state: str
    outstanding: int
    lag_bytes: int


class Link:
    """The proxy between both ends."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        words = [str(build().with_name("delay-proxy")), f"127.0.0.1:{self.port}"]
        words += [f"127.0.0.1:{target}", "0"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)

    def set(self, *, rate: int, round_trip_us: int) -> None:
        """rate: bytes per second, 0: any."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{round_trip_us} {rate}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class Pair:
    """A live mirror on such a link, with a daemon, and what its primary says meanwhile."""

    def __init__(self, inside: Path, *words: str, is_sampled: bool = True) -> None:
        self.mirror = Mirror(inside, size=SIZE)
        self.samples: list[Sample] = []
        self._is_over = threading.Event()
        self.mirror.initialize(*words)
        definition = self.mirror.home.folder / "etc/mirrors.d/db.toml"
        text = definition.read_text().replace("[dynamic]", f'[dynamic]\nwindow = "{_WINDOW_S}s"')
        definition.write_text(text)
        file = self.mirror.source.store / "end.json"
        end = json.loads(file.read_text())
        self.link = Link(int(end["peer"].rpartition(":")[2]))
        file.write_text(json.dumps({**end, "peer": f"127.0.0.1:{self.link.port}"}))
        self.mirror.source.kill()
        self.mirror.home.start_daemon()
        self.mirror.home.run("serve", "db")
        self.wait_for("in-sync", 60)
        self._sampler = threading.Thread(target=self._sample)
        if is_sampled:
            self._sampler.start()

    def close(self) -> None:
        self._is_over.set()
        if self._sampler.is_alive():
            self._sampler.join()
        self.mirror.close()
        self.link.close()

    def status(self, end: str = "source") -> dict[str, Any]:
        control = getattr(self.mirror, end).store / "control"
        words = [native.live_program(), "ctl", str(control), "status"]
        said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
        found = json.loads(said)
        assert isinstance(found, dict)
        return found

    def wait_for(self, state: str, seconds: float) -> bool:
        """Whether it came to be in that state."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            with contextlib.suppress(subprocess.SubprocessError):
                if self.status()["state"] == state:
                    return True
            time.sleep(_SAMPLE_S)
        return False

    def _sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            found = self.status()
            lag = found["lag_bytes"] if found["state"] == "semi-sync" else 0
            at_s = time.monotonic()
            count = found["outstanding_requests"]
            self.samples.append(Sample(at_s, found["state"], count, lag))

    def changes(self, since_s: float) -> list[str]:
        """The states one after the other since then."""
        states: list[str] = []
        for each in self.samples:
            if each.at_s >= since_s and each.state in ("in-sync", "semi-sync", "async"):
                states += [] if states and states[-1] == each.state else [each.state]
        return states

    def fio(self, depth: int, seconds: float, *words: str) -> Load:
        """Random writes of 8 KiB."""
        command = ["fio", "--name=j", "--ioengine=nbd", f"--uri={self.mirror.home.uri()}"]
        command += ["--rw=randwrite", "--bs=8k", f"--iodepth={depth}", f"--size={SIZE}"]
        command += ["--norandommap", "--time_based", "--refill_buffers", f"--runtime={seconds}"]
        command += ["--output-format=json", *words]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        write = json.loads(said.stdout[said.stdout.index("{") :])["jobs"][0]["write"]
        return Load(write["iops"], write["lat_ns"]["mean"] / 1000)


@contextlib.contextmanager
def _pair(inside: Path, *words: str) -> Iterator[Pair]:
    inside.mkdir()
    pair = Pair(inside, *words)
    try:
        yield pair
    finally:
        pair.close()


def _dynamic(*words: str) -> tuple[str, ...]:
    keys = (f"--max-lat={MAX_LAT_MS}ms", f"--hold-down={_HOLD_DOWN_S}s")
    return ("--policy", "dynamic", *keys, *words)


def measure() -> list[Row]:
    need("fio", "fio")
    rows: list[Row] = []
    with folder() as inside, in_memory(inside) as memory:
        parts = (
            _redo,
            _redo_for_long,
            _answers,
            _depths,
            _headline,
            _burst,
            _overload,
            _square_wave,
            _evening,
        )
        for part in parts:
            place = memory / part.__name__
            found = part(place)
            for row in found:
                print(row.name, f"{row.value:.3g}", row.unit, row.note, flush=True)
            rows += found
            shutil.rmtree(place)
    return rows


@contextlib.contextmanager
def in_memory(inside: Path) -> Iterator[Path]:
    """A file system in memory. (Below /dev, where one is mounted, images are taken for devices.)"""
    run("mount", "-t", "tmpfs", "-o", "size=4g", "mirrord-bench", inside)
    try:
        yield inside
    finally:
        # (A process of a mirror that was deleted may still be ending.)
        run("umount", "--lazy", inside)


def _redo(inside: Path) -> list[Row]:
    """Semi-sync beside sync, in turns, on a link that limits neither."""
    inside.mkdir()
    found: dict[str, list[Load]] = {"sync": [], "semi-sync": []}
    with (
        _pair(inside / "sync", "--policy", "sync") as one,
        _pair(inside / "semi", "--policy", "semi-sync") as other,
    ):
        other.wait_for("semi-sync", 60)
        for pair in (one, other):
            pair.fio(16, 2)
        for _ in range(_ROUNDS):
            found["sync"].append(one.fio(16, 5))
            found["semi-sync"].append(other.fio(16, 5))
        least = other.status("destination")["redo_operations"]
    sync, semi = (median([each.iops for each in found[name]]) for name in found)
    note = f"{semi:.0f} to {sync:.0f} IOPS; {least or 0} operations left in the redo log"
    return [Row("qd16: semi-sync to sync", semi / sync, "x", ">=", 0.7, note=note)]


def _redo_for_long(inside: Path) -> list[Row]:
    """Whether the secondary applies its redo log as fast as it grows, for 5 minutes."""
    left: list[int] = []
    with _pair(inside, "--policy", "semi-sync") as pair:
        pair.wait_for("semi-sync", 60)
        rates = []
        for _ in range(_LONG_ROUNDS):
            rates.append(pair.fio(16, _LONG_S / _LONG_ROUNDS).iops)
            left.append(pair.status("destination")["redo_operations"] or 0)
    ratio = min(rates) / max(rates[:1])
    note = f"{min(rates):.0f} to {rates[0]:.0f} IOPS; operations left in the log: {left}"
    return [Row("qd16 for 5 min: slowest to first", ratio, "x", ">=", 0.7, note=note)]


def _answers(inside: Path) -> list[Row]:
    """One write after the other, a millisecond apart, in turns to a mirror in semi-sync and to one
    without its secondary: what else the machine does meets both alike.
    """
    ends = {"semi-sync": "semi-sync", "async": "out-of-sync"}
    for mode in ends:
        (inside / mode).mkdir(parents=True)
    program = Path(native.live_program())
    pairs = {mode: Ends(program, inside / mode) for mode in ends}
    took: dict[str, list[float]] = {mode: [] for mode in ends}
    with contextlib.ExitStack() as stack:
        for mode, pair in pairs.items():
            stack.callback(pair.stop)
            pair.start()
            pair.primary.ask(f"window {SIZE}")
            pair.primary.ask(f"mode {mode}")
            wait_until(partial(pair.primary.is_state, ends[mode]), mode)
        pairs["async"].secondary.kill()
        clients = {mode: stack.enter_context(Client(pairs[mode].primary)) for mode in ends}
        for number in range(8000):
            for mode, client in clients.items():
                began_s = time.perf_counter()
                assert client.write(number * 7919 % 1000 * 8192, bytes(8192)) == 0
                took[mode].append((time.perf_counter() - began_s) * 1e6)
                time.sleep(0.001)
    semi, alone = median(took["semi-sync"]), median(took["async"])
    note = f"{semi:.0f} and {alone:.0f} us"
    return [Row("semi-sync: latency to that without it", semi / alone, "x", "<=", 1.2, note=note)]


def _depths(inside: Path) -> list[Row]:
    """200 Mbit/s: 8 KiB take 0.33 ms, so that 12 outstanding writes take 4 ms."""
    with _pair(inside, *_dynamic()) as pair:
        pair.link.set(rate=GBIT // 5, round_trip_us=0)
        began_s, left = time.monotonic(), 0
        for depth in (1, 4, 8, 10, 11, 12, 13, 14, 15, 16, 20, 32):
            pair.fio(depth, 2 * _WINDOW_S)
            if pair.status()["state"] == "semi-sync":
                left = depth
                break
        pair.fio(32, 10)
        quiet_s, lag = time.monotonic(), pair.status()["lag_limit_bytes"] or 0
        writer = threading.Thread(target=lambda: pair.fio(1, 13 * _HOLD_DOWN_S))
        writer.start()
        pair.wait_for("in-sync", 12 * _HOLD_DOWN_S)
        took_s = time.monotonic() - quiet_s
        writer.join()
        states = pair.changes(began_s)
    note = f"then 32 for 10 s, then 1: {', '.join(states)}"
    # A client that never pauses keeps half of the link.
    least_s = lag / (GBIT // 10)
    return [
        Row("200 Mbit/s: sync left at", left, "writes", ">=", 12, note="wanted: 12 to 16"),
        Row("200 Mbit/s: changes of the mode", len(states) - 1, "", "<=", 2, note=note),
        Row(
            "200 Mbit/s: in sync again with 1",
            took_s,
            "s",
            "<=",
            least_s + 2 * _HOLD_DOWN_S,
            note=f"M was {lag >> 20} MiB",
        ),
    ]


def _headline(inside: Path) -> list[Row]:
    """1 Gbit/s, 14 outstanding writes, a round trip that grows from 3.9 to 4.2 ms."""
    with _pair(inside, *_dynamic()) as pair:
        pair.link.set(rate=GBIT, round_trip_us=3500)
        before = pair.fio(14, 6)
        state = pair.status()["state"]
        pair.link.set(rate=GBIT, round_trip_us=4200)
        pair.fio(14, 6)
        after = pair.fio(14, 10)
    note = f"before {before.iops:.0f} IOPS, {before.latency_us / 1000:.2f} ms ({state})"
    return [
        Row("1 Gbit/s, 4.2 ms: IOPS", after.iops, "", ">=", 12000, note=note),
        Row("1 Gbit/s, 4.2 ms: latency", after.latency_us / 1000, "ms", "<=", 1.3),
    ]


def _burst(inside: Path) -> list[Row]:
    """For 10 s 1.5 times what the link carries, whatever is answered."""
    rate = GBIT // 5
    iops = 3 * rate // 2 // 8192
    words = (f"--rate_iops={iops}", "--rate_process=linear")
    inside.mkdir()
    with _pair(inside / "alone", "--policy", "async") as alone:
        local = alone.fio(64, 10, *words)
    with _pair(inside / "pair", "--policy", "semi-sync", "--window", "256M") as pair:
        pair.wait_for("semi-sync", 60)
        pair.link.set(rate=rate, round_trip_us=200)
        found = pair.fio(64, 10, *words)
        lag = max(each.lag_bytes for each in pair.samples)
    ratio = found.latency_us / local.latency_us
    note = f"{found.latency_us:.0f} to {local.latency_us:.0f} us, {iops} IOPS, lag {lag >> 20} MiB"
    return [Row("burst of 1.5 x 200 Mbit/s: latency", ratio, "x", "<=", 1.2, note=note)]


def _overload(inside: Path) -> list[Row]:
    """More than the link carries, for a minute."""
    with _pair(inside, *_dynamic("--max-rpo", str(MAX_RPO))) as pair:
        pair.link.set(rate=GBIT // 5, round_trip_us=200)
        found = pair.fio(32, 60)
        lag = max(each.lag_bytes for each in pair.samples)
    note = f"{found.iops:.0f} IOPS, {len(pair.samples)} samples"
    return [Row("overload for 60 s: lag to max_rpo", lag / MAX_RPO, "x", "<=", 1, note=note)]


def _square_wave(inside: Path) -> list[Row]:
    """A link whose round trip alternates between 0.2 and 8 ms, 3 s each, for a minute, then not."""
    with _pair(inside, *_dynamic()) as pair:
        began_s = time.monotonic()
        writer = threading.Thread(target=lambda: pair.fio(4, 60 + 4 * _HOLD_DOWN_S))
        writer.start()
        for number in range(20):
            pair.link.set(rate=GBIT, round_trip_us=200 if number % 2 else 8000)
            time.sleep(3)
        pair.link.set(rate=GBIT, round_trip_us=200)
        writer.join()
        states = pair.changes(began_s)
    note = ", ".join(states)
    return [Row("square wave: changes of the mode", len(states) - 1, "", "<=", 6, note=note)]


def _evening(inside: Path) -> list[Row]:
    """The paper's evening, a fifth of its rate and faster: a load that comes near the link's rate,
    in requests of 24 KiB at random times, between two quiet times.
    """
    link, length = GBIT // 5, 24 << 10
    loads = [0.3, *(share / 125 for share in (80, 115, 95, 115, 80)), 0.3, 0.3]
    with _pair(inside, *_dynamic()) as pair:
        pair.link.set(rate=link, round_trip_us=200)
        began_s = time.monotonic()
        for load in loads:
            iops = round(load * link / length)
            pair.fio(64, 12, f"--bs={length}", f"--rate_iops={iops}", "--rate_process=poisson")
        states = pair.changes(began_s)
    lag = max(each.lag_bytes for each in pair.samples)
    note = f"{', '.join(states)}; lag at most {lag >> 10} KiB"
    return [
        Row("an evening of 80 to 115 of 125 MB/s: changes", len(states) - 1, "", "<=", 2, note=note)
    ]
