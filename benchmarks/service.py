"""The running daemon: 500 mirrors, the smallest period, the status command, rates.

Measurements over time run for MIRRORD_BENCH_MINUTES (10).
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Row,
    environment,
    filesystem,
    folder,
    median,
    mirrord_command,
    need,
    run,
    service,
    timed,
)
from mirrord.control.client import VERSION
from mirrord.drivers.block.volume import Volume
from tests.support.service import processor_s

MIRRORS = 500
MINUTES = float(os.environ.get("MIRRORD_BENCH_MINUTES", "10"))
_SAMPLE_S = 5.0


class Daemon:
    """A daemon as a process, with the kernel's statistics on it."""

    def __init__(self, inside: Path) -> None:
        self.inside = inside
        self.run = inside / "mirrord" / "run"
        self._log = (inside / "daemon.log").open("ab")
        self.process = subprocess.Popen(
            mirrord_command("daemon"), env=environment(inside), stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + 120
        while b"ready: " not in (inside / "daemon.log").read_bytes():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)

    def cpu_s(self) -> float:
        return processor_s(self.process.pid)

    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found
        return int(found[1]) << 10

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def get(self, path: str, body: str | None = None) -> str:
        connection = http.client.HTTPConnection("mirrord")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.run / "control.sock"))
        connection.request("GET" if body is None else "POST", path, body)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def rows(self) -> list[dict[str, Any]]:
        lines = self.get(f"/{VERSION}/status", "{}").splitlines()
        return list(json.loads(lines[-1])["result"])

    def runs(self) -> dict[str, float]:
        """Successful runs, by mirror."""
        found: dict[str, float] = {}
        for line in self.get("/metrics").splitlines():
            if line.startswith("mirrord_runs_total{") and "asked" not in line:
                assert 'result="done"' in line or 'result="unchanged"' in line, line
                name = re.search(r'mirror="([^"]+)"', line)
                assert name
                found[name[1]] = found.get(name[1], 0) + float(line.split()[-1])
        return found

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=120)
        self._log.close()


@contextmanager
def daemon(inside: Path) -> Iterator[Daemon]:
    made = Daemon(inside)
    try:
        yield made
    finally:
        made.stop()


def measure() -> list[Row]:
    return [*many_mirrors(), *smallest_period(), *rates()]


