"""Damage to whole volumes, as people and disks do it."""

from __future__ import annotations

import shutil
from pathlib import Path

from mirrord.drivers.block.volume import Volume
from mirrord.drivers.contract import Driver
from mirrord.engine.members import Members
from tests.contract.lab import Lab
from tests.contract.lab_block import SIZE_BYTES
from tests.contract.zfs import ZfsLab
from tests.support.btrfs import clear, delete_subvolume, make_subvolume


def lose(lab: Lab, driver: Driver) -> None:
    """The volume and all that mirrord had beside it are gone; of an end, each member's."""
    if isinstance(driver, Members):
        for one in driver.drivers:
            lose(lab, one)
        return
    if isinstance(lab, ZfsLab):
        for name in lab.beside(driver):
            lab.guest.user("clean", name)
        return
    if driver.kind == "block":
        shutil.rmtree(driver.location)
        return
    view = Path(driver.facts().view)
    store = view.parent / ".mirrord" / view.name
    if view.is_symlink():
        view.unlink()
    elif view.exists():
        delete_subvolume(view)
    clear(store)


def replace(lab: Lab, driver: Driver) -> None:
    """Somebody moves the volume away, and makes an empty one in its place."""
    if isinstance(lab, ZfsLab):
        lab.replace(driver)
        return
    place = Path(driver.location)
    place.rename(place.with_name(f"{place.name}.old"))
    if driver.kind == "block":
        Volume.create(place, SIZE_BYTES).close()
        return
    make_subvolume(place)
    (place / "stray").write_text("another volume's")
