"""Trees of digests: every difference between two folders is found, and nothing else is."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrord.core.errors import Busy, Damaged, NoSpace, NotFound, ProtocolError
from mirrord.core.verification import (
    BLOCKS_MAX,
    NAMED_MAX,
    VerifyMode,
    VerifyNode,
    VerifyProgress,
    VerifyRequest,
)
from mirrord.drivers.snapshottrees import Changed, Subject, TreeStore, in_use
from mirrord.drivers.verification import Verification
from mirrord.engine.compare import Descent
from mirrord.system.native import mount_detached
from mirrord.system.waiting import Waiting
from tests.support import btrfs

MIB = 1 << 20


def content(seed: int, size: int = 2 * MIB) -> bytes:
    return random.Random(seed).randbytes(size)


def retimed(path: Path, change: Callable[[Path], object]) -> None:
    """Change it without a trace in its time and in that of its folder."""
    there = [one for one in (path, path.parent) if os.path.lexists(one)]
    times = [(one, one.lstat().st_mtime_ns) for one in there]
    change(path)
    for one, at in times:
        if os.path.lexists(one):
            os.utime(one, ns=(at, at), follow_symlinks=False)


def _relink(path: Path) -> None:
    target = path.readlink()
    path.unlink()
    path.symlink_to(f"{target}x")


def _rewrite(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _renumber(path: Path) -> None:
    path.unlink()
    os.mknod(path, 0o20600, os.makedev(1, 5))


def _separate(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.rename(path)


BOTH = [("a/file", "metadata"), ("a/file", "content")]
TAMPERING: dict[str, tuple[str, Callable[[Path], object], list[tuple[str, str]]]] = {
    "content": ("a/file", _rewrite, [("a/file", "content")]),
    "mode": ("a/file", lambda path: path.chmod(0o751), [("a/file", "metadata")]),
    "owner": ("a/file", lambda path: os.chown(path, 77, -1), [("a/file", "metadata")]),
    "group": ("a/file", lambda path: os.chown(path, -1, 77), [("a/file", "metadata")]),
    "folder": ("a/b", lambda path: path.chmod(0o700), [("a/b", "metadata")]),
    "xattr": ("a/file", lambda path: os.setxattr(path, "user.x", b"2"), [("a/file", "metadata")]),
    "link": ("a/link", _relink, [("a/link", "metadata")]),
    "missing": ("a/file", lambda path: path.unlink(), [("a/file", "missing")]),
    "extra": ("a/new", lambda path: path.write_bytes(b"x"), [("a/new", "extra")]),
    "device": ("a/null", _renumber, [("a/null", "metadata")]),
    "hard link": ("a/second", _separate, [("a/second", "link")]),
    "shorter": ("a/file", lambda path: os.truncate(path, MIB), BOTH),
    "linked": ("a/b/first", _rewrite, [("a/b/first", "content"), ("a/second", "content")]),
    "root": (".", lambda path: path.chmod(0o700), [("", "metadata")]),
}  # fmt: skip


@pytest.fixture
def snapshots(tmp_path: Path) -> Iterator[tuple[Path, Path, TreeStore, TreeStore]]:
    """Two equal folders, with the trees of both."""
    ends = []
    with btrfs.folders() as (here, there):
        for folder in (here / "one", there / "two"):
            (folder / "a/b").mkdir(parents=True)
            (folder / "a/file").write_bytes(content(1) + b"end")
            (folder / "a/b/first").write_bytes(b"linked")
            (folder / "a/second").hardlink_to(folder / "a/b/first")
            (folder / "a/link").symlink_to("file")
            os.mknod(folder / "a/null", 0o20600, os.makedev(1, 3))
            os.mkfifo(folder / "a/fifo")
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(folder / "a/socket"))
            (folder / os.fsdecode(b"not utf-8 \xff\n")).write_bytes(b"")
            with (folder / "a/sparse").open("wb") as file:
                file.truncate(3 * MIB)
                file.seek(MIB)
                file.write(b"data")
            os.setxattr(folder / "a/file", "user.x", b"1")
            for at, names, others in os.walk(folder, topdown=False):
                for name in (*names, *others, "."):
                    os.utime(Path(at, name), ns=(5, 7), follow_symlinks=False)
            ends.append(folder)
        one, two = ends
        yield one, two, TreeStore(tmp_path / "1", "one"), TreeStore(tmp_path / "2", "two")


def computed(store: TreeStore, folder: Path, request: VerifyRequest) -> VerifyProgress:
    subject = Subject(request.guid, str(folder))
    while not (found := store.step(request, lambda: subject, 1)).done:
        pass
    return found


def end(store: TreeStore) -> Verification:
    """The end of a mirror that has these trees."""
    return cast(
        Verification,
        SimpleNamespace(waiting=Waiting(), verify_nodes=store.nodes, verify_blocks=store.blocks),
    )


REQUEST = VerifyRequest("g")


@pytest.mark.parametrize("what", TAMPERING)
def test_each_difference_is_found(
    snapshots: tuple[Path, Path, TreeStore, TreeStore], what: str
) -> None:
    one, two, here, there = snapshots
    name, change, wanted = TAMPERING[what]
    assert computed(here, one, REQUEST).root == computed(there, two, REQUEST).root
    retimed(two / name, change)
    assert computed(here, one, REQUEST).root != computed(there, two, REQUEST).root
    found = [
        (each.path, each.what) for each in Descent(end(here), end(there), REQUEST).differences()
    ]
    assert found == wanted


@pytest.mark.parametrize(
    "answer",
    [bytes(32 * BLOCKS_MAX), bytes(32), b"x"],
    ids=["as many as asked", "one at a time", "malformed"],
)
@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize("unreadable", [False, True])
def test_the_size_that_an_end_claims_does_not_decide_how_much_is_asked(
    snapshots: tuple[Path, Path, TreeStore, TreeStore], answer: bytes, liar: int, unreadable: bool
) -> None:
    one, two, here, there = snapshots
    for store, folder in ((here, one), (there, two)):
        computed(store, folder, REQUEST)
    ends = [end(here), end(there)]
    asked: list[int] = []

    def nodes(*words: Any) -> list[VerifyNode]:
        lies: dict[str, Any] = {"size": 1 << 60, "content": b"other", "unreadable": unreadable}
        return [
            node._replace(node=b"other", **(lies if node.kind == "f" else {}))
            for node in (here, there)[liar].nodes(*words)
        ]

    def blocks(_request: VerifyRequest, _path: str, first: int, limit: int) -> bytes:
        asked.append(first)
        assert len(asked) < 1000
        return answer[: 32 * limit]

    liars = SimpleNamespace(waiting=Waiting(), verify_nodes=nodes, verify_blocks=blocks)
    ends[liar] = cast(Verification, liars)
    with contextlib.suppress(ProtocolError):
        found = {each.path: each for each in Descent(ends[0], ends[1], REQUEST).differences()}
        if not unreadable:
            assert found["a/file"].ranges == ((0, 1 << 60),)
    assert asked


@pytest.mark.parametrize("liar", [0, 1])
def test_an_end_that_names_files_without_end_is_not_asked_without_end(
    snapshots: tuple[Path, Path, TreeStore, TreeStore], liar: int
) -> None:
    one, two, here, there = snapshots
    for store, folder in ((here, one), (there, two)):
        computed(store, folder, REQUEST)
    ends = [end(here), end(there)]
    asked: list[str] = []

    def nodes(request: VerifyRequest, folder: str, after: str, limit: int) -> list[VerifyNode]:
        [model] = (here, there)[liar].nodes(request, ".", "", 1)
        model = model._replace(node=b"other")
        if folder == ".":
            return [model]
        asked.append(after)
        assert len(asked) < 20
        first = len(asked) * limit
        return [model._replace(path=f"{number:09}") for number in range(first, first + limit)]

    liars = SimpleNamespace(waiting=Waiting(), verify_nodes=nodes, verify_blocks=None)
    ends[liar] = cast(Verification, liars)
    found = [each.what for each in Descent(ends[0], ends[1], REQUEST).differences()]
    assert len(found) > NAMED_MAX and set(found) == {"missing", "extra"}


def test_a_sample_reads_about_its_share_and_the_same_blocks_at_both_ends(
    snapshots: tuple[Path, Path, TreeStore, TreeStore],
) -> None:
    one, two, here, there = snapshots
    for folder in (one, two):
        (folder / "a/large").write_bytes(content(9, 40 * MIB))
        os.utime(folder / "a/large", ns=(5, 7))
        os.utime(folder / "a", ns=(5, 7))
    all_blocks = computed(here, one, REQUEST).read_blocks
    request = VerifyRequest("g", VerifyMode.SAMPLE, seed=3, parts=300_000)
    found = computed(here, one, request)
    assert 0.15 * all_blocks < found.read_blocks < 0.45 * all_blocks
    assert computed(there, two, request).root == found.root
    assert computed(here, one, request._replace(seed=4)).root != found.root
    every = computed(here, one, request._replace(parts=1_000_000))
    assert every.read_blocks == all_blocks
    retimed(two / "a/file", lambda path: path.chmod(0o751))
    assert computed(there, two, request).root != found.root  # metadata are compared completely


def test_without_space_for_the_digests_it_is_said_where_to_free_some(
    snapshots: tuple[Path, Path, TreeStore, TreeStore], tmp_path: Path
) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", place], check=True)
    try:
        store = TreeStore(place / "verify", "one")
        with pytest.raises(NoSpace, match="no space is left") as caught:
            computed(store, snapshots[0], REQUEST)
    finally:
        btrfs.unmount(place)
    assert str(place) in caught.value.where and "Free space there" in caught.value.hint


def test_a_tree_that_is_damaged_is_not_used(
    snapshots: tuple[Path, Path, TreeStore, TreeStore], tmp_path: Path
) -> None:
    one, _two, here, _there = snapshots
    whole = computed(here, one, REQUEST)
    [tree] = (tmp_path / "1").glob("*.tree")
    data = bytearray(tree.read_bytes())
    data[len(data) // 2] ^= 1
    tree.write_bytes(data)
    again = VerifyRequest("h", VerifyMode.CHANGED, base="g")
    found = here.step(again, lambda: Subject("h", str(one), lambda: Changed([], {})), 5)
    assert found.done and found.mode is VerifyMode.FULL and "damaged" in found.why
    assert (found.root, found.read_bytes) == (whole.root, whole.read_bytes)
    with pytest.raises(Damaged, match="digests of a snapshot are damaged"):
        here.nodes(REQUEST, "", "", 9)
    with pytest.raises(NotFound):  # it was deleted
        here.nodes(REQUEST, "", "", 9)


def test_only_one_verifies_a_snapshot_and_nobody_deletes_it(
    snapshots: tuple[Path, Path, TreeStore, TreeStore], tmp_path: Path
) -> None:
    one, _two, here, _there = snapshots
    slow = REQUEST._replace(rate=1)
    subject = Subject("g", str(one))
    assert not here.step(slow, lambda: subject, 0.01).done
    other = TreeStore(tmp_path / "1", "one")
    with pytest.raises(Busy, match="is being verified"):
        other.step(REQUEST, lambda: subject, 1)
    assert in_use(tmp_path / "1") == {"g"}
    here.end()
    assert in_use(tmp_path / "1") == set() and not list((tmp_path / "1").iterdir())
    assert other.step(REQUEST, lambda: subject, 5).done


def test_a_rate_is_kept(snapshots: tuple[Path, Path, TreeStore, TreeStore]) -> None:
    one, _two, here, _there = snapshots
    began_s = time.monotonic()
    found = computed(here, one, REQUEST._replace(rate=2 * MIB))
    assert time.monotonic() - began_s >= found.read_bytes / (2 * MIB) - 1


def test_a_deep_tree_needs_few_descriptors(tmp_path: Path) -> None:
    deep = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=deep)
        inner = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with TemporaryDirectory() as folder:
            found = computed(TreeStore(Path(folder), "deep"), tmp_path, REQUEST)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.done and not found.unreadable


def test_an_ordinary_folder_with_the_number_of_a_btrfs_stub_is_compared(tmp_path: Path) -> None:
    """On a file system of another kind, in a mount that nobody else sees."""
    before = Path("/proc/self/mounts").read_text()
    mounted = mount_detached("tmpfs", "none")
    try:
        assert os.fstatvfs(mounted).f_flag & os.ST_RDONLY
        assert Path("/proc/self/mounts").read_text() == before
    finally:
        os.close(mounted)
    folder = tmp_path / "other"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    try:
        (folder / "second").mkdir()
        (folder / "second/file").write_bytes(b"x")
        assert (folder / "second").stat().st_ino == 2
        store = TreeStore(tmp_path / "trees", "other")
        assert computed(store, folder, REQUEST).files == 1
    finally:
        subprocess.run(["umount", folder], check=True)
