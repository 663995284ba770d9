"""The pause of an application that writes to three btrfs volumes: `mirrord group test` under a load
by fio, from the first request to pause until everything runs again; and what its parts take.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Row, filesystem, folder, median, need, run, service
from mirrord.core.pause import MemberPause
from tests.support.cgroups import Cgroup, cgroup

ROUNDS = 100
BATCH = 10
VOLUMES = ("a", "b", "c")
#: 8 KiB random writes with a rate that a database may have, synced as one does.
LOAD = ["--rw=randwrite", "--bs=8k", "--size=64m", "--ioengine=psync", "--fdatasync=8"]
PACE = ["--rate_iops=400", "--time_based", "--runtime=600", "--group_reporting"]


def measure() -> list[Row]:
    """Volumes on one file system, and each on its own; and in memory: without the disk."""
    need("fio", "fio")
    return [
        *_measured("one file system", apart=False),
        *_measured("three", apart=True),
        *_measured("three in memory", apart=True, memory=True),
    ]


def _measured(name: str, *, apart: bool, memory: bool = False) -> list[Row]:
    with ExitStack() as stack:
        inside = stack.enter_context(folder())
        images = inside
        if memory:
            images = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        app = stack.enter_context(cgroup())
        count = len(VOLUMES) if apart else 1
        mounts = [
            stack.enter_context(filesystem(images, f"source{number}", 4)) for number in range(count)
        ]
        there = stack.enter_context(filesystem(images, "copy", 4))
        ends = []
        for number, volume in enumerate(VOLUMES):
            source = mounts[number % count] / volume
            run("btrfs", "subvolume", "create", source)
            ends.append((source, f"btrfs:{source}=btrfs:{there / volume}"))
        api = service(inside)
        api.create("db", members=tuple(end for _, end in ends), pause=f"cgroup:{app.name}")
        file = api.definitions.file("db")
        file.write_text('pause_max = "60s"\n' + file.read_text())
        api.initialize("db")
        for source, _ in ends:
            _load(app, str(source))
        time.sleep(3)
        found: list[MemberPause] = []
        for _ in range(ROUNDS // BATCH):
            pauses = api.pause_once("db", count=BATCH).pauses
            found += [max(one.members, key=lambda member: member.pause_ms) for one in pauses]
        api.close()
    return _rows(name, found)


def _load(app: Cgroup, source: str) -> None:
    words = ["fio", "--name=load", f"--directory={source}", *LOAD, *PACE]
    app.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _rows(name: str, found: list[MemberPause]) -> list[Row]:
    whole = [one.pause_ms for one in found]
    parts = ", ".join(
        f"{part} {median([getattr(one, part + '_ms') for one in found]):.1f}"
        for part in ("confirm", "snapshot", "resume")
    )
    late = statistics.quantiles(whole, n=100)[98]
    return [
        Row(f"pause, {name}: median", median(whole), "ms", "<=", 50, note=f"{parts} ms"),
        Row(f"pause, {name}: 99 %", late, "ms", "<=", 100, note=f"longest {max(whole):.0f} ms"),
    ]
