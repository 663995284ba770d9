"""How fast a snapshot is read for its digests, against `cat` of the same files; each takes its turn
at going first. Nothing is in a cache: the file system is mounted again before each. And which share
of an update `verify_updates` takes.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import Row, filesystem, folder, median, run, service, timed
from mirrord.core.verification import VerifyRequest
from mirrord.drivers.snapshottrees import Subject, TreeStore
from tests.support.definitions import add_lines
from tests.support.verbs import Service

ROUNDS = 5
LARGE_BYTES, LARGE_FILES = int(os.environ.get("MIRRORD_BENCH_LARGE", 2 << 30)), 8


def measure() -> list[Row]:
    """Large files, and many small ones; then updates."""
    return [*_reading(), *_updates()]


def _reading() -> list[Row]:
    with folder() as inside, filesystem(inside, "one", 16) as mount:
        made = random.Random(1)
        large, small = mount / "large", mount / "small"
        large.mkdir()
        for index in range(LARGE_FILES):
            with (large / f"f{index}").open("wb") as file:
                for _ in range(LARGE_BYTES // LARGE_FILES >> 20):
                    file.write(os.urandom(1 << 20))
        for index in range(20_000):
            path = small / f"d{index // 500}" / f"f{index}"
            if index % 500 == 0:
                path.parent.mkdir(parents=True)
            path.write_bytes(made.randbytes(made.randrange(1000, 42_000)))
        return [
            _compared(
                inside, large, f"{LARGE_BYTES >> 20} MiB in {LARGE_FILES} files: --full", 0.8
            ),
            _compared(inside, small, "20,000 files of 430 MB: --full", 0.8),
        ]


def _updates() -> list[Row]:
    """The share of the time of an update, by the number of files and what was changed."""
    rows = []
    with (
        folder() as inside,
        filesystem(inside, "here", 8) as here,
        filesystem(inside, "there", 8) as there,
    ):
        for count in (100, 20_000):
            volume = here / f"volume{count}"
            run("btrfs", "subvolume", "create", volume)
            for index in range(count):
                path = volume / f"d{index // 500}" / f"f{index}"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"x" * 100)
            home = inside / f"home{count}"
            home.mkdir()
            mirror = service(home)
            mirror.create("m", f"btrfs:{volume}", f"btrfs:{there}/copy{count}")
            add_lines(mirror.paths.mirrors / "m.toml", "verify_updates = true")
            mirror.initialize("m")
            for text, size_bytes in (("4 KiB", 4096), ("64 MiB", 64 << 20)):
                rows.append(_update(mirror, volume / "changed", count, text, size_bytes))
            mirror.close()
    return rows


def _update(mirror: Service, file: Path, count: int, text: str, size_bytes: int) -> Row:
    shares, times = [], []
    for _ in range(ROUNDS):
        file.write_bytes(os.urandom(size_bytes))
        done = mirror.update("m").data
        shares.append(done["phases"]["verify"] / done["duration_s"])
        times.append(done["phases"]["verify"])
    name = f"{text} changed in {count:,} files: share of the update"
    return Row(name, median(shares), "x", "<=", 0.05, note=f"{median(times) * 1000:.0f} ms")


def _compared(inside: Path, data: Path, name: str, target: float) -> Row:
    works: list[Callable[[], object]] = [partial(_digest, inside, data), partial(_cat, data)]
    times: list[list[float]] = [[], []]
    for number in range(ROUNDS):
        for which in (0, 1) if number % 2 else (1, 0):
            _forget(inside, data.parent)
            times[which].append(timed(works[which]))
    ours, theirs = median(times[0]), median(times[1])
    note = f"{ours:.2f} s against {theirs:.2f} s"
    return Row(name, theirs / ours, "x", ">=", target, "cat", 1.0, note=note)


def _digest(inside: Path, data: Path) -> None:
    store = TreeStore(inside / "trees", "the benchmark")
    subject = Subject("g", str(data))
    while not store.step(VerifyRequest("g"), lambda: subject, 1).done:
        pass


def _cat(data: Path) -> None:
    # (In the order of the tree, as the other reads it.)
    words = "find . -type f -print0 | sort -z | xargs -0 cat > /dev/null"
    subprocess.run(["/bin/sh", "-c", words], cwd=data, check=True)


def _forget(inside: Path, mount: Path) -> None:
    """Nothing of the file system, and of its image, is in memory."""
    image = inside / f"{mount.name}.img"
    run("umount", mount)
    with image.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    run("mount", "-t", "btrfs", "-o", "loop", image, mount)
