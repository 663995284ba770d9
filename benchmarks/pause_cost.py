"""What cycles cost an application: writes within a minute by fio, synced as a database does it, to
three btrfs volumes, with an update every ten seconds, against the same without mirrord (the paper:
1.6 % for one snapshot a minute).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Row, filesystem, folder, median, need, run, service
from tests.support.cgroups import Cgroup, cgroup

SECONDS = int(os.environ.get("MIRRORD_BENCH_SECONDS", "60"))
EVERY_S = 10.0
#: Without and with cycles in turn, so that a machine that becomes slower does not decide.
PAIRS = int(os.environ.get("MIRRORD_BENCH_PAIRS", "3"))
VOLUMES = ("a", "b", "c")
LOAD = ["--rw=randwrite", "--bs=8k", "--size=64m", "--ioengine=psync", "--fdatasync=8"]


def measure() -> list[Row]:
    """Full speed, and a rate that leaves some of the machine for the transfers."""
    need("fio", "fio")
    return [*_measured("at full speed", ()), *_measured("300 a second", ("--rate_iops=100",))]


def _measured(name: str, pace: tuple[str, ...]) -> list[Row]:
    with ExitStack() as stack:
        inside = stack.enter_context(folder())
        images = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        app = stack.enter_context(cgroup())
        mounts = [stack.enter_context(filesystem(images, f"source{one}", 2)) for one in VOLUMES]
        there = stack.enter_context(filesystem(images, "copy", 6))
        sources = [mount / "volume" for mount in mounts]
        for source in sources:
            run("btrfs", "subvolume", "create", source)
        ends = [
            f"btrfs:{one}=btrfs:{there / name}" for one, name in zip(sources, VOLUMES, strict=True)
        ]
        api = service(inside)
        stack.callback(api.close)
        api.create("db", members=tuple(ends), pause=f"cgroup:{app.name}")
        file = api.definitions.file("db")
        file.write_text('pause_max = "60s"\n' + file.read_text())
        api.initialize("db")
        _writes(app, inside, sources, pace, 5, lambda: None)  # the files are there from now on
        without, during = list[float](), list[float]()
        for _ in range(PAIRS):
            without.append(_writes(app, inside, sources, pace, SECONDS, lambda: None))
            during.append(_writes(app, inside, sources, pace, SECONDS, lambda: api.update("db")))
    cost = 100 * (1 - median(during) / median(without))
    note = f"{median(during):.0f} against {median(without):.0f} writes a second, {PAIRS} pairs"
    return [Row(f"cost of a cycle every 10 s, {name}", cost, "%", "<=", 5, note=note)]


def _writes(
    app: Cgroup,
    inside: Path,
    sources: list[Path],
    pace: tuple[str, ...],
    seconds: int,
    cycle: Callable[[], object],
) -> float:
    """Writes a second of an application; `cycle` is called every ten seconds."""
    out = inside / "fio.json"
    jobs = [word for one in sources for word in (f"--name={one.parent.name}", f"--directory={one}")]
    words = ["fio", "--output-format=json", f"--output={out}", "--name=global", *LOAD, *pace]
    words += ["--time_based", f"--runtime={seconds}", *jobs]
    began_s, cycles = time.monotonic(), 0
    process = app.run(words)
    while process.poll() is None:
        if time.monotonic() - began_s >= (cycles + 0.5) * EVERY_S:
            cycles += 1
            cycle()
        time.sleep(0.05)
    assert process.returncode == 0, f"fio failed with {process.returncode}"
    found: list[float] = [job["write"]["iops"] for job in json.loads(out.read_text())["jobs"]]
    return sum(found)
