"""Recording: finding the changes of a large volume at each interval; a fully loaded device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import (
    Row,
    environment,
    filesystem,
    folder,
    median,
    mirrord_command,
    need,
    run,
    timed,
)
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.traces.store import TraceFile

_EXTENTS = 400_000
_CHANGED = 1000
_SECONDS = 8
_DEVICE_BYTES = 1 << 30


def measure() -> list[Row]:
    """Both."""
    return [*_look(), *_device()]


def _look() -> list[Row]:
    with folder() as inside, filesystem(inside, "one", 6) as one:
        home = one / "home"
        run("btrfs", "subvolume", "create", home)
        block = os.urandom(4096)
        with (home / "large").open("wb") as file:
            for index in range(_EXTENTS):
                os.pwrite(file.fileno(), block, index * 8192)
        driver = BtrfsDriver(str(home))
        base, took = driver.take_snapshot("0"), []
        for number in range(1, 5):
            with (home / "large").open("r+b") as file:
                for index in range(_CHANGED):
                    os.pwrite(file.fileno(), block, (index * 397 + number) % _EXTENTS * 8192)
            newer = driver.take_snapshot(str(number))
            took.append(_changes(driver, base.guid, newer.guid))
            base = newer
    return [
        Row(
            f"{_EXTENTS:,} extents, {_CHANGED:,} changed: a look",
            median(took[1:]) * 1e3,
            "ms",
            "<=",
            1000,
            note=f"the first, of both snapshots: {took[0] * 1e3:.0f} ms",
        ),
    ]


def _changes(driver: BtrfsDriver, base: str, newer: str) -> float:
    return timed(lambda: driver.changes(base, newer))


def _device() -> list[Row]:
    """4 KiB random writes with direct I/O to a device in memory, with and without recording."""
    need("fio", "fio")
    alone, recorded = [], []
    with folder() as inside, _loop() as device, _tracefs(inside):
        for _ in range(2):
            alone.append(_fio(device))
            out = inside / "out.parquet"
            command = mirrord_command("trace", "record", device, "-o", str(out))
            recorder = subprocess.Popen(
                command, env=environment(inside), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
            assert recorder.stderr is not None and b"recording" in recorder.stderr.readline()
            recorded.append(_fio(device))
            recorder.send_signal(signal.SIGINT)
            assert recorder.wait() == 0
        trace = TraceFile(out)
        lost = int(trace.facts.notes["lost"])
    return [
        Row(
            "a device's requests while they are recorded",
            max(recorded),
            "1/s",
            ">=",
            0.7 * max(alone),
            "not recorded",
            max(alone),
        ),
        Row(f"  of {trace.records:,} requests lost", lost, "", "<=", 0),
    ]


def _fio(device: str) -> float:
    """Requests per second."""
    said = run(
        "fio",
        "--name=w",
        f"--filename={device}",
        "--rw=randwrite",
        "--bs=4k",
        "--direct=1",
        "--ioengine=psync",
        "--numjobs=2",
        "--group_reporting",
        "--time_based",
        f"--runtime={_SECONDS}",
        "--output-format=json",
    )
    return float(json.loads(said)["jobs"][0]["write"]["iops"])


@contextmanager
def _loop() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="mirrord-bench-") as image:
        image.truncate(_DEVICE_BYTES)
        device = run("losetup", "--find", "--show", image.name).strip()
        try:
            yield device
        finally:
            run("losetup", "--detach", device)


@contextmanager
def _tracefs(inside: Path) -> Iterator[None]:
    """Mounted somewhere."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    if any(line.split(" ")[2] == "tracefs" for line in mounts):
        yield
        return
    place = inside / "tracefs"
    place.mkdir()
    run("mount", "-t", "tracefs", "tracefs", place)
    try:
        yield
    finally:
        run("umount", place)
