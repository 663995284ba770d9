"""What synchronous mirroring costs on disks of a limited rate: the same end without a secondary, in
turns, beside the figures of the VMstore paper (43, 11 and 7 % at 8, 64 and 256 KiB).

The images are loop devices in memory whose writes the kernel limits, by the blkio controller of
cgroup v1 or the io controller of v2. Writes are flushed, as the cache would take them otherwise.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, need, run, timed
from benchmarks.live import Devices, Makers, build, medians, mirrord, plain

#: Of each disk, bytes per second.
RATE = 64 << 20
SIZE = 256 << 20
#: A block size in KiB, and the loss of throughput in the paper.
PAPER = ((8, 43), (64, 11), (256, 7))
_DEPTH = 16
_FLUSHES = "--fsync=16"


def measure() -> list[Row]:
    """The loss of throughput, first with a client that writes as fast as it can, then with one
    whose rate is half of what the end without a secondary reached.
    """
    need("fio", "fio")
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(dir="/var/tmp") as disk,
        _devices(Path(memory)) as (alone, pair),
    ):
        _prove(alone)
        rows = []
        for kib, percent in PAPER:
            makers: Makers = {
                "mirrord": lambda folder: mirrord(folder, Path(disk), devices=pair),
                "none": lambda folder: plain(folder, build(), alone),
            }
            words = (f"--bs={kib}k", _FLUSHES)
            found = medians(makers, Path(memory), _DEPTH, *words)
            ours, base = found["mirrord"], found["none"]
            note = f"{ours.iops:.0f} to {base.iops:.0f} IOPS; the paper: {percent} %"
            cost = 100 * (1 - ours.iops / base.iops)
            rows.append(Row(f"{kib} KiB: cost of sync", cost, "%", "<=", percent, note=note))
            half = max(1, round(base.iops / 2))
            found = medians(makers, Path(memory), _DEPTH, *words, f"--rate_iops={half}")
            ours, base = found["mirrord"], found["none"]
            cost = 100 * (1 - ours.iops / base.iops)
            note = f"latency {ours.latency_us:.0f} to {base.latency_us:.0f} us, {half} IOPS asked"
            name = f"{kib} KiB: cost of sync, client at half rate"
            rows.append(Row(name, cost, "%", "<=", percent, note=note))
        return rows


@contextlib.contextmanager
def _devices(memory: Path) -> Iterator[tuple[Devices, Devices]]:
    """Of an end without a secondary, twice the same, and of a mirror."""
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(_loop(memory / f"disk{number}")) for number in range(3)]
        group = stack.enter_context(_capped(devices))
        alone, primary, secondary = devices
        yield Devices(alone, alone, SIZE, group), Devices(primary, secondary, SIZE, group)


@contextlib.contextmanager
def _loop(backing: Path) -> Iterator[Path]:
    with backing.open("wb") as file:
        file.truncate(SIZE)
    device = run("losetup", "--find", "--show", backing).strip()
    try:
        yield Path(device)
    finally:
        run("losetup", "--detach", device)


@contextlib.contextmanager
def _capped(devices: list[Path]) -> Iterator[Path]:
    """A control group whose writes to these devices are limited to `RATE` each."""
    parent, key, line = _controller()
    group = parent / f"mirrord-bench-{os.getpid()}"
    group.mkdir()
    try:
        for device in devices:
            number = device.stat().st_rdev
            text = line.format(major=os.major(number), minor=os.minor(number), rate=RATE)
            (group / key).write_text(text)
        yield group
    finally:
        deadline = time.monotonic() + 10
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        group.rmdir()


def _controller() -> tuple[Path, str, str]:
    """The folder of the controller, its file, and a line of it."""
    for mount in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = mount.split()
        controllers = Path(folder) / "cgroup.controllers"
        if kind == "cgroup" and "blkio" in options.split(","):
            file = "blkio.throttle.write_bps_device"
            return Path(folder), file, "{major}:{minor} {rate}"
        if kind == "cgroup2" and "io" in controllers.read_text().split():
            (Path(folder) / "cgroup.subtree_control").write_text("+io")
            return Path(folder), "io.max", "{major}:{minor} wbps={rate}"
    raise AssertionError("this kernel has no controller that limits the writes of a device")


def _prove(devices: Devices) -> None:
    """The limit applies to what a process of the group writes to the cache and syncs."""
    words = ["dd", "if=/dev/zero", f"of={devices.primary}", "bs=1M", "conv=fdatasync", "count=64"]
    script = f"echo $$ > {devices.group}/cgroup.procs && exec {' '.join(words)}"
    spent_s = timed(
        lambda: subprocess.run(["sh", "-c", script], check=True, stderr=subprocess.DEVNULL)
    )
    least_s = 0.8 * (64 << 20) / RATE
    assert spent_s > least_s, f"64 MiB in {spent_s:.2f} s: the limit does not apply"
