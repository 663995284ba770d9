"""A folder of mirrord's own for each test, file systems, loop devices, and tracefs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.traces.model import Batch, Op
from mirrord.traces.store import TraceFile
from tests.support import btrfs

ROOT = Path(__file__).parents[2]
#: Runs `mirrord trace record` as a process; the words after it.
Record = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where mirrord keeps its things in this test."""
    monkeypatch.setenv("MIRRORD_HOME", str(tmp_path / "mirrord"))
    return tmp_path / "mirrord"


@pytest.fixture
def record(home: Path) -> Iterator[Record]:
    """Start the command as a person does; what is left of it is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str | Path, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*prefix, sys.executable, "-m", "mirrord", "trace", "record", *map(str, words)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "MIRRORD_HOME": str(home)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def volume() -> Iterator[Path]:
    """A subvolume on a file system of its own."""
    with btrfs.filesystem() as mount:
        made = btrfs.make_subvolume(mount / "home")
        (made / "old").write_bytes(os.urandom(1 << 20))
        yield made


def blocks_of(path: Path, *, start: set[int], volume: int = 0) -> set[int]:
    """The blocks in use after a recorded trace that began with `start`; also asserts that nothing
    is allocated that is in use, nor freed that is not, and that the times are in order.
    """
    now, last_ns = set(start), -1
    trace = TraceFile(path)
    for batch in trace.batches():
        for index in range(len(batch)):
            assert batch.time_ns[index] >= last_ns
            last_ns = int(batch.time_ns[index])
            if batch.volume[index] == volume:
                _apply(now, batch, index)
    return now


def _apply(now: set[int], batch: Batch, index: int) -> None:
    offset, length = int(batch.offset[index]), int(batch.length[index])
    assert offset % 4096 == 0 and length > 0
    touched = set(range(offset // 4096, -(-(offset + length) // 4096)))
    if batch.op[index] == Op.WRITE:
        assert not touched & now
        now |= touched
    else:
        assert batch.op[index] == Op.TRIM and touched <= now
        now -= touched
