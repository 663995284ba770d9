"""What `mirrord trace record` reports of a live recording, however that ends."""

from __future__ import annotations

import struct
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from mirrord.admin.live_recording import Found, _Recorder, _Writer
from mirrord.core.errors import Refused
from mirrord.drivers.live import Live

HEADER = b"mirrord live 1\n\0".ljust(64, b"\0")
WRITE, MODE, DROPPED, END = 0, 16, 17, 18


def record(kind: int, offset: int = 0) -> bytes:
    """One record; the offset of some kinds is a number of writes."""
    return struct.pack("<B7xQ", kind, offset).ljust(64, b"\0")


class Ended:
    """An end with a recording that ends by itself after these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def live_record(self, _begin: bool) -> None:
        """It is told to end a recording."""

    def live_recorded(self) -> bytes:
        if not self._pieces:
            raise Refused("the recording", why="nothing is recorded")
        return self._pieces.pop(0)


@pytest.mark.parametrize(
    ("last", "found"),
    [
        (b"", Found(3, dropped=9, modes=1, ended="nothing is recorded")),
        (record(END, 12), Found(3, dropped=12, modes=1)),
    ],
    ids=["by itself", "when told"],
)
def test_writes_that_are_missing_are_reported(tmp_path: Path, last: bytes, found: Found) -> None:
    first = HEADER + record(MODE) + record(WRITE, 17) + record(DROPPED, 4) + record(WRITE)
    second = record(DROPPED, 5) + record(WRITE) + last
    writer, stop = _Writer(tmp_path / "db.live"), Event()
    if last:
        stop.set()
    _Recorder(cast(Live, Ended(first, second)), writer, None, lambda _found: None).run(stop)
    assert writer.found == found
    assert (tmp_path / "db.live").read_bytes() == first + second
