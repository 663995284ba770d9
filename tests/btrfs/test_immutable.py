"""A volume that is immutable (`chattr +i`): its snapshots are, too, and neither they nor the copies
of them can be deleted or renamed as they are.
"""

from __future__ import annotations

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
