"""`mirrord-receive` against `btrfs receive`, the same stream from a file; each takes its turn at
going first. A time includes the sync after it.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import Row, filesystem, folder, median, run, timed
from mirrord.system.native import receive_program
from tests.support.service import processor_s

ROUNDS = 5
#: Of the large files together, and their number.
LARGE_BYTES, LARGE_FILES = int(os.environ.get("MIRRORD_BENCH_LARGE", 2 << 30)), 8
#: What the program has read and not applied yet.
_AHEAD_BYTES = 5 << 20
_STILL_RUNNING = os.WEXITED | os.WNOHANG | os.WNOWAIT
#: In the measurement of memory.
MANY_FILES = int(os.environ.get("MIRRORD_BENCH_FILES", 1_000_000))


def measure() -> list[Row]:
    """Small files, an increment, large files, compressed files, memory."""
    with (
        folder() as inside,
        filesystem(inside, "one", 16) as one,
        filesystem(inside, "two", 16) as two,
    ):
        bench = _Bench(inside, one, two)
        return [*bench.small(), *bench.large(), *bench.compressed(), *bench.many()]


class _Bench:
    def __init__(self, inside: Path, source: Path, target: Path) -> None:
        self._inside, self._source, self._target = inside, source, target
        self._made = random.Random(1)

    def small(self) -> list[Row]:
        """20,000 files of 430 MB, then 1,000 of them changed."""
        home = self._subvolume("small")
        for index in range(20_000):
            path = home / f"d{index // 500}" / f"f{index}"
            if index % 500 == 0:
                path.parent.mkdir()
            path.write_bytes(self._made.randbytes(self._made.randrange(1000, 42_000)))
        base = self._snapshot(home, "small.0")
        for index in self._made.sample(range(20_000), 1000):
            path = home / f"d{index // 500}" / f"f{index}"
            path.write_bytes(self._made.randbytes(self._made.randrange(1000, 42_000)))
        newer = self._snapshot(home, "small.1")
        full, changes = self._send(base), self._send(newer, base)
        rows = [self._compare("20,000 files of 430 MB", full, 2.5)]
        self._ours(full)
        rows.append(self._compare("  1,000 of them changed", changes, 1.5, base="small.0"))
        self._clean()
        return rows

    def large(self) -> list[Row]:
        """Incompressible files of some hundred MiB each."""
        home = self._subvolume("large")
        for index in range(LARGE_FILES):
            _random_file(home / f"f{index}", LARGE_BYTES // LARGE_FILES)
        stream = self._send(self._snapshot(home, "large.0"))
        name = f"{LARGE_BYTES >> 20} MiB in {LARGE_FILES} files"
        return [self._compare(name, stream, 1.0)]

    def compressed(self) -> list[Row]:
        """The same compressed files, sent as they are stored and as plain data."""
        home = self._subvolume("text")
        run("btrfs", "property", "set", home, "compression", "zstd")
        words = [self._made.randbytes(6).hex() for _ in range(2000)]
        for index in range(8):
            text = " ".join(self._made.choice(words) for _ in range(5_000_000)).encode()
            (home / f"f{index}").write_bytes(text)
        snapshot = self._snapshot(home, "text.0")
        plain, encoded = self._send(snapshot), self._send(snapshot, compressed=True)
        times: dict[Path, list[float]] = {plain: [], encoded: []}
        for number in range(ROUNDS):
            for stream in (plain, encoded) if number % 2 else (encoded, plain):
                self._clean()
                times[stream].append(timed(partial(self._ours, stream)))
        ratio = median(times[plain]) / median(times[encoded])
        note = f"{median(times[encoded]):.2f} s against {median(times[plain]):.2f} s plain"
        return [
            Row("compressed files, sent encoded", ratio, "x", ">=", 1.5, note=note),
            self._compare("  against btrfs receive", encoded, 1.0),
        ]

    def many(self) -> list[Row]:
        """A million files: the most memory that it has used, and whether the processor time for the
        second half is that for the first.
        """
        home = self._subvolume("many")
        for index in range(MANY_FILES):
            path = home / f"d{index // 1000}" / f"f{index}"
            if index % 1000 == 0:
                path.parent.mkdir()
            path.write_bytes(b"%d" % index)
        stream = self._send(self._snapshot(home, "many.0"))
        self._clean()
        with stream.open("rb") as source:
            words = [receive_program(), "--into", str(self._target)]
            child = subprocess.Popen(["/bin/sh", "-c", 'exec "$@"', "sh", *words], stdin=source)
            half, most, half_s = stream.stat().st_size // 2 + _AHEAD_BYTES, 0, 0.0
            while os.waitid(os.P_PID, child.pid, _STILL_RUNNING) is None:
                status = Path(f"/proc/{child.pid}/status").read_text()
                found = [line.split()[1] for line in status.splitlines() if "VmHWM" in line]
                most = max(most, *map(int, found), 0)
                # The position is that of the program, too.
                if not half_s and os.lseek(source.fileno(), 0, os.SEEK_CUR) >= half:
                    half_s = processor_s(child.pid)
                time.sleep(0.01)
            whole_s = processor_s(child.pid)
        assert child.wait() == 0
        name, note = f"{MANY_FILES:,} files: ", f"{whole_s:.2f} s of processor time"
        return [
            Row(name + "memory", most / 1024, "MiB", "<=", 200),
            Row(name + "second half", whole_s / max(half_s, 0.01) - 1, "x", "<=", 1.5, note=note),
        ]

    # Means

    def _subvolume(self, name: str) -> Path:
        path = self._source / name
        run("btrfs", "subvolume", "create", path)
        return path

    def _snapshot(self, home: Path, name: str) -> Path:
        run("btrfs", "subvolume", "snapshot", "-r", home, self._source / name)
        return self._source / name

    def _send(self, snapshot: Path, base: Path | None = None, *, compressed: bool = False) -> Path:
        stream = self._inside / f"{snapshot.name}.{'z' if compressed else 'stream'}"
        words = ["--proto", "2", "--compressed-data"] if compressed else ["--proto", "1"]
        words += ["-p", str(base), "-c", str(base)] if base else []
        run("btrfs", "send", "-q", *words, "-f", stream, snapshot)
        return stream

    def _ours(self, stream: Path, base: str = "") -> None:
        words = [receive_program(), "--into", str(self._target)]
        words += ["--base", str(self._target / base)] if base else []
        self._receive(words, stream)

    def _theirs(self, stream: Path) -> None:
        self._receive(["btrfs", "receive", "-q", str(self._target)], stream)

    def _receive(self, words: list[str], stream: Path) -> None:
        with stream.open("rb") as source:
            subprocess.run(words, stdin=source, check=True)
        run("btrfs", "filesystem", "sync", self._target)

    def _clean(self, kept: str = "") -> None:
        for path in self._target.iterdir():
            if path.name != kept:
                run("btrfs", "subvolume", "delete", "-c", path)
        run("btrfs", "subvolume", "sync", self._target)

    def _compare(self, name: str, stream: Path, target: float, base: str = "") -> Row:
        stream.read_bytes()  # into the page cache
        works = [partial(self._ours, stream, base), partial(self._theirs, stream)]
        times: list[list[float]] = [[], []]
        for number in range(ROUNDS):
            for which in (0, 1) if number % 2 else (1, 0):
                self._clean(base)
                times[which].append(timed(works[which]))
        ours, theirs = median(times[0]), median(times[1])
        self._clean(base)
        note = f"{ours:.2f} s against {theirs:.2f} s"
        return Row(name, theirs / ours, "x", ">=", target, note=note)


def _random_file(path: Path, length: int) -> None:
    with path.open("wb") as file:
        for _ in range(length >> 20):
            file.write(os.urandom(1 << 20))
