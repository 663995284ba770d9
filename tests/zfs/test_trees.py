"""A dataset and its descendants as one mirror (`create --recursive`), on real pools."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pytest

from mirrord.core.errors import MirrordError
from tests.support.world import NAME
from tests.zfs.conftest import DISK_BYTES, Trees

pytestmark = pytest.mark.zfs

Point = tuple[str, int]
#: Where a tree is in between: some members have it and others not, in their places or not. (All
#: steps are tried by MIRRORD_TEST_TREE_STEPS=all; that takes half an hour.)
_ALL = os.environ.get("MIRRORD_TEST_TREE_STEPS") == "all"
_TELLING = frozenset(f"ZFS:TREE:{each}" for each in ("END", "RENAME", "CLONE"))


def test_a_tree_is_mirrored_whole_but_for_what_is_left_out(trees: Trees) -> None:
    trees.run("zfs", "set", "mirrord:mirror=off", f"{trees.source}/a")
    trees.mirrored()
    assert trees.children(trees.place) == ["", "b", "disk"]
    assert trees.update().status == "unchanged"
    trees.run("zfs", "inherit", "mirrord:mirror", f"{trees.source}/a")
    trees.write("a/deep/file", "changed")
    trees.write("new", "in the root")
    trees.change_disk(1)
    assert trees.update().status == "done"
    trees.the_same()
    assert trees.beside(trees.place) == []
    assert trees.status()["healthy"]


def test_children_come_go_move_and_are_made_anew(trees: Trees) -> None:
    """What the source no longer has is kept beside the destination's root, never destroyed."""
    trees.mirrored()
    source = trees.source
    trees.run("zfs", "create", f"{source}/a/new")
    trees.write("a/new/file", "new")
    trees.run("zfs", "rename", f"{source}/b", f"{source}/a/moved")
    trees.destroy("a/deep")
    trees.update()
    trees.the_same()
    [gone] = trees.beside(trees.place)
    assert any(gone in note for note in trees.status()["notes"])
    assert trees.run("zfs", "get", "-H", "-o", "value", "readonly", gone).strip() == "on"
    folder = trees.run("zfs", "get", "-H", "-o", "value", "mountpoint", gone).strip()
    assert trees.guest.user("read_text", f"{folder}/file") == "a/deep"
    # The two change places, and a third is another one under the old name.
    trees.run("zfs", "rename", f"{source}/a/moved", f"{source}/aside")
    trees.run("zfs", "rename", f"{source}/a/new", f"{source}/a/moved")
    trees.run("zfs", "rename", f"{source}/aside", f"{source}/a/new")
    trees.destroy("disk")
    trees.run("zfs", "create", "-s", "-b", "8K", "-V", str(DISK_BYTES), f"{source}/disk")
    trees.change_disk(7)
    trees.update()
    trees.the_same()
    assert len(trees.beside(trees.place)) == 2
    written = trees.run("zfs", "get", "-Hrp", "-o", "name,value", "written", source)
    again = trees.update()
    assert again.status == "unchanged", (again, written)


@pytest.mark.nightly
def test_break_resync_and_reverse_of_a_tree(trees: Trees) -> None:
    trees.mirrored()
    base = trees.digests(trees.source)
    trees.service.break_off(NAME)
    place = trees.place
    trees.write("b/file", "written after the break", place)
    trees.run("zfs", "create", f"{place}/own")
    trees.write("own/file", "a child of the destination's", place)
    trees.write("a/file", "meanwhile at the source")
    asked = trees.service.resync(NAME, yes=False)
    assert (
        asked.status == "confirmation-required" and "b/file" in asked.text and "own/" in asked.text
    )
    trees.service.resync(NAME, yes=True)
    trees.the_same()
    kept = [one for one in trees.beside(place) if one.count("/") == place.count("/")]
    assert len(kept) == 1 and trees.digests(trees.source) != base
    diverged = next(s for s in trees.lab.driver(place).snapshots() if s.kind.value == "diverged")
    snapshots = trees.run("zfs", "list", "-Hr", "-t", "snapshot", "-o", "name", kept[0]).split()
    assert {f"{kept[0]}{end}@{diverged.name}" for end in ("", "/b", "/own")} <= set(snapshots)
    # And the other way round.
    trees.service.break_off(NAME)
    trees.write("a/deep/file", "the new source's", place)
    trees.write("b/file", "the old source's")
    trees.service.reverse(NAME, yes=True)
    assert trees.read("a/deep/file", trees.source) == "the new source's"
    assert trees.digests(trees.source) == trees.digests(place)
    trees.write("again", "from there", place)
    trees.update()
    assert trees.read("again", trees.source) == "from there"
    trees.service.delete(NAME, yes=True, keep_snapshots=False)


def broken_at(trees: Trees, point: Point, work: Callable[[], object]) -> bool:
    """Do the work while the machine is lost at a step; whether it came that far."""
    trees.close_links()
    trees.bridge.break_at(*point, "crash")
    trees.bridge.stays_down = True
    with contextlib.suppress(MirrordError, OSError):
        work()
    met = "!" in trees.bridge.labels()
    trees.mend()
    return met


