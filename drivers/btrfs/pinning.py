"""The pins of a volume: a file for each mirror in its store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from mirrord.core.errors import Damaged
from mirrord.drivers import pins
from mirrord.drivers.btrfs import layout
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.pins import Pins
from mirrord.system import files

_SUFFIX = ".json"


def load(place: Layout) -> Pins:
    """All pins of a volume. `Damaged`: what a mirror has pinned cannot be known."""
    return {name: layout.read_pins(place.pins / f"{name}{_SUFFIX}") for name in _mirrors(place)}


def legible(place: Layout) -> Pins:
    """The same without what cannot be read: for a listing."""
    found = {}
    for name in _mirrors(place):
        with contextlib.suppress(Damaged):
            found[name] = layout.read_pins(place.pins / f"{name}{_SUFFIX}")
    return found


def _mirrors(place: Layout) -> list[str]:
    try:
        names = os.listdir(place.pins)
    except FileNotFoundError:
        return []
    return [
        name.removesuffix(_SUFFIX)
        for name in names
        if name.endswith(_SUFFIX) and not name.startswith(".")
    ]


def pin(place: Layout, mirror_id: str, guids: Sequence[str], where: str) -> None:
    """See `Driver.pin`."""
    before = legible(place)
    after = pins.replaced(before, mirror_id, guids, where)
    path = place.pins / f"{mirror_id}{_SUFFIX}"
    if mirror_id not in after:
        if path.exists():
            files.remove_file("BTRFS:PIN:REMOVE", path)
    elif after != before and place.store.is_dir():
        files.make_directory("BTRFS:PIN:FOLDER", place.pins, mode=0o700)
        layout.write_pins("BTRFS:PIN", path, after[mirror_id])
