"""The pause by the size of a btrfs volume and by how much of it is in use: a snapshot shares
everything with its volume, so neither may matter (flat within noise).

Files are allocated, not written (`fallocate`): the extents and their metadata are those of full
volumes, while the images stay sparse.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Row, filesystem, folder, median, need, run, service
from tests.support.cgroups import cgroup

SIZES_GIB = tuple(map(int, os.environ.get("MIRRORD_BENCH_SIZES", "1,10,100").split(",")))
SHARES = {"empty": 0.0, "half full": 0.5, "80 % full": 0.8}
ROUNDS = int(os.environ.get("MIRRORD_BENCH_ROUNDS", "50"))
#: So large is a file of the volume, in MiB.
FILE_MIB = 16
LOAD = ["--rw=randwrite", "--bs=8k", "--size=16m", "--ioengine=psync", "--fdatasync=8"]
PACE = ["--rate_iops=100", "--time_based", "--runtime=900", "--group_reporting"]


def measure() -> list[Row]:
    """Each size, with each share in use."""
    need("fio", "fio")
    found = {
        (size, share): _measured(size, SHARES[share]) for size in SIZES_GIB for share in SHARES
    }
    first = next(iter(found.values()))
    rows = [
        Row(
            f"pause, {size} GiB, {share}: median",
            median(whole),
            "ms",
            "<=",
            50,
            note=f"longest {max(whole):.0f} ms",
        )
        for (size, share), whole in found.items()
    ]
    slowest = max(median(whole) for whole in found.values())
    rows.append(
        Row(
            "pause, slowest of these against the first", slowest / median(first), "times", "<=", 1.5
        )
    )
    return rows


def _measured(size_gib: int, share: float) -> list[float]:
    """The pauses of one volume, in milliseconds."""
    with ExitStack() as stack:
        inside = stack.enter_context(folder())
        images = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        app = stack.enter_context(cgroup())
        here = stack.enter_context(filesystem(images, "source", size_gib))
        there = stack.enter_context(filesystem(images, "copy", size_gib))
        api = service(inside)
        stack.callback(api.close)
        source = here / "a"
        run("btrfs", "subvolume", "create", source)
        api.create(
            "db", members=(f"btrfs:{source}=btrfs:{there / 'a'}",), pause=f"cgroup:{app.name}"
        )
        file = api.definitions.file("db")
        file.write_text('pause_max = "60s"\n' + file.read_text())
        api.initialize("db")
        for number in range(int(share * size_gib * 1024 / FILE_MIB)):
            run("fallocate", "-l", f"{FILE_MIB}MiB", source / f"file{number}")
        run("sync", "-f", source)
        words = ["fio", "--name=load", f"--directory={source}", *LOAD, *PACE]
        app.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(3)
        return [one.longest_ms for one in api.pause_once("db", count=ROUNDS).pauses]
