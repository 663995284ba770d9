"""Damage to whole volumes, as people and disks do it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from mirrord.drivers.block.volume import Volume
from mirrord.drivers.contract import Driver
from mirrord.engine.members import Members
from tests.contract.lab import Lab
from tests.contract.lab_block import SIZE_BYTES
from tests.contract.zfs import ZfsLab

_ROOT_INODE = 256


def delete_subvolume(path: Path) -> None:
    """With those in it."""
    inner = [
        Path(at, name)
        for at, names, _ in os.walk(path, topdown=False)
        for name in names
        if os.lstat(Path(at, name)).st_ino == _ROOT_INODE
    ]
    if inner:
        words: list[str | Path] = ["btrfs", "property", "set", "-f", "-ts", path, "ro", "false"]
        subprocess.run(words, check=True)
    subprocess.run(["btrfs", "-q", "subvolume", "delete", *inner, path], check=True)


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
    below = [path for path in store.glob("*/*/*") if path.is_dir()]
    below += [path for path in store.glob("staging/*/*/*") if path.is_dir()]
    for path in below:
        if path.stat().st_ino == _ROOT_INODE:
            delete_subvolume(path)
    shutil.rmtree(store)


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
    subprocess.run(["btrfs", "-q", "subvolume", "create", place], check=True)
    (place / "stray").write_text("another volume's")
