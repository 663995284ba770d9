"""Pins as files: what a power cut may leave of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.core.errors import Damaged
from mirrord.drivers import pinfiles


@pytest.mark.parametrize("left", ["", "{", "[]", '{"format": 1}', '{"format": 2, "guids": []}'])
def test_what_cannot_be_read_keeps_everything_until_its_mirror_pins_anew(
    tmp_path: Path, left: str
) -> None:
    folder = tmp_path / "pins"
    for mirror_id, guid in (("0a0a0a0a", "one"), ("0b0b0b0b", "two")):
        pinfiles.pin(folder, "TEST:PIN", mirror_id, [guid], "here")
    (folder / "0b0b0b0b.json").write_text(left)
    with pytest.raises(Damaged, match="0b0b0b0b") as caught:
        pinfiles.load(folder)
    assert "--unpin 0b0b0b0b" in caught.value.hint
    assert pinfiles.legible(folder) == {"0a0a0a0a": ("one",)}
    pinfiles.pin(folder, "TEST:PIN", "0b0b0b0b", ["three"], "here")
    assert pinfiles.load(folder) == {"0a0a0a0a": ("one",), "0b0b0b0b": ("three",)}


def test_what_is_half_written_beside_is_none(tmp_path: Path) -> None:
    pinfiles.pin(tmp_path, "TEST:PIN", "0a0a0a0a", ["one"], "here")
    (tmp_path / ".0a0a0a0a.json.new").write_text('{"format": 1, "gu')
    assert pinfiles.load(tmp_path) == {"0a0a0a0a": ("one",)}
    pinfiles.pin(tmp_path, "TEST:PIN", "0a0a0a0a", [], "here")
    assert pinfiles.load(tmp_path) == {}


def test_a_link_that_somebody_put_in_the_way_is_not_followed(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("kept")
    folder = tmp_path / "pins"
    folder.mkdir()
    (folder / ".0a0a0a0a.json.new").symlink_to(private)
    with pytest.raises(OSError):
        pinfiles.pin(folder, "TEST:PIN", "0a0a0a0a", ["one"], "here")
    assert private.read_text() == "kept"
