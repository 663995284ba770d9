"""A volume that is immutable (`chattr +i`): its snapshots are, too, and neither they nor the copies
of them can be deleted or renamed as they are. Nor can what is immutable or append-only in a base.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import PermissionMissing
from mirrord.core.model import SnapshotKind
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs
from tests.support.world import NAME, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    # (In folders on a shared file system, what is immutable could not be removed.)
    with btrfs.filesystem() as here, btrfs.filesystem() as there:
        made = World(BtrfsLab(here, there), tmp_path / "home")
        yield made
        made.close()


def attribute(world: World, change: str) -> None:
    subprocess.run(["chattr", change, world.lab.source().location], check=True)


def test_snapshots_of_an_immutable_volume_are_pruned(world: World) -> None:
    world.initialized(keep_source=1, keep_destination=1)
    for number in range(3):
        world.lab.change(world.lab.source(), number)
        attribute(world, "+i")
        world.service.update(NAME)
        attribute(world, "-i")
    assert len(world.lab.source().snapshots()) == len(world.lab.destination().snapshots()) == 1
    assert world.in_step()


def test_a_restore_of_an_immutable_volume_is_refused_and_the_mirror_continues(world: World) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 1)
    attribute(world, "+i")
    with pytest.raises(PermissionMissing) as caught:
        world.service.restore_all(NAME, snapshot=None, yes=True)
    assert "chattr -i" in caught.value.hint and "as root (" not in caught.value.hint
    attribute(world, "-i")
    world.service.update(NAME)
    assert world.in_step()


def test_a_volume_is_restored_to_a_snapshot_that_is_immutable(world: World) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 1)
    attribute(world, "+i")
    world.service.update(NAME)
    attribute(world, "-i")
    wanted = world.source_content()
    world.lab.change(world.lab.source(), 2)
    world.service.restore_all(NAME, snapshot=None, yes=True)
    assert world.source_content() == wanted
    kept = [one.kind is SnapshotKind.DIVERGED for one in world.lab.source().snapshots()]
    assert sum(kept) == 1


def attributes(path: Path) -> str:
    found = subprocess.run(["lsattr", "-d", path], check=True, capture_output=True, text=True)
    return found.stdout.split()[0]


def change_all(fixed: Path, log: Path) -> None:
    """Change a folder and what is in it by each kind of command of a stream."""
    (fixed / "written").write_text("changed")
    os.truncate(fixed / "truncated", 1)
    (fixed / "removed").unlink()
    (fixed / "renamed").rename(fixed / "inner" / "new name")
    (fixed / "moved").rename(fixed.parent / "moved")
    (fixed / "mode").chmod(0o640)
    os.chown(fixed / "owner", 1, 1)
    os.setxattr(fixed / "xattr", "user.mirrord", b"changed")
    os.utime(fixed / "times", ns=(10**18, 10**18))
    (fixed / "linked").hardlink_to(fixed / "original")
    (fixed / "made").write_text("new")
    (fixed / "made folder").mkdir()
    (fixed / "empty").rmdir()
    (fixed / "inner").chmod(0o711)
    os.utime(fixed, ns=(10**18, 10**18))
    with log.open("r+") as file:
        file.write("overwritten")


def test_what_is_immutable_in_the_base_changes_after_a_failover(world: World) -> None:
    world.create()
    there = Path(world.lab.source().facts().view)
    fixed, log = there / "fixed", there / "log"
    names = ("written", "truncated", "removed", "renamed", "moved", "mode", "owner", "xattr")
    fixed.mkdir()
    for name in (*names, "times", "original", "kept"):
        (fixed / name).write_text(name)
    (fixed / "inner").mkdir()
    (fixed / "empty").mkdir()
    log.write_text("one line, and the next")
    subprocess.run(["chattr", "-R", "+i", fixed], check=True)
    subprocess.run(["chattr", "+a", log], check=True)
    attribute(world, "+i")
    world.service.initialize(NAME)
    attribute(world, "-i")
    world.service.update(NAME)
    world.service.reverse(NAME, yes=True)
    here = Path(world.lab.destination().facts().view)
    assert "i" not in attributes(here / "fixed")  # the copy is not immutable
    change_all(here / "fixed", here / "log")
    world.service.update(NAME)
    assert world.in_step()
    kept = Path(world.lab.source().facts().view) / "fixed" / "kept"
    assert "i" in attributes(kept)  # nothing has changed in it
    world.service.reverse(NAME, yes=True)
    world.lab.change(world.lab.source(), 1)
    world.service.update(NAME)
    assert world.in_step()