def points(trees: Trees, work: Callable[[], object]) -> list[Point]:
    """The last passing of each step that tells something of trees."""
    trees.close_links()
    trees.bridge.learn()
    work()
    seen = trees.bridge.labels()
    trees.mend()
    found = {(label, seen.count(label)) for label in seen}
    own = [
        point
        for point in found
        if point[0] in _TELLING or (_ALL and point[0].startswith("ZFS:TREE"))
    ]
    return sorted(own, key=lambda point: (seen.index(point[0]), point[1]))


@pytest.mark.nightly
def test_a_crash_in_an_update_leaves_a_tree_that_goes_on(trees: Trees) -> None:
    """At each step of an update in which a child came, one went and one moved."""
    trees.mirrored()
    source = trees.source

    def change(number: int) -> None:
        trees.run("zfs", "create", f"{source}/c{number}")
        trees.write(f"c{number}/file", f"child {number}")
        trees.write("a/deep/file", f"round {number}")
        if number > 1:
            trees.run("zfs", "rename", f"{source}/c{number - 1}", f"{source}/b/m{number}")
        if number > 2:
            trees.destroy(f"b/m{number - 1}")

    for number in (1, 2):
        change(number)
        trees.update()
    change(3)
    found, met = points(trees, trees.update), 0
    assert {"ZFS:TREE:END", "ZFS:TREE:RENAME"} <= {label for label, _ in found}
    for number, point in enumerate(found, 4):
        change(number)
        met += broken_at(trees, point, trees.update)
        trees.update()
        trees.the_same()
    assert met == len(found)


def diverge(trees: Trees, number: int) -> None:
    """Both ends are live, and were changed."""
    trees.service.break_off(NAME)
    trees.write("a/file", f"theirs {number}", trees.place)
    trees.write("b/file", f"ours {number}")


@pytest.mark.nightly
def test_a_crash_in_a_resync_leaves_a_tree_that_goes_on(trees: Trees) -> None:
    """Nothing of what the losing side had is lost, wherever it was broken."""
    trees.mirrored()

    def resync() -> object:
        return trees.service.resync(NAME, yes=True)

    diverge(trees, 0)
    found, met = points(trees, resync), 0
    for number, point in enumerate(found, 1):
        diverge(trees, number)
        met += broken_at(trees, point, resync)
        resync()
        trees.the_same()
        kept = trees.run("sh", "-c", f"cat /{trees.place}.mirrord-*/a/file || true")
        assert f"theirs {number}" in kept, point
    assert met >= len(found) - 1


@pytest.mark.nightly
def test_break_after_a_resync_of_a_tree_that_was_broken(trees: Trees) -> None:
    """Each member can be written to again, and nothing of what the losing side had is lost."""
    trees.mirrored()
    asked = ["-t", "filesystem,volume", "-o", "name,property,value"]
    words = ["zfs", "get", "-rHp", *asked, "readonly,mounted,mountpoint"]

    def resync() -> object:
        return trees.service.resync(NAME, yes=True)

    diverge(trees, 0)
    live = trees.run(*words, trees.place)
    found, met = points(trees, resync), 0
    for number, point in enumerate((("ZFS:TREE:KEEP", 1), *found), 1):
        diverge(trees, number)
        met += broken_at(trees, point, resync)
        trees.service.break_off(NAME)
        assert trees.run(*words, trees.place) == live, point
        kept = trees.run("sh", "-c", f"cat /{trees.place}/a/file /{trees.place}.mirrord-*/a/file")
        assert f"theirs {number}" in kept, point
        trees.write("a/deep/file", "as a user", trees.place)
        resync()
        trees.the_same()
    assert met >= len(found)


@pytest.mark.nightly
def test_a_writable_copy_of_a_tree(trees: Trees) -> None:
    trees.mirrored()
    made = trees.service.begin_test(NAME)
    copy = f"{trees.place}-test"
    assert made.data["location"] == copy == trees.status()["copy"]
    assert trees.children(copy) == trees.children(trees.place)
    assert trees.digests(copy) == trees.digests(trees.place)
    trees.write("b/file", "only a try", copy)
    trees.write("b/file", "from the source")
    trees.update()
    trees.the_same()
    assert trees.read("b/file", copy) == "only a try"
    assert trees.service.begin_test(NAME).status == "already_there"
    trees.run("zfs", "snapshot", f"{copy}/a@mine")
    with pytest.raises(MirrordError, match="has its own snapshots or descendants"):
        trees.service.end_test(NAME)
    trees.run("zfs", "destroy", f"{copy}/a@mine")
    assert trees.service.end_test(NAME).status == "done"
    assert trees.service.end_test(NAME).status == "already_gone"
    assert trees.status()["copy"] == ""
    trees.run("sh", "-c", f"! zfs list {copy}")
    trees.the_same()
