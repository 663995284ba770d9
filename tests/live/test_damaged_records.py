"""The records of an end are damaged while it is stopped: what is not known is not guessed."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.lab import QUICK, Client, End, Pair, stamp, wait_until

_SLOT = 4096
_PAGES = 5 + 256  # of one half of the activity log: its checkpoint, and what is added to it
_ACTIVITY = 2 * _SLOT
_SERIAL = 103  # its place in a record


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def _newer(path: Path, place: int, apart: int) -> int:
    """Which of two things that are so far apart has the larger number at this place: its begin."""
    data = path.read_bytes()
    found = [struct.unpack_from("<Q", data, place + which * apart)[0] for which in (0, 1)]
    return found.index(max(found)) * apart


def _damage_record(path: Path) -> None:
    """The one before says that both ends are equal, and the map does not count."""
    _flip(path, _newer(path, _SERIAL, _SLOT) + 60)


def _damage_checkpoint(path: Path) -> None:
    """The other half is of before."""
    _flip(path, _ACTIVITY + _newer(path, _ACTIVITY + 8, _PAGES * _SLOT) + 40)


def _damage_addition(path: Path) -> None:
    """What was added after it is there."""
    _flip(path, _ACTIVITY + _newer(path, _ACTIVITY + 8, _PAGES * _SLOT) + 5 * _SLOT + 40)


def _cut_map(path: Path) -> None:
    """Blocks that are not there differ nowhere."""
    os.truncate(path, _ACTIVITY + 2 * _PAGES * _SLOT)


@pytest.mark.parametrize("damage", [_damage_record, _damage_checkpoint, _damage_addition, _cut_map])
def test_a_primary_with_damaged_records_is_not_started(
    pair: Pair, damage: Callable[[Path], None]
) -> None:
    pair.start()
    pair.secondary.kill()
    assert pair.primary.ask("mode async") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync")
    with Client(pair.primary) as client:
        for block in range(0, 2048, 128):
            assert client.write(block * 4096, stamp(block, 1)) == 0
        assert client.flush() == 0
    pair.primary.kill()
    damage(pair.primary.state / "tracking")
    assert f"error[records-damaged]: {pair.primary.state}: " in _refusal(pair.primary)


def _refusal(end: End) -> str:
    words = [str(end.program), "run", *end._files(), *QUICK, "--control", str(end.control)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    return done.stderr


def test_a_redo_log_that_is_damaged_in_the_middle_is_lost(pair: Pair) -> None:
    """What is before would be applied again, over what the image has of what is after it."""
    pair.start()
    assert pair.primary.ask("mode semi-sync") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("semi-sync"), "semi-sync")
    with Client(pair.primary) as client:
        for number in range(1, 4):
            assert client.write(0, stamp(0, number)) == 0
            wait_until(lambda: (pair.primary.status() or {})["buffered_bytes"] == 0, "the journal")
    wait_until(lambda: (pair.secondary.status() or {})["redo_operations"] == 0, "the image")
    assert pair.secondary.bytes()[:4096] == stamp(0, 3)
    pair.stop()
    log = pair.secondary.state / "redo"
    second = log.read_bytes()[: 1 << 20].index(stamp(0, 2))
    _flip(log, second + 100)
    pair.secondary.start()
    answer = pair.secondary.ask("break")
    assert not answer["ok"] and "(file 'redo') is missing or damaged" in answer["error"]
    pair.primary.start()
    wait_until(lambda: pair.primary.is_state("semi-sync"), "the copy")
    pair.assert_equal()
