"""Block volumes: the delta of a large sparse one, and an update on memory-backed storage."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.bulk import PEAK
from benchmarks.harness import ROOT, Row, median, service, timed
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.volume import Volume

CHANGED = 100_000
UPDATE_BYTES = 2 << 30
ROUNDS = 3


def measure() -> list[Row]:
    """On /dev/shm, so that mirrord is measured and not a disk."""
    return [*_delta(), *_update()]


def _delta() -> list[Row]:
    made = random.Random(3)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name) / "v"
        blocks = (1 << 40) // 4096
        chosen = made.sample(range(blocks), CHANGED)
        with Volume.create(path, 1 << 40) as volume:
            for block in chosen:
                volume.write(block * 4096, made.randbytes(4096))
        driver = BlockDriver(str(path))
        base = driver.take_snapshot("base")
        with Volume.open(path, writable=True) as volume:
            for block in chosen:
                volume.write(block * 4096, made.randbytes(4096))
        incremental = driver.take_snapshot("incremental")
        figures = [
            timed(lambda: BlockDriver(str(path)).delta(base.guid, incremental.guid))
            for _ in range(9)
        ]
        states = driver.delta(base.guid, incremental.guid).states
        assert states is not None and states.added >= CHANGED
    return [
        Row(
            "1 TiB sparse, 100,000 blocks changed: delta",
            median(figures) * 1e3,
            "ms",
            "<=",
            50,
            note=f"exact, {states.added:,} blocks added",
        ),
    ]


def _update() -> list[Row]:
    figures = []
    made = random.Random(4)
    for _ in range(ROUNDS):
        inside = Path(tempfile.mkdtemp(dir="/dev/shm"))
        try:
            with Volume.create(inside / "source", 8 << 30) as volume:
                volume.write(0, made.randbytes(1 << 20))
            api = service(inside)
            api.create("v", f"block:{inside / 'source'}", f"block:{inside / 'destination'}")
            api.initialize("v")
            with Volume.open(inside / "source", writable=True) as volume:
                for offset in range(0, UPDATE_BYTES, 8 << 20):
                    volume.write(offset, made.randbytes(8 << 20))
            api.close()
            done = subprocess.run(
                [sys.executable, "-c", PEAK, "update", "v"], cwd=ROOT, check=True,
                env={**os.environ, "MIRRORD_HOME": str(inside / "mirrord")},
                capture_output=True, text=True,
            )  # fmt: skip
            figures.append(_told(done.stderr))
        finally:
            shutil.rmtree(inside)
    speed = UPDATE_BYTES / (1 << 20) / median([took for took, _ in figures])
    peak = max(peak for _, peak in figures)
    return [
        Row("block update on tmpfs", speed, "MiB/s", ">=", 500, note="verified at the destination"),
        Row("  peak memory", peak / (1 << 20), "MiB", "<=", 150),
    ]


def _told(text: str) -> tuple[float, float]:
    import json

    told = json.loads(text.strip().splitlines()[-1])
    return float(told["took_s"]), float(told["peak_bytes"])
