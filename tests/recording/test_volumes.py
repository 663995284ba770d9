"""Recording live volumes: nothing is missing, nothing stays behind, whatever ends it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mirrord.admin import recording
from mirrord.core.errors import Busy, MirrordError
from mirrord.core.model import Snapshot
from mirrord.drivers.block.activemap import added_runs
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.rootrecord import load
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.traces.store import TraceFile
from tests.btrfs.test_changes import named_by_dump
from tests.recording.conftest import Record, blocks_of
from tests.recording.user import User
from tests.support.service import until


class InThread:
    """`recording.record` beside the test."""

    def __init__(
        self, what: str, out: Path, interval_s: float, duration_s: float, *, files: bool = False
    ) -> None:
        wanted = recording.Wanted(out, interval_s, duration_s, files=files)
        self.numbers: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.failed: MirrordError | None = None

        def work() -> None:
            try:
                recording.record(what, wanted, self.numbers.append, self.notes.append)
            except MirrordError as error:
                self.failed = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def intervals(self, count: int) -> None:
        """Wait until so many are over (0: until it has begun)."""
        until(lambda: not self._thread.is_alive() or (self.numbers and self.passed() >= count))

    def passed(self) -> int:
        """How many are over."""
        return int(self.numbers[-1]["intervals"] + self.numbers[-1]["missed"])

    def end(self) -> None:
        self._thread.join()


@contextmanager
def locked(driver: BtrfsDriver, purpose: str) -> Iterator[None]:
    """The volume's lock; a recording that has it now is waited for."""
    with ExitStack() as stack:

        def taken() -> bool:
            try:
                stack.enter_context(driver.lock(purpose))
            except Busy:
                return False
            return True

        until(taken)
        yield


def left_behind(home: Path, out: Path) -> list[str]:
    """Journals, locks and half-written traces."""
    journals = home / "state" / "recordings"
    found = list(journals.iterdir()) if journals.is_dir() else []
    return [str(path) for path in [*found, *out.parent.glob(f".{out.name}*")]]


@pytest.mark.platform
def test_a_btrfs_volume_from_first_to_last_block(home: Path, volume: Path, tmp_path: Path) -> None:
    driver, out = BtrfsDriver(str(volume)), tmp_path / "out.parquet"
    first = driver.take_snapshot("first")
    run = InThread(f"btrfs:{volume}", out, 0.5, 6)
    run.intervals(0)
    with User(volume):
        run.intervals(6)
    run.end()
    last = driver.take_snapshot("last")
    assert run.failed is None and run.numbers[-1]["intervals"] >= 4
    start, end = named_by_dump(first)[0], named_by_dump(last)[0]
    assert blocks_of(out, start=start) == end != start
    assert [one.name for one in driver.snapshots()] == ["first", "last"]
    assert left_behind(home, out) == []


def block_map(path: Path, snapshot: Snapshot) -> set[int]:
    entry = load(path).entry(snapshot.guid)
    assert entry is not None
    store = BlockStore(path, writable=False)
    try:
        runs = list(added_runs(store, None, entry.root))
    finally:
        store.close()
    return {block for first, count in runs for block in range(first, first + count)}