def many_mirrors() -> list[Row]:
    """500 mirrors of idle block volumes, each once a minute."""
    with folder() as inside:
        api = service(inside)
        for number in range(MIRRORS):
            with Volume.create(inside / f"v{number}", 1 << 20) as volume:
                volume.write(0, b"x" * 4096)
            name = f"m{number:03}"
            api.create(
                name, f"block:{inside}/v{number}", f"block:{inside}/c{number}", schedule="every 60s"
            )
            api.initialize(name)
        api.close()
        with daemon(inside) as running:
            time.sleep(65)  # the first round, and slots missed while the mirrors were created
            before, cpu, began = running.runs(), running.cpu_s(), time.monotonic()
            memory, worst_lag = 0, 0.0
            while time.monotonic() - began < MINUTES * 60:
                time.sleep(_SAMPLE_S)
                memory = max(memory, running.memory_bytes())
                worst_lag = max(worst_lag, *(float(row["lag_s"]) for row in running.rows()))
            passed, used = time.monotonic() - began, running.cpu_s() - cpu
            after = running.runs()
            missed = sum(
                max(0, int(passed // 60) - round(after[name] - before[name])) for name in after
            )
            words, variables = mirrord_command("status"), environment(inside)
            status = median([timed(lambda: _quiet(words, variables)) for _ in range(9)])
        assert len(after) == MIRRORS
    return [
        Row(f"{MIRRORS} mirrors every 60 s, {MINUTES:g} min: slots missed", missed, "", "<=", 0),
        Row("  greatest lag", worst_lag, "s", "<=", 66),
        Row("  daemon, of one core", 100 * used / passed, "%", "<=", 25),
        Row("  daemon, memory", memory / 2**20, "MiB", "<=", 250),
        Row("  command status", status, "s", "<=", 0.3),
    ]


def _quiet(words: list[str], variables: dict[str, str]) -> None:
    subprocess.run(words, env=variables, check=True, capture_output=True)


def smallest_period() -> list[Row]:
    """`every 1s` on local btrfs, while fio writes 1 MB/s: no growth, and no run falls behind."""
    fio = need("fio", "fio")
    with (
        folder() as inside,
        filesystem(inside, "one", 4) as one,
        filesystem(inside, "two", 4) as two,
    ):
        home = one / "home"
        run("btrfs", "subvolume", "create", home)
        api = service(inside)
        api.create("home", f"btrfs:{home}", f"btrfs:{two}/home", schedule="every 1s")
        api.initialize("home")
        api.close()
        seconds = MINUTES * 60
        writer = subprocess.Popen(
            [fio, "--name=w", f"--filename={home}/data", "--rw=randwrite", "--bs=4k",
             "--rate=1000k", "--size=64m", "--time_based", f"--runtime={seconds + 30:.0f}",
             "--ioengine=psync", "--randrepeat=0", "--refill_buffers"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            with daemon(inside) as running:
                time.sleep(15)
                before, began = running.runs()["home"], time.monotonic()
                lags, memory, descriptors, snapshots = [], [], [], []
                while time.monotonic() - began < seconds:
                    time.sleep(0.5)
                    lags.append(float(running.rows()[0]["lag_s"]))
                    memory.append(running.memory_bytes())
                    descriptors.append(running.descriptors())
                    snapshots.append(len(list((one / ".mirrord/home/snapshots").iterdir())))
                passed = time.monotonic() - began
                rate = (running.runs()["home"] - before) / passed
        finally:
            writer.terminate()
            writer.wait()
    early, late = len(memory) // 5, len(memory) * 4 // 5
    growth = median([float(m) for m in memory[late:]]) - median([float(m) for m in memory[:early]])
    more = round(median([*map(float, descriptors[late:])]))
    more -= round(median([*map(float, descriptors[:early])]))
    lags.sort()
    return [
        Row(f"every 1s, fio writes 1 MB/s, {MINUTES:g} min: runs a second", rate, "/s", ">=", 0.99),
        Row("  lag, median", median(lags), "s", "<=", 1.5),
        Row("  lag, 99 of 100", lags[len(lags) * 99 // 100], "s", "<=", 3),
        Row(
            "  memory grown",
            growth / 2**20,
            "MiB",
            "<=",
            5,
            note=f"{max(memory) / 2**20:.0f} MiB at most",
        ),
        Row("  descriptors grown", more, "", "<=", 0),
        Row("  snapshots at the source", max(snapshots), "", "<=", 4),
    ]


def rates() -> list[Row]:
    """How exact a rate is over windows of 5 s, and how soon a running transfer follows a change."""
    worst, soonest = 0.0, 0.0
    with folder() as inside:
        for number, mib in enumerate((1, 5, 40)):
            error, taken = _one_rate(inside, number, mib)
            worst, soonest = max(worst, error), max(soonest, taken)
    return [
        Row("rates of 1, 5 and 40 MiB/s over 5 s: worst error", 100 * worst, "%", "<=", 3),
        Row("  a new rate holds after", soonest, "s", "<=", 1),
    ]


def _one_rate(inside: Path, number: int, mib: int) -> tuple[float, float]:
    with Volume.create(inside / f"r{number}", 2 << 30) as volume:
        for place in range(0, mib * 24, 4):
            volume.write(place << 20, os.urandom(4 << 20))
    api = service(inside)
    name = f"rate{number}"
    api.create(
        name, f"block:{inside}/r{number}", f"block:{inside}/d{number}", throttle=f"{mib}MiB/s"
    )
    transfer = subprocess.Popen(
        mirrord_command("initialize", name), env=environment(inside), stdout=subprocess.DEVNULL
    )
    samples = _samples(inside, name, 11.5)
    worst = 0.0
    for at, done in samples:
        for later, more in samples:
            if 4.95 <= later - at <= 5.05:
                worst = max(worst, abs((more - done) / (later - at) / (mib << 20) - 1))
    assert worst > 0, "no window of five seconds was seen"
    changed = time.monotonic()
    api.throttle(name, f"{mib / 4}MiB/s")
    after = _samples(inside, name, 2.5, skip=0)
    taken = 0.0
    for (at, done), (later, more) in zip(after, after[4:], strict=False):
        # Windows of 0.4 s that are still too fast by more than half.
        if (more - done) / (later - at) > 1.5 * (mib << 18):
            taken = max(taken, later - changed)
    transfer.terminate()
    transfer.wait()
    api.close()
    return worst, taken


def _samples(inside: Path, name: str, seconds: float, *, skip: int = 5) -> list[tuple[float, int]]:
    """(time, bytes done) as reported by the running transfer, ten times per second."""
    file = inside / "mirrord" / "run" / f"{name}.progress"
    found: list[tuple[float, int]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(0.02)
        try:
            stat = file.stat()
            done = int(json.loads(file.read_text()).get("done_bytes", 0))
        except (OSError, ValueError):
            continue
        moment = stat.st_mtime
        if done and (not found or found[-1][0] != moment):
            found.append((moment, done))
    offset = time.monotonic() - time.time()
    return [(moment + offset, done) for moment, done in found[skip:]]


if __name__ == "__main__":
    from benchmarks.harness import table

    print(table(measure()))
    sys.exit(0)
