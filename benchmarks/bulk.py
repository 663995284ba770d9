"""Bulk: 5 GiB of incompressible data, against plain send and receive; and the memory used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import ROOT, Row, environment, filesystem, folder, run, timed
from benchmarks.many_files import _send_receive

SIZE_GIB = int(os.environ.get("MIRRORD_BENCH_GIB", "5"))
ROUNDS = 2

#: Runs one command in a separate process, and reports its peak memory.
PEAK = """
import json, resource, sys, time
from mirrord.cli.main import run
started = time.perf_counter()
status = run(sys.argv[1:])
took = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"status": status, "took_s": took, "peak_bytes": peak}), file=sys.stderr)
"""


def measure() -> list[Row]:
    """Full transfers of one subvolume, alternating; the destination is removed in between."""
    free = shutil.disk_usage("/var/tmp").free
    size = SIZE_GIB if free > (4 * SIZE_GIB + 5) << 30 else 1
    with (
        folder() as inside,
        filesystem(inside, "one", 2 * size + 3) as one,
        filesystem(inside, "two", 2 * size + 3) as two,
    ):
        home = one / "home"
        run("btrfs", "subvolume", "create", home)
        for number in range(size * 4):
            with (home / f"file{number}").open("wb") as file:
                for _ in range(64):
                    file.write(os.urandom(4 << 20))
        os.sync()
        variables = environment(inside)
        ours, theirs, peaks = [], [], []
        for number in range(ROUNDS):
            snapshot = one / f"plain.{number}"

            def peer(snapshot: Path = snapshot) -> None:
                run("btrfs", "subvolume", "snapshot", "-r", home, snapshot)
                _send_receive(None, snapshot, two)

            def plain(snapshot: Path = snapshot, peer: Callable[[], None] = peer) -> None:
                theirs.append(timed(peer))
                run("btrfs", "subvolume", "delete", "-c", two / snapshot.name)
                run("btrfs", "subvolume", "sync", two)

            if number % 2 == 0:
                plain()
            name, target = f"m{number}", two / f"mirror{number}"
            _mirrord(variables, "create", name, f"btrfs:{home}", f"btrfs:{target}")
            told = _mirrord(variables, "initialize", name)
            ours.append(float(told["took_s"]))
            peaks.append(float(told["peak_bytes"]))
            shown = (target / "current").resolve()
            _mirrord(variables, "break", name)
            run("btrfs", "subvolume", "delete", "-c", target / "current")
            run("btrfs", "subvolume", "delete", "-c", shown)
            run("btrfs", "subvolume", "sync", two)
            if number % 2:
                plain()
    best, peer_best = min(ours), min(theirs)
    return [
        Row(
            f"{size} GiB: speed against send | receive",
            peer_best / best,
            "x",
            ">=",
            0.95,
            note=f"{size * 1024 / best:.0f} MiB/s against {size * 1024 / peer_best:.0f} MiB/s",
        ),
        Row("  peak memory", max(peaks) / (1 << 20), "MiB", "<=", 150),
    ]


def _mirrord(variables: dict[str, str], *words: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words], env=variables, cwd=ROOT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    told: dict[str, float] = json.loads(done.stderr.strip().splitlines()[-1])
    assert told["status"] == 0, done.stderr
    return told