def test_a_block_volume_from_first_to_last_block(home: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "volume", tmp_path / "out.parquet"
    driver = BlockDriver(str(path))
    with Volume.create(path, 64 << 20) as opened:
        opened.write(0, os.urandom(3 << 20))
        first = driver.take_snapshot("first")
        run = InThread(f"block:{path}", out, 0.5, 5)
        run.intervals(0)
        for number in range(60):
            opened.write((number * 7919 % 12000) * 4096, os.urandom(20_000))
            opened.trim((number * 104729 % 12000) * 4096, 40_000)
            time.sleep(0.04)
        run.end()
        last = driver.take_snapshot("last")
    assert run.failed is None and run.numbers[-1]["allocated_bytes"] > 1 << 20
    assert blocks_of(out, start=block_map(path, first)) == block_map(path, last)
    assert [one.name for one in driver.snapshots()] == ["first", "last"]
    assert TraceFile(out).facts.notes["resolution_s"] == "0.5"


@pytest.mark.platform
def test_intervals_stand_on_their_grid(home: Path, volume: Path, tmp_path: Path) -> None:
    """Idle intervals leave no record, and the first record of each other is on a border."""
    out = tmp_path / "out.parquet"
    run = InThread(f"btrfs:{volume}", out, 2, 10)
    for number, after in enumerate((1, 3)):
        run.intervals(after)
        (volume / f"new{number}").write_bytes(os.urandom(50_000))
    run.end()
    [batch] = TraceFile(out).batches()
    slots = batch.time_ns // 2_000_000_000
    assert set(slots.tolist()) == {1, 3}
    for slot in (1, 3):
        assert batch.time_ns[slots == slot].min() == slot * 2_000_000_000
    assert run.numbers[-1]["intervals"] == 5


@pytest.mark.platform
def test_what_a_mirror_of_whole_files_would_transfer(
    home: Path, volume: Path, tmp_path: Path
) -> None:
    """One block of a file changes in two intervals, another file only gets a new name."""
    out = tmp_path / "out.parquet"
    (volume / "large").write_bytes(os.urandom(2 << 20))
    (volume / "other").write_bytes(os.urandom(1 << 20))
    run = InThread(f"btrfs:{volume}", out, 0.5, 6, files=True)
    for after in (1, 5):
        run.intervals(after)
        with (volume / "large").open("r+b") as file:
            os.pwrite(file.fileno(), os.urandom(4096), 8192 * after)
        (volume / "other").rename(volume / f"name {after}")
        (volume / f"name {after}").rename(volume / "other")
    (volume / "other").rename(volume / "another")
    run.end()
    came = run.numbers[-1]
    assert (came["changed_files"], came["whole_file_bytes"]) == (2, 2 * (2 << 20))
    assert came["allocated_bytes"] == 2 * 4096
    assert TraceFile(out).facts.notes["whole_file_bytes"] == str(4 << 20)


@pytest.mark.platform
def test_what_takes_too_long_is_told_and_not_lost(home: Path, volume: Path, tmp_path: Path) -> None:
    driver, out = BtrfsDriver(str(volume)), tmp_path / "out.parquet"
    first = driver.take_snapshot("first")
    run = InThread(f"btrfs:{volume}", out, 0.5, 5)
    run.intervals(1)
    with locked(driver, "a mirror that takes its time"):
        (volume / "meanwhile").write_bytes(os.urandom(300_000))
        time.sleep(2.2)
    run.end()
    came = run.numbers[-1]
    assert came["missed"] >= 2 and came["missed"] + came["intervals"] == 10
    last = driver.take_snapshot("last")
    assert blocks_of(out, start=named_by_dump(first)[0]) == named_by_dump(last)[0]


@pytest.mark.platform
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_a_good_end(
    home: Path, volume: Path, tmp_path: Path, record: Record, number: signal.Signals
) -> None:
    out = tmp_path / "out.parquet"
    process = record(f"btrfs:{volume}", "--interval", "1h", "--output", out)
    assert process.stderr is not None and "recording" in process.stderr.readline()
    (volume / "new").write_bytes(os.urandom(40_960))
    process.send_signal(number)
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert "40.0 KiB allocated and 0 B freed in 1 intervals" in said
    assert TraceFile(out).records == 1
    assert BtrfsDriver(str(volume)).snapshots() == [] and left_behind(home, out) == []


@pytest.mark.platform
def test_the_next_recording_takes_away_what_a_killed_one_left(
    home: Path, volume: Path, tmp_path: Path, record: Record
) -> None:
    driver, out = BtrfsDriver(str(volume)), tmp_path / "out.parquet"
    mine = driver.take_snapshot("of a mirror")
    process = record(f"btrfs:{volume}", "--interval", "1s", "--output", out)
    assert process.stderr is not None and "recording" in process.stderr.readline()
    process.kill()
    process.communicate()
    assert len(driver.snapshots()) >= 2 and not out.exists()
    assert any(name.endswith(".new") for name in left_behind(home, out))
    process = record(f"btrfs:{volume}", "--interval", "0.5s", "--duration", "1s", "--output", out)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and errors.startswith("recording")
    assert "Nothing was recorded: there was no activity." in said
    assert [one.guid for one in driver.snapshots()] == [mine.guid]
    assert left_behind(home, out) == [] and TraceFile(out).records == 0


@pytest.mark.platform
def test_two_recordings_do_not_disturb_each_other(home: Path, volume: Path, tmp_path: Path) -> None:
    driver = BtrfsDriver(str(volume))
    first = driver.take_snapshot("first")
    outs = [tmp_path / "one.parquet", tmp_path / "other.parquet"]
    runs = [InThread(f"btrfs:{volume}", out, 0.5, 6) for out in outs]
    for run in runs:
        run.intervals(0)
    with User(volume):
        for run in runs:
            run.intervals(5)
    for run in runs:
        run.end()
        assert run.failed is None and run.notes == []
    start, end = named_by_dump(first)[0], named_by_dump(driver.take_snapshot("last"))[0]
    assert [blocks_of(out, start=start) for out in outs] == [end, end]


@pytest.mark.platform
def test_what_was_recorded_before_a_failure_is_kept(
    home: Path, volume: Path, tmp_path: Path
) -> None:
    driver, out = BtrfsDriver(str(volume)), tmp_path / "out.parquet"
    run = InThread(f"btrfs:{volume}", out, 0.5, 60)
    run.intervals(0)
    (volume / "new").write_bytes(os.urandom(40_960))
    run.intervals(run.passed() + 2)
    with locked(driver, "somebody who deletes what is not his"):
        for one in driver.snapshots():
            driver.delete_snapshot(one.guid)
    run.end()
    assert run.failed is not None and run.failed.what == "no such snapshot"
    assert "is kept" in run.failed.hint
    assert TraceFile(out).records > 0 and left_behind(home, out) == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nonsense"], 1, "no mirror is called 'nonsense'"),
        (["nonsense:/x"], 2, "has the unknown kind 'nonsense'"),
        (["block:/nowhere/x"], 1, "there is no live volume here"),
        (["block:/nowhere/x", "--interval", "0.1s"], 2, "it can be 0.5 s to 7 days"),
        (["block:/x", "--interval", "1h", "--duration", "1m"], 2, "shorter than --interval"),
        (["block:/x", "--interval", "often"], 2, "'often' is not a duration"),
        (["/dev/null"], 1, "this is not a block device"),
        (["/dev/nothing"], 1, "there is no such device"),
        (["/etc/passwd"], 1, "this is not a block device"),
    ],
)
def test_invalid_arguments_are_one_clear_error(
    home: Path, tmp_path: Path, record: Record, words: list[str], status: int, said: str
) -> None:
    process = record(*words, "--output", tmp_path / "out")
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (status, "")
    assert said in errors and errors.startswith("error: ") and "Traceback" not in errors
    assert left_behind(home, tmp_path / "out") == []


def test_a_place_that_cannot_be_written_is_told_at_once(
    home: Path, tmp_path: Path, record: Record
) -> None:
    with Volume.create(tmp_path / "volume", 1 << 20):
        pass
    out = tmp_path / "no such folder" / "out"
    process = record(f"block:{tmp_path}/volume", "--output", out)
    _output, errors = process.communicate(timeout=120)
    assert process.returncode == 1 and errors.startswith("error: ") and str(out) in errors
    assert BlockDriver(str(tmp_path / "volume")).snapshots() == []
