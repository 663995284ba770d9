"""Subvolumes nested inside a mirrored one (`nested = true`), through the product's verbs."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.control.commands.history import history
from mirrord.core.errors import ConfigError, Damaged, MirrordError, Refused, UsageError
from mirrord.core.units import format_duration
from mirrord.drivers.btrfs import assemble, nested
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.memberstreams import Manifest, Member
from mirrord.system import steps
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs
from tests.support.world import NAME, World

ENDS = ("source", "destination")


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


def test_every_nested_subvolume_is_verified_as_it_is_shown(world: World) -> None:
    def differences(**options: Any) -> list[tuple[str, str]]:
        done = world.service.verify(NAME, **options)
        return [(one["path"], one["what"]) for one in done.data["differences"]]

    home = source(world)
    (home / "a/deep/data").write_bytes(os.urandom(1 << 20))
    world.initialized(nested=True)
    assert differences() == []
    (home / "a").rename(home / "c")  # names are exchanged
    (home / "b").rename(home / "a")
    (home / "c").rename(home / "b")
    (home / "b/deep/file").write_text("changed")
    btrfs.make_subvolume(home / "new")
    (home / "new/file").write_text("new")
    world.service.update(NAME)
    done = world.service.verify(NAME, changed=True)
    found = [one.lstat() for one in home.rglob("*")]
    files = {(one.st_dev, one.st_ino) for one in found if stat.S_ISREG(one.st_mode)}
    assert done.data["equal"] and done.data["files"] == len(files)
    (home / "b/deep/file").write_text("changed again")
    world.service.update(NAME)
    done = world.service.verify(NAME, changed=True)
    assert done.data["equal"] and 0 < sum(done.data["read_bytes"].values()) < 1 << 20
    shown = view(world) / "b/deep"
    for read_only in ("false", "true"):
        subprocess.run(["btrfs", "property", "set", shown, "ro", read_only], check=True)
        if read_only == "false":
            with (shown / "data").open("r+b") as file:
                file.write(b"damage")
    assert differences() == [("b/deep/data", "metadata"), ("b/deep/data", "content")]
    (home / "a/file").write_text("again")
    world.service.update(NAME)  # a new tree, from the members' snapshots
    assert differences() == []


def test_a_writable_copy_has_the_nested_subvolumes_and_nothing_of_a_user_goes_with_it(
    world: World,
) -> None:
    world.initialized(nested=True)
    other = str(source(world).with_name("copy"))
    with pytest.raises(Refused, match="on the destination's file system"):
        world.service.begin_test(NAME, place=other)
    copy = Path(world.service.begin_test(NAME).data["location"])
    assert btrfs.digest(copy) == btrfs.digest(view(world))
    (copy / "a/deep/file").write_text("tried")
    (copy / "a/deep").rename(copy / "moved")
    btrfs.make_subvolume(copy / "b/own")
    (copy / "b/own/file").write_text("of a user")
    (source(world) / "b/file").write_text("newer")
    world.service.update(NAME)
    assert in_step(world) and (copy / "moved/file").read_text() == "tried"
    with pytest.raises(Refused, match="contains the subvolume 'b/own'"):
        world.service.end_test(NAME)
    assert (copy / "moved/file").read_text() == "tried"
    (copy / "b/own").rename(copy.with_name("kept"))
    place = view(world).parent.with_name("other")
    world.service.create("other", f"btrfs:{copy / 'b'}", f"btrfs:{place}")
    world.service.initialize("other")
    with pytest.raises(Refused, match="contains the subvolume"):  # a snapshot of that mirror
        world.service.end_test(NAME)
    assert (copy / "b/file").read_text() == "b" and (copy / "moved/file").exists()
    world.service.break_off("other")
    world.service.delete("other", yes=True, keep_snapshots=False)
    assert world.service.end_test(NAME).status == "done"
    assert not copy.exists() and (copy.with_name("kept") / "file").read_text() == "of a user"
    assert in_step(world)


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


def test_a_file_of_a_nested_subvolume_is_restored(world: World) -> None:
    world.initialized(nested=True)
    (source(world) / "a/deep/file").unlink()
    world.service.restore_files(NAME, ["a/deep/file"], snapshot=None, into=None, overwrite=False)
    assert (source(world) / "a/deep/file").read_text() == "a/deep"


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


def test_a_lost_source_is_restored_and_continues_incrementally(world: World) -> None:
    home = source(world)
    (home / "a/data").write_bytes(os.urandom(4 << 20))
    world.initialized(nested=True, keep_source="1")
    home.rename(home.parent / "lost")
    world.service.restore_all(NAME, snapshot=None, yes=True)
    assert in_step(world) and (home / "a/deep/file").read_text() == "a/deep"
    for number in range(4):  # what its members began as is deleted meanwhile
        (home / "a/file").write_text(str(number))
        done = world.service.update(NAME)
        assert in_step(world) and done.data["stream_bytes"] < 1 << 20, done.data


def test_a_mirror_does_not_become_one_of_the_other_kind(world: World) -> None:
    world.initialized(nested=True)
    file = world.paths.mirrors / f"{NAME}.toml"
    nested_text = file.read_text()
    for change in ("nested = false", ""):
        file.write_text(nested_text.replace("nested = true", change))
        assert "another kind" in str(world.status()["problems"])
        for verb in ("update", "break", "delete"):
            done = world.cli(verb, NAME)
            assert done.returncode == 1 and "kind of a mirror" in done.stderr, done
            assert "'nested'" in done.stderr
    with pytest.raises(Refused, match="of a mirror with nested"):
        BtrfsDriver(world.lab.destination().location).promote()
    file.write_text(nested_text)
    assert in_step(world) and view(world).is_symlink()
    world.service.update(NAME)


def test_a_damaged_list_of_members_at_the_source_costs_that_snapshot_only(world: World) -> None:
    world.initialized(nested=True)
    (source(world) / "a/file").write_text("1")
    world.service.update(NAME)
    store = source(world).parent / ".mirrord/home/snapshots"
    newest = max(store.iterdir(), key=lambda one: one.name)
    (newest / "members.json").write_text("x")
    (source(world) / "a/file").write_text("2")
    with pytest.raises(MirrordError, match="its record is damaged"):
        world.service.update(NAME)
    world.service.resync(NAME, yes=True)
    assert in_step(world)


def test_break_works_when_the_list_of_what_is_shown_is_damaged(world: World) -> None:
    world.initialized(nested=True)
    shown = view(world).readlink().name
    (view(world).parent / f".mirrord/current/snapshots/{shown}/members.json").write_text("x")
    world.service.break_off(NAME)
    assert in_step(world)
    (view(world) / "a/deep/file").write_text("written")


def test_delete_leaves_no_snapshots_of_nested_ones_at_the_source(world: World) -> None:
    world.initialized(nested=True)
    (source(world) / "a/file").write_text("1")
    world.service.update(NAME)
    world.service.delete(NAME, yes=True, keep_snapshots=False)
    assert not list((source(world).parent / ".mirrord").rglob("mirrord.*"))


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_folder_in_the_place_of_the_view_is_kept_and_said(
    world: World, *, is_nested: bool
) -> None:
    world.initialized(nested=is_nested)
    view(world).unlink()
    view(world).mkdir()
    (view(world) / "mine").write_text("mine")
    for verb in (world.service.update, world.service.break_off):
        with pytest.raises(Refused, match="in the place of the destination's view") as caught:
            verb(NAME)
    with pytest.raises(Refused, match="in the place of the destination's view"):
        world.service.resync(NAME, yes=True)
    advised = caught.value.hint.partition("(mv ")[2].partition(")")[0].split()
    subprocess.run(["mv", *advised], check=True)
    world.service.update(NAME)
    assert (view(world) / "dir1").is_dir() and Path(advised[1], "mine").read_text() == "mine"
    world.service.break_off(NAME)


@pytest.mark.parametrize("is_nested", [False, True])
def test_damaged_records_are_not_taken_for_changed_snapshots_alone(
    world: World, *, is_nested: bool
) -> None:
    world.initialized(nested=is_nested)
    for record in (view(world).parent / ".mirrord").rglob("transfer.json"):
        record.write_text("x")
    (source(world) / "later").write_text("later")
    with pytest.raises(MirrordError, match=r"at the destination, or its record is damaged"):
        world.service.update(NAME)
    world.service.break_off(NAME)
    assert (view(world) / "dir1").is_dir()


def test_history_shows_how_far_apart_the_snapshots_are(world: World) -> None:
    world.create(nested=True)
    count = 0

    def slow(label: str) -> None:
        nonlocal count
        if label == "BTRFS:SNAPSHOT:TAKE":
            count += 1
            # (The others may still be taken when this one is asked for: each has its thread.)
            time.sleep(0.5 if count == 4 else 0)

    steps.observe(slow)
    world.service.initialize(NAME)
    steps.observe(None)
    [row] = world.service.history(NAME, limit=5).transfers
    assert count == 4 and row.spread_ms is not None and 90 <= row.spread_ms < 60_000
    assert history.text is not None
    shown = "\n".join(history.text(world.service.history(NAME, limit=5), {"limit": 5}))
    assert f"members {format_duration(row.spread_ms / 1000)} apart" in shown


@pytest.mark.parametrize("tree", ["deleted", "left"])
def test_snapshots_are_pruned_after_one_was_deleted_by_hand(world: World, tree: str) -> None:
    """Somebody needed space: the folder of that snapshot still has the place of its tree."""
    world.initialized(nested=True, keep_destination=2)
    store = view(world).parent / ".mirrord/current/snapshots"
    [wrapper] = store.iterdir()
    (source(world) / "new").write_text("1")
    world.service.update(NAME)
    if tree == "deleted":
        btrfs.delete_subvolume(wrapper / "tree" / wrapper.name)
    btrfs.delete_subvolume(wrapper / wrapper.name)
    for number in range(4):
        (source(world) / "new").write_text(f"{number}+")
        world.service.update(NAME)
    assert in_step(world) and len(world.lab.destination().snapshots()) <= 2
    assert wrapper.exists() == (tree == "left")
    events = [one.text for one in world.service.history(NAME, limit=50).events]
    assert not any("failed" in one for one in events), events
