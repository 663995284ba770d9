"""A live volume with nested subvolumes is set aside and rolled back, by the product's verbs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mirrord.core.errors import Busy, MirrordError, Refused
from mirrord.core.model import Role, SnapshotKind
from tests.btrfs.test_nested import in_step, source, view
from tests.btrfs.test_nested import world as _world
from tests.support import btrfs
from tests.support.world import NAME, World

world = _world


def delete(*paths: Path) -> None:
    subprocess.run(["btrfs", "-q", "subvolume", "delete", *paths], check=True)


def kept(world: World, which: str) -> list[Path]:
    """The trees that were set aside at an end, each with all of it."""
    found = world.driver(which).snapshots()
    return [Path(one.path) for one in found if one.kind is SnapshotKind.DIVERGED]


def read_only(path: Path) -> bool:
    words: list[str | Path] = ["btrfs", "property", "get", "-ts", path, "ro"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() == "ro=true"


def test_resync_keeps_what_was_written_in_each_of_them(world: World) -> None:
    world.initialized(nested=True)
    world.service.break_off(NAME)
    here, there = source(world), view(world)
    (there / "a/deep/file").write_text("written")
    btrfs.make_subvolume(there / "new")
    (there / "new/file").write_text("new")
    btrfs.make_subvolume(there / "new/inner")
    delete(there / "b")
    (there / "a/deep").rename(there / "moved")
    lost = btrfs.digest(there)
    (here / "a/file").write_text("later")
    btrfs.make_subvolume(here / "later")
    asked = world.service.resync(NAME, yes=False).text
    for line in ("added     new/file", "renamed   moved/", "deleted   b/", "modified  moved/file"):
        assert line in asked, asked
    done = world.service.resync(NAME, yes=True)
    assert in_step(world) and (there / "later").is_dir()
    [aside] = kept(world, "destination")
    assert btrfs.digest(aside) == lost and done.data["kept_as"] == aside.name
    for inner in ("", "a", "moved", "new", "new/inner"):
        assert read_only(aside / inner) and (aside / inner).lstat().st_ino == 256, inner
    (here / "a/deep/file").write_text("again")
    done = world.service.update(NAME)
    assert in_step(world) and done.data["stream_bytes"] < 1 << 20
    [one] = [s for s in world.driver("destination").snapshots() if s.kind is SnapshotKind.DIVERGED]
    world.driver("destination").delete_snapshot(one.guid)
    assert kept(world, "destination") == [] and not aside.parent.exists()


def test_what_was_set_aside_is_not_intact_without_the_list_of_its_subvolumes(world: World) -> None:
    world.initialized(nested=True)
    world.service.break_off(NAME)
    (view(world) / "a/file").write_text("written")
    world.service.resync(NAME, yes=True)
    [aside] = kept(world, "destination")
    for has_list in (True, False):
        [one] = [s for s in world.driver("destination").snapshots() if s.path == str(aside)]
        assert one.intact is has_list
        (aside.parent / "parts.json").unlink(missing_ok=True)
    with pytest.raises(MirrordError):
        world.driver("destination").delete_snapshot(one.guid)
    assert (aside / "a/file").read_text() == "written"


def test_reverse_there_and_back_keeps_nothing_superfluous(world: World) -> None:
    world.initialized(nested=True)
    for number in range(3):
        here, there = (Path(world.driver(end).facts().view) for end in ("source", "destination"))
        (here / "a/deep/file").write_text(str(number))
        btrfs.make_subvolume(here / f"new{number}")
        done = world.service.reverse(NAME, yes=True)
        assert done.status == "done" and done.data["kept_as"] is None, done
        assert btrfs.digest(here) == btrfs.digest(there)
        assert (there / "a/deep/file").read_text() == str(number)
        with pytest.raises(OSError, match="Read-only"):
            (here / "a/deep/file").write_text("no")
        (there / "b/file").write_text(f"at the new source {number}")
        done = world.service.update(NAME)
        assert btrfs.digest(here) == btrfs.digest(there) and done.data["stream_bytes"] < 1 << 20
    for end in ("source", "destination"):
        assert kept(world, end) == []


def test_reverse_after_a_break_keeps_the_source_with_all_of_it(world: World) -> None:
    world.initialized(nested=True)
    world.service.break_off(NAME)
    (view(world) / "a/file").write_text("winning")
    (source(world) / "a/deep/file").write_text("losing")
    lost = btrfs.digest(source(world))
    world.service.reverse(NAME, yes=True)
    assert in_step(world) and (source(world) / "a/file").read_text() == "winning"
    [aside] = kept(world, "destination")
    assert btrfs.digest(aside) == lost


def test_restore_all_over_a_live_volume(world: World) -> None:
    world.initialized(nested=True)
    (source(world) / "a/deep/file").write_text("wrong")
    delete(source(world) / "b")
    lost = btrfs.digest(source(world))
    world.service.restore_all(NAME, snapshot=None, yes=True)
    assert in_step(world) and (source(world) / "a/deep/file").read_text() == "a/deep"
    (source(world) / "b/file").write_text("writable")
    [aside] = kept(world, "source")
    assert btrfs.digest(aside) == lost
    assert world.service.update(NAME).status == "done" and in_step(world)


def test_what_is_not_mirrored_moves_along_and_is_never_deleted(world: World) -> None:
    home = source(world)
    btrfs.make_subvolume(home / ".snapshots")
    btrfs.make_subvolume(home / ".snapshots/1")
    (home / ".snapshots/1/file").write_text("snapper's")
    words: list[str | Path] = ["btrfs", "-q", "subvolume", "snapshot", "-r", home / "a"]
    subprocess.run([*words, home / "fixed"], check=True)
    world.initialized(nested=True)
    asked = world.service.reverse(NAME, yes=False).text
    assert ".snapshots" in asked and "fixed" in asked, asked
    assert world.service.reverse(NAME, yes=True).status == "done"
    assert (
        (home / "a/deep/file").read_text() == "a/deep" == (view(world) / "a/deep/file").read_text()
    )
    for skipped in (home / "fixed", home / ".snapshots"):
        assert list(skipped.iterdir()) == [], "an empty directory is in its place"
    [aside] = kept(world, "destination")
    assert (aside / ".snapshots/1/file").read_text() == "snapper's"
    assert (aside / "fixed/file").read_text() == "a" and not read_only(aside / ".snapshots")
    [one] = [s for s in world.driver("destination").snapshots() if s.kind is SnapshotKind.DIVERGED]
    with pytest.raises(Refused, match="contains the nested subvolume"):
        world.driver("destination").delete_snapshot(one.guid)
    assert (aside / "a/deep/file").read_text() == "a/deep"
    subprocess.run(["btrfs", "property", "set", "-ts", aside, "ro", "false"], check=True)
    delete(aside / ".snapshots/1", aside / ".snapshots", aside / "fixed")
    world.driver("destination").delete_snapshot(one.guid)
    assert not aside.exists()


@pytest.mark.parametrize("nested", [True, False])
def test_copies_of_another_mirror_in_it_are_never_deleted(world: World, nested: bool) -> None:
    home = source(world)
    if not nested:
        delete(home / "a/deep", home / "a", home / "b")
    web = btrfs.make_subvolume(home.parent / "web")
    (web / "file").write_text("of another mirror")
    world.service.create("web", f"btrfs:{web}", f"btrfs:{home / 'dir3/web'}")
    world.service.initialize("web")
    world.initialized(nested=nested)
    done = world.service.reverse(NAME, yes=True)
    assert done.status == "done" and done.data["kept_as"] is not None, done
    [aside] = kept(world, "destination")
    copies = list(aside.glob("dir3/web/.mirrord/*/snapshots/*/*/file"))
    assert [path.read_text() for path in copies] == ["of another mirror"]
    [one] = [s for s in world.driver("destination").snapshots() if s.kind is SnapshotKind.DIVERGED]
    with pytest.raises(Refused, match="contains the nested subvolume"):
        world.driver("destination").delete_snapshot(one.guid)
    assert copies[0].exists()


def test_something_else_takes_the_place_of_a_nested_one_after_a_reverse(world: World) -> None:
    """The base of the first update after it was taken there: it has empty directories for them."""
    btrfs.make_subvolume(source(world) / "dir3/inner")
    btrfs.make_subvolume(source(world) / "c")
    world.initialized(nested=True)
    world.service.reverse(NAME, yes=True)
    there = view(world)
    delete(there / "a/deep", there / "a", there / "b", there / "c", there / "dir3/inner")
    (there / "a").write_text("a file now")
    shutil.rmtree(there / "dir3")
    os.link(there / "big", there / "c")
    (there / "b").mkdir()
    (there / "b/file").write_text("in a directory now")
    world.service.update(NAME)
    assert in_step(world) and (source(world) / "a").read_text() == "a file now"


def test_a_writer_in_a_nested_one_is_named_and_what_it_writes_is_kept(world: World) -> None:
    world.initialized(nested=True)
    with (source(world) / "a/deep/file").open("a", encoding="ascii") as file:
        with pytest.raises(Refused, match="open for writing"):
            world.service.reverse(NAME, yes=True)
        assert world.driver("source").facts().role is Role.LIVE
        (source(world) / "a/deep/more").write_text("it is not frozen")
        done = world.service.reverse(NAME, yes=True, force=True)
        file.write("written by the open file")
        file.flush()
        (aside,) = kept(world, "destination")
    assert "open for writing" in done.text
    assert (aside / "a/deep/file").read_text() == "a/deepwritten by the open file"


def test_a_freeze_includes_all_and_ends_for_those_that_it_made_read_only(world: World) -> None:
    world.initialized(nested=True)
    home = source(world)
    words: list[str | Path] = ["btrfs", "-q", "subvolume", "snapshot", "-r", home / "a"]
    subprocess.run([*words, home / "fixed"], check=True)
    driver = world.driver("source")
    mark = driver.mark()
    driver.freeze()
    assert all(read_only(home / path) for path in ("", "a", "b", "a/deep"))
    assert driver.is_marked(mark) and world.driver("source").facts().frozen
    taken = driver.take_snapshot("frozen")
    assert set(driver.members(taken.guid).values()) == {"", "a", "b", "a/deep"}
    with pytest.raises(Busy):
        world.driver("source").thaw()
    driver.thaw()
    assert [read_only(home / path) for path in ("", "a", "b", "a/deep", "fixed")] == [
        False, False, False, False, True,
    ]  # fmt: skip
    assert not driver.changed_since(taken.guid)


def test_a_mounted_volume_is_not_set_aside_and_the_hint_of_the_refusal_works(
    world: World, tmp_path: Path
) -> None:
    home, mount = source(world), tmp_path / "mounted"
    words: list[str | Path] = ["findmnt", "-n", "-o", "SOURCE,TARGET", "--target", home]
    device, whole = subprocess.run(words, capture_output=True, text=True).stdout.split()
    mount.mkdir()
    inner = f"subvol=/{home.relative_to(whole)}"
    subprocess.run(["mount", "-o", inner, device.split("[")[0], mount], check=True)
    try:
        there, other = home.parent / "second", home.parent / "third"
        world.service.create(NAME, f"btrfs:{mount}", f"btrfs:{there}", nested=True)
        world.service.initialize(NAME)
        world.service.break_off(NAME)
        (there / "current/a/deep/file").write_text("written")
        with pytest.raises(MirrordError, match="cannot become a destination") as caught:
            world.service.reverse(NAME, yes=True)
        named = caught.value.hint.split("'mirrord create ")[1].split("'")[0].split()
        named = [f"btrfs:{other}" if word == "NEW-DESTINATION" else word for word in named]
        for command in (["delete", NAME], ["create", *named], ["initialize", NAME]):
            done = world.cli(*command)
            assert done.returncode == 0, done.stderr
        assert (other / "current/a/deep/file").read_text() == "written"
    finally:
        world.service.close()
        subprocess.run(["umount", mount], check=True)
