"""What tests compare volumes by (tests.support.files): every byte counts, holes only as zeros."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import files

SIZE_BYTES = 1_000_003
#: In the first and the last piece, at the ends of one, and where a hole may begin.
PLACES = (0, 4095, 4096, 65_535, 65_536, 131_071, 500_000, SIZE_BYTES - 1)


def made(folder: Path, written: dict[int, bytes], *, hole: bool) -> str:
    """The digest of a folder with such a file."""
    file = folder / "file"
    with file.open("wb") as opened:
        if not hole:
            opened.write(bytes(SIZE_BYTES))
        opened.truncate(SIZE_BYTES)
        for at, data in written.items():
            opened.seek(at)
            opened.write(data)
    for path in (file, folder):
        os.utime(path, ns=(0, 0))
    return files.digest(folder)


@pytest.mark.parametrize("at", PLACES)
def test_each_byte_counts_with_its_place_and_a_hole_is_zeros(tmp_path: Path, at: int) -> None:
    plain = made(tmp_path, {}, hole=True)
    assert made(tmp_path, {}, hole=False) == plain
    one = made(tmp_path, {at: b"x"}, hole=True)
    assert made(tmp_path, {at: b"x"}, hole=False) == one
    others = {made(tmp_path, {place: b"x"}, hole=True) for place in PLACES if place != at}
    others.add(made(tmp_path, {at: b"y"}, hole=True))
    assert one not in others | {plain}


def test_the_same_piece_elsewhere_is_another_content(tmp_path: Path) -> None:
    piece = os.urandom(1 << 16)
    found = {made(tmp_path, {at << 16: piece}, hole=True) for at in range(4)}
    assert len(found) == 4
