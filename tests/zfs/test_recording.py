"""A recording of OpenZFS says what a longer update transfers; in the virtual machine."""

from __future__ import annotations

import struct
import threading
import time
from pathlib import Path

import pytest

from mirrord.analysis.replay import replay
from mirrord.engine.recording import Pace, Recorded, Recorder
from mirrord.engine.recording_journal import journal
from mirrord.traces.model import BLOCK, Facts
from mirrord.traces.store import TraceFile, TraceWriter
from tests.contract.zfs import zfs_lab
from tests.support.replays import WHOLE
from tests.zfsvm.guest import Guest

#: Under emulation a snapshot takes seconds.
INTERVAL_S, INTERVALS = 10.0, 4


@pytest.mark.nightly
@pytest.mark.parametrize("volume", [True, False], ids=["volume", "files"])
def test_a_recording_foretells_a_longer_update(
    zfs_guest: Guest, tmp_path: Path, volume: bool
) -> None:
    out, begun = tmp_path / "out.parquet", threading.Event()
    counts: list[int] = []

    def tell(found: Recorded) -> None:
        counts.append(found.intervals)
        begun.set()

    with zfs_lab(volume=volume, large=False) as lab:
        source = lab.source()
        first = source.take_snapshot("first")
        facts = Facts("zfs", "zfs-snapshots", ("addressed", "by object"))
        with journal(tmp_path / "state") as kept, TraceWriter(out, facts) as writer:
            pace = Pace(INTERVAL_S, INTERVAL_S * INTERVALS)
            recorder = Recorder(lab.source(), pace, kept, writer.write, tell)
            thread = threading.Thread(target=recorder.run, args=(threading.Event(),))
            thread.start()
            assert begun.wait(60)
            for seed in range(3):
                lab.change(source, seed)
                time.sleep(INTERVAL_S)
            thread.join()
        last = source.take_snapshot("last")
        found = source.changes(first.guid, last.guid)
        assert [one.name for one in source.snapshots()] == ["first", "last"]
        with source.send(first.guid, last.guid) as stream:
            length = 0
            while chunk := stream.read():
                length += len(chunk)
    runs = struct.iter_unpack("<QQQ", found.allocated)
    expected = sum(-(-(offset + length) // BLOCK) - offset // BLOCK for _, offset, length in runs)
    trace = TraceFile(out)
    [grid] = replay(trace.batches(), trace.facts, [WHOLE]).grids
    foretold = int(grid.active_map.sum())
    print(f"foretold {foretold} blocks, to be sent {expected}, stream of {length} bytes, {counts}")
    assert counts[-1] >= 2
    assert foretold == pytest.approx(expected, rel=0.01)
