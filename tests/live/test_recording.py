"""`mirrord trace record` of a live mirror: each write with its times, while it is used."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mirrord.analysis import recorded
from mirrord.analysis.recorded import Recording
from mirrord.core.live import Mode
from tests.faults.test_ends import tmpfs
from tests.live.command import WORDS, Mirror
from tests.live.lab import BLOCK, Client, Writer, stamp, wait_until
from tests.live.test_commands import Served
from tests.live.test_dynamic import _is, _primary, _slow

_UNKNOWN = 0xFFFFFFFF


class _Recorder:
    """`mirrord trace record db` in the background."""

    def __init__(self, mirror: Mirror, file: Path) -> None:
        words = [*WORDS, "trace", "record", "db", "-o", str(file), "--json"]
        self._process = subprocess.Popen(
            words,
            env=mirror.home.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: _primary(mirror).get("recording") is True, "the recording", 60)

    def stop(self) -> str:
        """As Ctrl-C does; its output."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self, status: int = 0) -> str:
        """Until it ends; its output."""
        said, errors = self._process.communicate(timeout=120)
        assert self._process.returncode == status, said + errors
        return said + errors


@contextmanager
def _writing(mirror: Mirror) -> Iterator[Writer]:
    writer = Writer(Served(mirror), 512, depth=4)
    writer.start()
    try:
        yield writer
    finally:
        writer.finish()


def _times(found: Recording, name: str) -> np.ndarray:
    return found.writes[name].astype(np.int64)


def test_each_write_is_recorded_with_its_times(mirror: Mirror, tmp_path: Path) -> None:
    mirror.initialize("--policy", "sync")
    file = tmp_path / "db.live"
    with _slow(mirror) as proxy:
        mirror.home.run("serve", "db")
        wait_until(lambda: _is(mirror, "in-sync"), "sync", 60)
        proxy.late_s = 0.02
        recorder = _Recorder(mirror, file)
        with _writing(mirror) as writer:
            wait_until(lambda: writer.answered > 50, "writes in sync")
            mirror.home.run("mode", "db", "semi-sync")
            wait_until(lambda: _is(mirror, "semi-sync"), "semi-sync", 60)
            before = writer.answered
            wait_until(lambda: writer.answered > before + 200, "writes in semi-sync")
        # Also without writes the time passes.
        mirror.home.run("mode", "db", "sync")
        wait_until(lambda: _is(mirror, "in-sync"), "sync", 60)
        told = json.loads(recorder.stop())
    assert told["records"] == writer.answered and told["dropped"] == 0 and not told["ended"]
    found = recorded.read(file)
    assert len(found.writes) == writer.answered and found.dropped == 0
    assert [mode for _, mode in found.modes] == [Mode.SYNC, Mode.SEMI_SYNC, Mode.SYNC]
    assert len(set(found.writes["osn"])) == writer.answered
    assert set(found.writes["length"]) == {BLOCK}
    for name in ("local", "sent", "received", "answered", "durable"):
        assert (found.writes[name] != _UNKNOWN).all(), name
    assert (_times(found, "sent") <= _times(found, "received")).all()
    assert (_times(found, "received") <= _times(found, "durable")).all()
    assert (_times(found, "received") - _times(found, "sent") >= 39_000).all()
    is_sync = found.writes["mode"] == 1
    assert 50 < is_sync.sum() < len(is_sync)
    received, answered = _times(found, "received"), _times(found, "answered")
    # (Those at the change were sent in one mode, and answered in the other.)
    is_before = _times(found, "arrived") + answered < found.modes[1][0]
    assert is_before.sum() > 50
    assert (answered[is_before] >= received[is_before]).all()
    is_semi = ~is_sync
    # Most are answered when they are local; the last ones of the mode are answered as in sync.
    assert (answered[is_semi] < received[is_semi]).mean() > 0.9
    assert (found.writes["limit"][is_semi] == 16 << 20).all()
    assert recorded.lag_bytes(found)[1].max() >= BLOCK
    assert _primary(mirror)["recording"] is False
    _check_read_as_a_trace(mirror, file, writer.answered)


def _check_read_as_a_trace(mirror: Mirror, file: Path, writes: int) -> None:
    run = mirror.home.run
    info = json.loads(run("trace", "info", str(file), "--json"))
    assert info["source_format"] == "mirrord-live" and info["records"]["write"] == writes
    assert abs(info["epoch_ns"] / 1e9 - time.time()) < 600
    stored, part = file.with_name("db.parquet"), file.with_name("part.parquet")
    run("trace", "import", str(file), "-o", str(stored))
    run("trace", "slice", str(stored), "--to", "500ms", "-o", str(part))
    words = ("--bandwidth", "1Gbit", "--in-sync", "0", "--json")
    simulated = json.loads(run("analyze", "modes", str(file), *words))
    assert simulated["traces"][0]["scenarios"][0]["writes"] == writes
    out = file.with_name("report")
    shown = json.loads(run("analyze", "live", str(file), "--out", str(out), "--json"))
    recording = shown["recordings"][0]
    assert recording["writes"] == writes and recording["changes"] == 2
    assert recording["share"]["sync"] + recording["share"]["semi-sync"] == pytest.approx(1)
    assert (out / "live.html").exists() and (out / "db-figure-7.png").exists()


def test_one_recording_at_a_time_and_each_ends(mirror: Mirror, tmp_path: Path) -> None:
    mirror.initialize("--policy", "sync")
    mirror.home.run("serve", "db")
    file = tmp_path / "db.live"
    recorder = _Recorder(mirror, file)
    error = mirror.home.refused("trace", "record", "db", "-o", str(tmp_path / "other.live"))
    assert "a recording is under way already" in error
    assert not (tmp_path / "other.live").exists()
    with Client(Served(mirror)) as client:
        assert client.write(0, stamp(0, 1)) == 0
        # When both ends have it durably its record is complete, and is fetched.
        time.sleep(3)
    mirror.source.kill()
    said = recorder.wait(1)
    # What was recorded is kept; nothing was written since.
    assert "What was recorded until then (1 records) is kept." in said, said
    assert len(recorded.read(file).writes) == 1
    hidden = [each.name for each in tmp_path.iterdir() if each.name.startswith(".")]
    assert hidden == []


def test_a_full_disk_ends_the_recording_and_not_the_writes(mirror: Mirror, tmp_path: Path) -> None:
    mirror.initialize("--policy", "async")
    mirror.home.run("serve", "db")
    with tmpfs(tmp_path / "small", 1) as folder:
        file = folder / "db.live"
        recorder = _Recorder(mirror, file)
        with _writing(mirror) as writer:
            said = recorder.wait(1)
            before = writer.answered
            wait_until(lambda: writer.answered > before + 100, "writes after that")
            assert writer.errors == []
        assert "the file system is full" in said and "is kept. Free some space" in said, said
        found = recorded.read(file)
        assert 16_000 < len(found.writes) <= (1 << 20) // 64
        assert set(found.writes["mode"]) == {0} and set(found.writes["osn"]) == {0}
        assert (found.writes["received"] == _UNKNOWN).all()
    wait_until(lambda: _primary(mirror)["recording"] is False, "its end")
