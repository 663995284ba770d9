"""A recording that dies at any step leaves nothing that the next one does not take away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.traces.store import TraceFile
from tests.recording.conftest import ROOT
from tests.recording.test_volumes import left_behind

pytestmark = pytest.mark.platform

#: Runs the command line, notes each step, and dies at the one of that number (0: never).
DYING = """
import os, sys
from mirrord.system import steps
wanted, file, count = int(sys.argv[1]), open(sys.argv[2], "a"), 0
def reached(label):
    global count
    count += 1
    print(label, file=file, flush=True)
    if count == wanted:
        os._exit(99)
steps.observe(reached)
from mirrord.cli.main import run
os._exit(run(sys.argv[3:]))
"""


def record(home: Path, volume: Path, out: Path, steps: Path, die_at: int) -> int:
    words = ["trace", "record", f"btrfs:{volume}", "--interval", "0.5s", "--duration", "1s"]
    command = [sys.executable, "-c", DYING, str(die_at), str(steps), *words, "-o", str(out)]
    environment = {**os.environ, "MIRRORD_HOME": str(home)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=120)
    return done.returncode


@contextmanager
def writing(volume: Path) -> Iterator[None]:
    """Somebody writes all the time."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.05):
            (volume / "new").write_bytes(os.urandom(20_000))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_the_next_recording_cleans_up_after_a_crash_at_any_step(
    home: Path, volume: Path, tmp_path: Path
) -> None:
    driver, out, steps = BtrfsDriver(str(volume)), tmp_path / "out.parquet", tmp_path / "steps"
    mine = driver.take_snapshot("of a mirror")
    with writing(volume):
        assert record(home, volume, out, steps, 0) == 0
        labels = steps.read_text().split()
        assert {
            "RECORD:JOURNAL:WRITE",
            "BTRFS:SNAPSHOT:TAKE",
            "BTRFS:DELETE:SUBVOLUME",
            "TRACE:STORE:RENAME",
            "RECORD:JOURNAL:REMOVE",
        } <= set(labels)
        # The first time that each is reached, and some later times.
        wanted = {labels.index(label) + 1 for label in labels} | set(range(8, len(labels), 7))
        for number in sorted(wanted):
            assert record(home, volume, out, steps, number) == 99, labels[number - 1]
        assert record(home, volume, out, steps, 0) == 0
    assert [one.guid for one in driver.snapshots()] == [mine.guid]
    assert left_behind(home, out) == [] and TraceFile(out).records > 0
