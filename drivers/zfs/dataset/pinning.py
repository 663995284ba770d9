"""The pins of a volume: one user property of its dataset, which is set by one command and read
together with all other properties.

(Holds would need two commands per update at each end, and a third to read them.)
"""

from __future__ import annotations

from collections.abc import Sequence

from mirrord.drivers import pins
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks
from mirrord.drivers.zfs.dataset.place import Dataset


def pin(here: Dataset, mirror_id: str, guids: Sequence[str], where: str) -> Dataset:
    """See `Driver.pin`; returns the dataset with the new pins."""
    before = here.pins
    after = pins.replaced(before, mirror_id, guids, where)
    if after == before:
        return here
    text = marks.pins_text(after)
    if text is None:
        raise pins.too_many(where)
    if after:
        words = ["zfs", "set", f"{marks.PINS}={text}", here.name]
    else:
        words = ["zfs", "inherit", marks.PINS, here.name]
    command.effect("ZFS:PIN:SET", words, where)
    value = (text, "local") if after else ("-", "-")
    return here._replace(properties={**here.properties, marks.PINS: value})
