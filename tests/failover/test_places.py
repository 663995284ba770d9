"""A source whose file system is not mounted, or another one is: each is told apart, and nothing is
made below a mount point.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from mirrord.core.errors import Refused, Unreachable
from mirrord.drivers.block.volume import Volume
from mirrord.system.paths import Paths
from tests.contract.lab_block import SIZE_BYTES
from tests.failover.test_interrupted import stopped_at
from tests.support import btrfs
from tests.support.verbs import Service
from tests.support.world import NAME


class Disks:
    """A disk that is mounted on a folder of another one, and a mirror from the first."""

    def __init__(self, below: Path, image: Path, spare: Path, folder: Path) -> None:
        self.mount = below / "disk"
        self.mount.mkdir()
        self.image, self.spare = image, spare
        self.service = Service(Paths(folder / "etc", folder / "state", folder / "run"))

    def attach(self, image: Path) -> None:
        subprocess.run(["mount", "-o", "loop,noatime", image, self.mount], check=True)

    def detach(self) -> None:
        subprocess.run(["umount", self.mount], check=True)

    def create(self, kind: str, destination: Path, *, by_link: str = "") -> Path:
        source = self.mount / "home"
        if kind == "btrfs":
            btrfs.make_subvolume(source)
            (source / "file").write_text("data")
        else:
            with Volume.create(source, SIZE_BYTES) as volume:
                volume.write(0, b"data")
        path = source
        if by_link:
            link = self.mount.with_name("link")
            link.symlink_to(self.mount / by_link)
            path = link / source.relative_to(self.mount / by_link)
        self.service.create(NAME, f"{kind}:{path}", f"{kind}:{destination}")
        self.service.initialize(NAME)
        return source


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    images = []
    for name in ("a", "b"):
        image = tmp_path / name
        with image.open("wb") as file:
            file.truncate(256 << 20)
        btrfs.make_filesystem(image)
        images.append(image)
    with btrfs.folders() as (below, _there):
        made = Disks(below, images[0], images[1], tmp_path / "home")
        made.attach(made.image)
        try:
            yield made
        finally:
            made.service.close()
            if os.path.ismount(made.mount):
                made.detach()


@contextmanager
def taken_away(disks: Disks, kind: str, *, by_link: str = "") -> Iterator[Path]:
    """The place of an initialized source, whose disk is not mounted any more."""
    with btrfs.folders() as (_here, there):
        source = disks.create(kind, there / "copy", by_link=by_link)
        disks.detach()
        yield source


@pytest.mark.parametrize("by_link", [".", "home"], ids=["to_the_disk", "to_the_volume"])
def test_a_source_is_told_apart_too_when_a_link_leads_to_it(disks: Disks, by_link: str) -> None:
    with taken_away(disks, "btrfs", by_link=by_link):
        verbs: list[Callable[[], object]] = [
            lambda: disks.service.update(NAME),
            lambda: disks.service.restore_all(NAME, snapshot=None, yes=True),
        ]
        for verb in verbs:
            with pytest.raises(Refused, match="file system of the source is not mounted"):
                verb()
        assert os.listdir(disks.mount) == [], "nothing was made below the mount point"
        disks.attach(disks.image)
        assert disks.service.update(NAME).status == "unchanged"


@pytest.mark.parametrize("kind", ["btrfs", "block"])
def test_each_reason_has_a_message_and_nothing_is_made(
    disks: Disks, kind: str, tmp_path: Path
) -> None:
    with taken_away(disks, kind) as source:
        verbs: list[Callable[[], object]] = [
            lambda: disks.service.update(NAME),
            lambda: disks.service.restore_all(NAME, snapshot=None, yes=True),
        ]
        for verb in verbs:
            with pytest.raises(Refused, match="file system of the source is not mounted") as error:
                verb()
            assert str(disks.mount) in error.value.hint
        assert os.listdir(disks.mount) == [], "nothing was made below the mount point"
        disks.attach(disks.spare)
        with pytest.raises(Refused, match="another file system is mounted"):
            disks.service.update(NAME)
        assert os.listdir(disks.mount) == []
        # A new disk in the place of a lost one: that is what a restore is for.
        disks.service.restore_all(NAME, snapshot=None, yes=True)
        assert source.exists()
        disks.service.update(NAME)
        disks.detach()
        disks.attach(disks.image)


@pytest.mark.parametrize("kind", ["btrfs", "block"])
@pytest.mark.parametrize("label", ["ENGINE:SWITCH:CONFIRMED", "CATALOGUE:TRANSFER:BEGIN"])
def test_an_interrupted_restore_does_not_continue_below_a_mount_point(
    disks: Disks, kind: str, label: str
) -> None:
    """The host was started again, and the new disk is not mounted yet."""
    with taken_away(disks, kind) as source:
        disks.attach(disks.spare)
        restore = partial(disks.service.restore_all, NAME, snapshot=None, yes=True)
        stopped_at(label, restore)
        disks.detach()
        for verb in (partial(disks.service.update, NAME), restore):
            with pytest.raises(Refused, match="file system of the source is not mounted"):
                verb()
        assert os.listdir(disks.mount) == [], "nothing was made below the mount point"
        disks.attach(disks.spare)
        disks.service.update(NAME)
        assert source.exists()


@pytest.mark.parametrize("kind", ["btrfs", "block"])
def test_what_a_destination_has_received_is_kept_while_it_is_not_mounted(
    disks: Disks, kind: str
) -> None:
    """The host was started again, and the destination is mounted late."""
    with btrfs.folders() as (_here, there):
        source = there / "source"
        if kind == "btrfs":
            (btrfs.make_subvolume(source) / "file").write_text("data")
        else:
            Volume.create(source, SIZE_BYTES).close()
        disks.service.create(NAME, f"{kind}:{source}", f"{kind}:{disks.mount / 'copy'}")
        committing = {"btrfs": "BTRFS:COMMIT:MOVE", "block": "BLOCK:COMMIT:ROOT:WRITE"}[kind]
        for label in ("CATALOGUE:TRANSFER:BEGIN", committing):
            stopped_at(label, partial(disks.service.initialize, NAME))
            disks.detach()
            with pytest.raises(Unreachable, match="file system of the destination is not mounted"):
                disks.service.initialize(NAME)
            assert os.listdir(disks.mount) == [], "nothing was made below the mount point"
            disks.attach(disks.image)
        result = disks.service.initialize(NAME)
        assert "an interrupted transfer was complete" in result.text
