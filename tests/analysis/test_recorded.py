"""Recordings of live mirrors: lag, age and modes, beside a count moment by moment."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from mirrord.analysis import recorded
from mirrord.analysis.recorded import RECORD, Recording
from mirrord.core.errors import Damaged, NotFound, Refused
from mirrord.core.live import Mode
from tests.support.replays import balanced_accuracy
from tests.traces.samples import EXAMPLES

_UNKNOWN = 0xFFFFFFFF
_SYNC, _SEMI, _ASYNC = 1, 3, 0


def _file(path: Path, rows: list[dict[str, int]]) -> Path:
    records = np.zeros(len(rows), RECORD)
    for name in ("local", "sent", "received", "answered", "durable"):
        records[name] = _UNKNOWN
    for place, row in enumerate(rows):
        for name, value in row.items():
            records[name][place] = value
    path.write_bytes(EXAMPLES["mirrord-live"].data[:64] + records.tobytes())
    return path


def _random(path: Path, seed: int) -> Recording:
    """Writes in sync, in semi-sync, tracked, and in semi-sync again."""
    chosen, rows, at, received = random.Random(seed), [], 0, 0
    for mode, kind in ((_SYNC, 0), (_SEMI, 0), (_ASYNC, 0), (_SEMI, 0)):
        rows.append({"kind": 16, "mode": mode, "arrived": at})
        for _ in range(30):
            at += chosen.randrange(1, 20)
            received = max(received, at) + chosen.randrange(1, 40)
            answered = received - at if mode == _SYNC else chosen.randrange(1, 10)
            row = {"kind": kind, "mode": mode, "arrived": at, "length": chosen.randrange(1, 9)}
            row["answered"] = answered
            if mode != _ASYNC:
                row["received"] = received - at
            rows.append(row)
        at = max(at, received) + 5 if mode == _SYNC else at
    return recorded.read(_file(path, rows))


@pytest.mark.parametrize("seed", range(5))
def test_lag_and_age_are_those_of_a_count_at_each_moment(tmp_path: Path, seed: int) -> None:
    found = _random(tmp_path / "x.live", seed)
    tracked_from = found.modes[2][0]
    tracked_until = found.modes[3][0]
    times, lags = recorded.lag_bytes(found)
    lacking = []
    for now in range(found.last_us + 2):
        missing = []
        for write in found.writes:
            arrived = int(write["arrived"])
            received = tracked_until
            if write["received"] != _UNKNOWN:
                received = arrived + int(write["received"])
            if arrived + int(write["answered"]) <= now < received:
                missing.append((arrived, int(write["length"])))
        last = np.searchsorted(times, now, side="right") - 1
        assert (lags[last] if last >= 0 else 0) == sum(size for _, size in missing), now
        lacking.append(bool(missing))
        age = int(recorded.oldest_us(found, np.array([now]))[0])
        # While writes are tracked the earlier ones may still arrive.
        if now < tracked_from:
            first = min((arrived for arrived, _ in missing), default=now)
            assert age == now - first, now
    assert any(lacking) and not all(lacking)


def test_the_course_has_every_write_and_the_greatest_lag(tmp_path: Path) -> None:
    found = _random(tmp_path / "x.live", 1)
    course = recorded.course(found, 16)
    width_s = float(course.at_s[1])
    assert round(float(course.iops.sum() * width_s)) == pytest.approx(len(found.writes), rel=0.05)
    assert course.lag_bytes.max() == recorded.lag_bytes(found)[1].max()
    assert set(course.modes) == {Mode.SYNC, Mode.SEMI_SYNC, Mode.ASYNC}
    assert sum(found.share(mode) for mode in Mode) == pytest.approx(1)


def test_balanced_accuracy_weighs_both_sides_alike() -> None:
    observed = [(0, Mode.SYNC), (90, Mode.SEMI_SYNC)]
    assert balanced_accuracy(observed, observed, (0, 100)) == 1
    # Always in sync: all of one side, nothing of the other.
    assert balanced_accuracy(observed, [(0, Mode.SYNC)], (0, 100)) == 0.5
    late = [(0, Mode.SYNC), (95, Mode.ASYNC)]
    assert balanced_accuracy(observed, late, (0, 100)) == 0.75
    assert balanced_accuracy([(0, Mode.SYNC)], late, (0, 100)) == 0.95


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "x.live"
    other.write_bytes(b"mirrord live 2\n\0" + bytes(48))
    with pytest.raises(Refused, match="no recording of a live mirror"):
        recorded.read(other)
    good = EXAMPLES["mirrord-live"].data
    other.write_bytes(good[:-1])
    with pytest.raises(Damaged, match="cut off"):
        recorded.read(other)
    other.write_bytes(good[:64])
    with pytest.raises(Damaged, match="no writes"):
        recorded.read(other)
    for damage in ({"kind": 77}, {"kind": 16, "arrived": (1 << 64) - 1}):
        write = {"arrived": 1, "answered": 1, "length": 1}
        with pytest.raises(Damaged, match="record 2 is not one of a live mirror"):
            recorded.read(_file(other, [write, damage]))
    with pytest.raises(NotFound, match="no such file"):
        recorded.read(tmp_path / "none.live")
    other.unlink()
    os.mkfifo(other)
    threading.Thread(target=other.write_bytes, args=(good,)).start()
    found = recorded.read(other)
    assert (len(found.writes), found.dropped, found.name) == (2, 3, "x")
