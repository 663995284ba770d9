"""Subvolumes nested inside a mirrored one (`nested = true`), through the product's verbs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import ConfigError, Damaged, MirrordError, UsageError
from mirrord.drivers.btrfs import assemble, nested
from mirrord.drivers.memberstreams import Manifest, Member
from mirrord.system import steps
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs
from tests.support.world import NAME, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with btrfs.folders() as (here, there):
        lab = BtrfsLab(here, there)
        for inner in ("a", "b", "a/deep"):
            btrfs.make_subvolume(here / "home" / inner)
            (here / "home" / inner / "file").write_text(inner)
        world = World(lab, tmp_path)
        yield world
        steps.observe(None)
        world.clean_up()


def source(world: World) -> Path:
    return Path(world.lab.source().location)


def view(world: World) -> Path:
    return Path(world.lab.destination().location) / "current"


def in_step(world: World) -> bool:
    return btrfs.digest(source(world)) == btrfs.digest(view(world))


def test_nested_subvolumes_are_shown_in_their_places_and_follow_their_uuids(world: World) -> None:
    world.initialized(nested=True)
    home = source(world)
    assert in_step(world) and (view(world) / "a/deep/file").read_text() == "a/deep"
    (home / "a").rename(home / "c")  # names are exchanged
    (home / "b").rename(home / "a")
    (home / "c").rename(home / "b")
    (home / "b/deep").rename(home / "dir1/moved")
    (home / "dir1/moved/file").write_text("changed")
    btrfs.make_subvolume(home / "new")
    (home / "new/file").write_text("new")
    world.service.update(NAME)
    assert in_step(world) and (view(world) / "b/file").read_text() == "a"
    subprocess.run(["btrfs", "-q", "subvolume", "delete", home / "new"], check=True)
    world.service.update(NAME)
    assert in_step(world) and not (view(world) / "new").exists()


def test_a_renamed_subvolume_is_not_sent_again(world: World) -> None:
    home = source(world)
    (home / "a/data").write_bytes(os.urandom(4 << 20))
    world.initialized(nested=True)
    (home / "a").rename(home / "renamed")
    done = world.service.update(NAME)
    assert in_step(world) and 0 < done.data["stream_bytes"] < 1 << 20, done.data


def test_read_only_and_snappers_subvolumes_are_skipped_and_named(world: World) -> None:
    home = source(world)
    btrfs.make_subvolume(home / ".snapshots")
    btrfs.make_subvolume(home / ".snapshots/1")
    subprocess.run(
        ["btrfs", "-q", "subvolume", "snapshot", "-r", home / "a", home / "fixed"], check=True
    )
    created = world.create(nested=True)
    assert "fixed" in created.text and ".snapshots" in created.text
    world.service.initialize(NAME)
    shown = {path.name for path in view(world).iterdir()}
    assert "a" in shown and not {"fixed", ".snapshots"} & shown


def test_break_makes_the_nested_ones_real_and_writable(world: World) -> None:
    world.initialized(nested=True)
    with pytest.raises(OSError, match="Read-only"):
        (view(world) / "a/deep/file").write_text("no")
    world.service.break_off(NAME)
    assert in_step(world)
    (view(world) / "a/deep/file").write_text("written")
    for inner in ("a", "b", "a/deep"):
        assert os.lstat(view(world) / inner).st_ino == 256
    for verb in (world.service.resync, world.service.reverse):
        with pytest.raises(MirrordError, match="nested"):
            verb(NAME, yes=True)
    assert (view(world) / "a/deep/file").read_text() == "written"


def test_a_file_of_a_nested_subvolume_is_restored(world: World) -> None:
    world.initialized(nested=True)
    (source(world) / "a/deep/file").unlink()
    world.service.restore_files(NAME, ["a/deep/file"], snapshot=None, into=None, overwrite=False)
    assert (source(world) / "a/deep/file").read_text() == "a/deep"
    with pytest.raises(MirrordError, match="nested"):
        world.service.restore_all(NAME, snapshot=None, yes=True)


def test_a_path_is_never_followed_out_of_the_volume(tmp_path: Path) -> None:
    for path in ("../x", "/x", "a/../../x", "a//b", ".", ".mirrord/x", "n" * 256):
        text = Manifest(
            (
                Member("", "0" * 32 + ":1", "", None),
                Member(path, "1" * 32 + ":1", "", None),
            )
        ).text()
        with pytest.raises(ValueError, match="not a valid path"):
            nested.parse(text)


def test_a_symbolic_link_in_the_place_of_a_folder_is_refused(world: World) -> None:
    home, outside = source(world), source(world).parent / "outside"
    outside.mkdir()
    (home / "link").symlink_to(outside)
    with pytest.raises(Damaged, match="no place"):
        assemble._put(home, "link/inner", home / "a", "here")
    assert not any(outside.iterdir())


def test_it_is_refused_where_there_are_none(world: World) -> None:
    with pytest.raises(ConfigError, match="nested"):
        world.service.create("x", "zfs:a/b", "zfs:c/d", nested=True)
    with pytest.raises(UsageError, match="--nested"):
        world.create(nested=True, snapshots=("daily-*",))
