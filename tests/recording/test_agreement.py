"""`mirrord analyze` on a recorded trace says what real updates then transfer, within 1 %.

A live btrfs volume, a real mirror of it to another file system with real updates every eight
seconds, a user who works all the time, and a recording every two seconds beside it. As the mirror's
snapshots are kept, the streams of longer intervals can be made, too.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mirrord.admin import recording
from mirrord.analysis.grids import fixed
from mirrord.analysis.replay import replay
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system.paths import Paths
from mirrord.traces.model import BLOCK
from mirrord.traces.store import TraceFile
from tests.recording.conftest import ROOT
from tests.recording.sent import Sent, sent
from tests.recording.user import User
from tests.support import btrfs
from tests.support.verbs import Service

pytestmark = [pytest.mark.platform, pytest.mark.large]

UPDATES, EVERY_S, INTERVAL_S = 6, 8, 2.0


class Recording:
    """`trace record` in a thread; `began` when its first snapshot is there."""

    def __init__(self, what: str, out: Path, duration_s: float) -> None:
        wanted = recording.Wanted(out, INTERVAL_S, duration_s)
        self.found: dict[str, Any] = {}
        self.began_ns: list[int] = []
        self._first = threading.Event()

        def work() -> None:
            self.found = recording.record(what, wanted, self._tell, print)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def _tell(self, numbers: dict[str, Any]) -> None:
        self.began_ns.append(numbers["began_ns"])
        self._first.set()

    def began(self) -> int:
        assert self._first.wait(120)
        return self.began_ns[0]

    def end(self) -> dict[str, Any]:
        self._thread.join()
        return self.found


def _updates(service: Service, began_ns: int) -> None:
    """Update at each border of eight seconds."""
    for number in range(1, UPDATES + 1):
        time.sleep(max(0.0, (began_ns + number * EVERY_S * 10**9 - time.time_ns()) / 1e9))
        service.update("home")


def _streams(home: Path, every: int) -> Sent:
    """What updates at every so many of the borders transfer: all streams together."""
    driver = BtrfsDriver(str(home))
    kept = driver.snapshots()[1::every]  # the first is that of `initialize`
    assert len(kept) == UPDATES // every + 1
    each = [sent(driver, one.guid, two.guid) for one, two in itertools.pairwise(kept)]
    return Sent(*(sum(numbers) for numbers in zip(*each, strict=True)))


def _transfers(service: Service) -> int:
    """Bytes that the updates of the mirror transferred, as its history says."""
    found = service.history("home", limit=UPDATES).transfers
    assert len(found) == UPDATES
    return sum(int(one.stream_bytes) for one in found)


def _reported(out: Path, seconds: list[int]) -> dict[float, float]:
    """Blocks transferred by the update interval, as the report of `mirrord analyze` has them."""
    folder = out.with_name("report")
    words = ["--intervals", ",".join(f"{each}s" for each in seconds), "--out", str(folder)]
    command = [sys.executable, "-m", "mirrord", "analyze", "reduction", str(out), *words]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    [found] = json.loads((folder / "reduction.json").read_text())["traces"]
    return {
        each["seconds"]: each["percent"]["active_map"] / 100 * found["blocks_written"]
        for each in found["intervals"]
    }


def _worked(folder: Path, out: Path) -> tuple[dict[str, Any], dict[int, Sent], int]:
    """Let the user work: what the recording says of itself, what updates at every so many borders
    transfer, and what the mirror's have.
    """
    paths = Paths(folder / "home/etc", folder / "home/state", folder / "home/run")
    with btrfs.filesystem(size_mib=2048) as here, btrfs.filesystem(size_mib=2048) as there:
        home = btrfs.make_subvolume(here / "home")
        service = Service(paths)
        service.create("home", f"btrfs:{home}", f"btrfs:{there / 'backup'}", keep_source=100)
        with User(home):
            service.initialize("home")
            run = Recording(f"btrfs:{home}", out, UPDATES * EVERY_S)
            service.update("home")  # the base, near the beginning of the recording
            _updates(service, run.began())
            found = run.end()
        real = {every: _streams(home, every) for every in (1, 2, 3, UPDATES)}
        transferred = _transfers(service)
        service.close()
    return found, real, transferred


def test_a_recording_foretells_what_updates_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):  # a machine that had no time for a border tells nothing about it
        folder = tmp_path / str(number)
        monkeypatch.setenv("MIRRORD_HOME", str(folder / "home"))
        out = folder / "home.parquet"
        folder.mkdir()
        found, real, transferred = _worked(folder, out)
        if not found["missed"]:
            break
    assert (found["intervals"], found["missed"]) == (UPDATES * EVERY_S / INTERVAL_S, 0)
    trace = TraceFile(out)
    foretold = replay(trace.batches(), trace.facts, [fixed(EVERY_S * every) for every in real])
    reported = _reported(out, [EVERY_S * every for every in real])
    for grid, (every, streams) in zip(foretold.grids, real.items(), strict=True):
        blocks = int(grid.active_map.sum())
        assert reported[EVERY_S * every] == pytest.approx(blocks, rel=0.001)
        print(
            f"every {EVERY_S * every} s: foretold {blocks} blocks, {blocks * BLOCK} bytes; sent "
            f"{streams.blocks} blocks, {streams.data_bytes} bytes of data in {streams.stream_bytes}"
        )
        assert len(grid.active_map) == UPDATES // every
        assert blocks == pytest.approx(streams.blocks, rel=0.01)
        assert blocks * BLOCK == pytest.approx(streams.data_bytes, rel=0.01)
    # What the mirror itself transferred, with names, owners, modes and times.
    assert int(foretold.grids[0].active_map.sum()) * BLOCK == pytest.approx(transferred, rel=0.01)
    assert real[1].stream_bytes == transferred
    # And there was something to foretell: longer intervals transfer clearly less.
    assert real[UPDATES].blocks < 0.8 * real[1].blocks < 0.8 * foretold.blocks_written
