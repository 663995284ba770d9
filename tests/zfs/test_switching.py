"""Switching a live dataset: what was acknowledged is live, set aside or kept, whoever writes."""

from __future__ import annotations

import base64
import gzip
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError, NotFound, Refused
from mirrord.core.model import Endpoint, Role, Snapshot, SnapshotKind
from mirrord.drivers.contract import Driver
from mirrord.drivers.zfs.dataset.names import MARKER
from mirrord.link.driver import RemoteDriver
from tests.contract.flows import MIRROR, initialized, mirror
from tests.contract.zfs import HOST, SIZE_BYTES, ZfsLab, zfs_lab
from tests.zfs.conftest import Trees
from tests.zfsvm.pools import small_pool

pytestmark = pytest.mark.zfs

KEPT = "diverged.1"


@pytest.fixture(params=["filesystem", "volume"])
def ends(request: pytest.FixtureRequest) -> Iterator[ZfsLab]:
    with zfs_lab(volume=request.param == "volume", large=False) as lab:
        yield lab


@pytest.fixture
def files() -> Iterator[ZfsLab]:
    with zfs_lab(volume=False, large=False) as lab:
        yield lab


def state(lab: ZfsLab, driver: Driver) -> list[str]:
    """How it is set, and that it is mounted."""
    said = lab.guest.run(
        "zfs",
        "get",
        "-Hpo",
        "property,value,source",
        "readonly,canmount,mounted,mountpoint",
        driver.location,
    )
    return said.splitlines()


LABELS = "/var/tmp/switching.labels"


def fresh_agent(lab: ZfsLab, wanted: str = "", *, time_: int = 1) -> None:
    """The next call starts an agent, which is killed at that step."""
    lab.others.close()
    lab.guest.run("rm", "-f", LABELS)
    lab.others.script = {"labels": LABELS, "wanted": wanted, "time": time_}


def labels(lab: ZfsLab) -> list[str]:
    """The steps that it passed, "!" where it was killed."""
    lab.others.close()
    lab.others.script = {}
    return str(lab.guest.user("read_text", LABELS)).split()


def diverged(lab: ZfsLab, driver: Driver) -> list[Snapshot]:
    return [one for one in driver.snapshots() if one.kind is SnapshotKind.DIVERGED]


class Lines:
    """A process in the machine that writes lines."""

    def __init__(self, lab: ZfsLab, driver: Driver, *, held: bool) -> None:
        self.lab, self.log = lab, f"/var/tmp/{lab.name}.acknowledged"
        self.pid = lab.guest.user("write_lines", [driver.facts().view], self.log, held)
        time.sleep(1)

    def end(self) -> list[str]:
        """The lines that were acknowledged."""
        self.lab.guest.user("kill", self.pid)
        return list(self.lab.guest.user("lines", [self.log]))


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(False, id="by-path", marks=pytest.mark.nightly),
        pytest.param(True, id="held-open"),
    ],
)
def test_no_acknowledged_line_is_lost_when_a_live_dataset_goes_back(
    files: ZfsLab, held: bool
) -> None:
    """Neither what was written until it was frozen, nor by whom it can't be taken away."""
    _source, destination, base = initialized(files)
    for number in range(4):
        destination.promote()
        writing = Lines(files, destination, held=held)
        try:
            assert held == bool(destination.writers()) or not held
            kept = destination.rollback(base.guid, mirror_id=MIRROR, keep_as=f"diverged.{number}")
        finally:
            acknowledged = writing.end()
        assert kept == f"diverged.{number}" and len(acknowledged) > 5
        facts = files.destination().facts()
        assert facts.role is Role.MIRROR and facts.shown == base.guid and facts.view
        [path] = [one.path for one in diverged(files, destination) if one.name == kept]
        found = files.guest.user("lines", [path])
        assert not set(acknowledged) - set(found), "lines were acknowledged and are not kept"
        assert files.guest.user("below_mountpoint", facts.view) == []
        files.guest.run("rm", "-f", writing.log)


def test_a_freeze_stops_every_write_and_ends_with_its_process(ends: ZfsLab) -> None:
    source = ends.source()
    view, before = source.facts().view, state(ends, source)
    ends.change(source, 1)
    target = view if view.startswith("/dev/") else f"{view}/big"
    ends.guest.user("hold_for_writing", target)
    try:
        [writer] = source.writers()
        assert writer.path.startswith("/") and writer.pid > 0 and "python" in writer.process
        source.freeze()
        facts = ends.source().facts()
        assert facts.frozen and facts.role is Role.LIVE
        assert ends.guest.user("refused", target) != ""
    finally:
        ends.guest.user("let_go")
    ends.others.kill()
    until = time.monotonic() + 60
    while ends.source().facts().frozen and time.monotonic() < until:  # what it says is undone last
        time.sleep(0.5)
    assert state(ends, source) == before and not ends.source().facts().frozen
    assert ends.guest.user("refused", target) == ""
    source.freeze()
    source.thaw()
    source.thaw()
    assert state(ends, source) == before and not source.facts().frozen
    assert source.writers() == []


def test_a_mark_is_exact(ends: ZfsLab) -> None:
    source, destination = ends.source(), ends.destination()
    absent = destination.mark()
    assert destination.is_marked(absent)
    view = source.facts().view
    target = view if view.startswith("/dev/") else f"{view}/big"
    for _ in range(2):
        mark = source.mark()
        assert ends.source().is_marked(mark)
        ends.own_snapshot(source, f"mine{time.monotonic_ns()}")
        assert source.is_marked(mark), "a snapshot is no write"
        ends.guest.user("overwrite_file", target)
        assert not source.is_marked(mark), "another content of the same size"
    bookmarks = ends.guest.run("zfs", "list", "-Ht", "bookmark", "-o", "name", source.location)
    assert bookmarks.count("mirrord-mark") == 1, "the next mark replaces the last one"
    assert source.snapshots() == [], "a mark is no snapshot"
    mark = source.mark()
    destination.prepare(MIRROR)
    base = mirror(source, destination, None, "base")
    assert source.is_marked(mark) and not destination.is_marked(absent)
    shown = destination.mark()
    assert destination.is_marked(shown)
    ends.change(source, 1)
    mirror(source, destination, base, "next")
    assert not destination.is_marked(shown)
    source.forget()
    bookmarks = ends.guest.run("zfs", "list", "-Ht", "bookmark", "-o", "name", source.location)
    assert "mirrord-mark" not in bookmarks
    assert not source.is_marked("") and not source.is_marked(shown)


def test_a_source_that_is_not_mounted_is_refused(files: ZfsLab) -> None:
    source, _destination, base = initialized(files)
    files.guest.run("zfs", "unmount", source.location)
    notes = " ".join(source.facts().notes)
    assert "is not mounted" in notes and f"zfs mount {source.location}" in notes
    for work in (lambda: source.changed_since(base.guid), lambda: source.take_snapshot("no")):
        with pytest.raises(Refused, match="is not mounted") as caught:
            work()
        assert "not in it" in caught.value.why
        assert f"zfs mount {source.location}" in caught.value.hint
    files.guest.run("zfs", "mount", source.location)
    source.changed_since(base.guid)  # (to mount it may count as a write)
    assert source.take_snapshot("yes").name == "yes" and source.facts().notes == ()


def test_files_that_landed_below_the_mountpoint_are_named(files: ZfsLab) -> None:
    """Where the directory could not be protected: nothing hides them, and the next try ends it."""
    _source, destination, base = initialized(files)
    destination.promote()
    files.change(destination, 3)
    view = destination.facts().view
    fresh_agent(files, "ZFS:SWAP:MOUNT")
    with pytest.raises(MirrordError):
        destination.rollback(base.guid, mirror_id=MIRROR, keep_as=KEPT)
    assert "!" in labels(files)
    assert files.guest.user("refused", f"{view}/x") != ""
    said = files.guest.fails("touch", f"{view}/lines")
    assert "not permitted" in said, "the directory is protected, also after a crash"
    files.guest.user("unprotect", view)
    files.guest.user("write_text", f"{view}/lost", "acknowledged")
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            files.destination().rollback(base.guid, mirror_id=MIRROR, keep_as=KEPT)
        assert view in f"{caught.value.why} {caught.value.hint}" and "lost" in caught.value.why
    assert files.guest.user("read_text", f"{view}/lost") == "acknowledged"
    files.guest.run("mv", f"{view}/lost", "/var/tmp/lost")
    assert files.destination().rollback(base.guid, mirror_id=MIRROR, keep_as=KEPT) == KEPT
    facts = files.destination().facts()
    assert facts.role is Role.MIRROR and facts.view == view
    assert files.guest.user("below_mountpoint", view) == []


def test_descendants_are_not_set_aside_with_a_dataset(files: ZfsLab) -> None:
    _source, destination, base = initialized(files)
    destination.promote()
    files.guest.run("zfs", "create", f"{destination.location}/child")
    before = state(files, destination)
    files.change(destination, 3)
    with pytest.raises(Refused, match="descendant"):
        destination.rollback(base.guid, mirror_id=MIRROR, keep_as=KEPT)
    assert state(files, destination) == before


def test_promote_begins_as_an_older_snapshot_and_keeps_the_newer(ends: ZfsLab) -> None:
    source, destination, base = initialized(ends)
    old = ends.content(destination)
    ends.change(source, 1)
    newer = mirror(source, destination, base, "newer")
    new = ends.content(destination)
    destination.promote(base.guid)
    destination.promote(base.guid)
    facts = ends.destination().facts()
    assert facts.role is Role.LIVE and facts.origin == base.guid
    assert ends.content(ends.destination()) == old
    assert newer.guid in {one.guid for one in ends.destination().snapshots()}
    assert ends.snapshot_content(ends.destination(), newer.guid) == new
    ends.change(ends.destination(), 5)


@pytest.mark.parametrize("gone", [["mirrord:mark"], ["mirrord:mark", "mirrord:staging"]])
def test_promote_works_without_mirrords_own_properties(ends: ZfsLab, gone: list[str]) -> None:
    _source, destination, base = initialized(ends)
    before = ends.content(destination)
    for name in gone:
        ends.guest.run("zfs", "inherit", name, destination.location)
    ends.destination().promote()
    facts = ends.destination().facts()
    assert facts.role is Role.LIVE and facts.origin == base.guid
    assert ends.content(ends.destination()) == before
    ends.change(ends.destination(), 5)
    assert ends.content(ends.destination()) != before


def test_promote_takes_the_newest_when_the_shown_one_is_gone(ends: ZfsLab) -> None:
    source, destination, base = initialized(ends)
    ends.change(source, 1)
    newer = mirror(source, destination, base, "newer", show=False)
    ends.guest.user("destroy_snapshot", f"{destination.location}@{base.name}")
    ends.destination().promote()
    facts = ends.destination().facts()
    assert facts.role is Role.LIVE and facts.origin == newer.guid
    assert ends.content(ends.destination()) == ends.content(source)


@pytest.mark.nightly
def test_what_was_set_aside_is_put_back(ends: ZfsLab) -> None:
    """Wherever the rollback was broken off, and after it."""
    _source, destination, base = initialized(ends)
    with pytest.raises(NotFound):
        destination.reinstate("nothing")
    destination.promote()
    ends.change(destination, 3)
    losing, before = ends.content(destination), state(ends, destination)
    fresh_agent(ends)
    assert destination.rollback(base.guid, mirror_id=MIRROR, keep_as=KEPT) == KEPT
    passed = list(dict.fromkeys(labels(ends)))
    for _ in range(2):
        ends.destination().reinstate(KEPT)
    assert {"ZFS:ROLLBACK:FREEZE", "ZFS:SWAP:CLONE", "ZFS:SWAP:RENAME"} <= set(passed)
    for number, label in enumerate(passed, 2):
        kept = f"diverged.{number}"  # (what is kept by an earlier name is not kept again)
        assert ends.destination().facts().role is Role.LIVE, label
        assert state(ends, destination) == before, label
        assert ends.content(ends.destination()) == losing, label
        fresh_agent(ends, label)
        with pytest.raises(MirrordError):
            destination.rollback(base.guid, mirror_id=MIRROR, keep_as=kept)
        assert "!" in labels(ends), label
        ends.destination().reinstate(kept)
    ends.change(ends.destination(), 4)
    assert ends.destination().rollback(base.guid, mirror_id=MIRROR, keep_as=KEPT) is not None


@pytest.mark.parametrize(
    "label",
    [
        "",
        pytest.param("ZFS:SWAP:KEPT", marks=pytest.mark.nightly),
        pytest.param("ZFS:SWAP:LEFTOVER_ASIDE", marks=pytest.mark.nightly),
    ],
)
def test_what_was_received_meanwhile_is_set_aside_by_a_reinstatement(
    files: ZfsLab, label: str
) -> None:
    source, destination, base = initialized(files)
    destination.promote()
    files.change(destination, 3)
    losing, before = files.content(destination), state(files, destination)
    assert destination.rollback(base.guid, mirror_id=MIRROR, keep_as=KEPT) == KEPT
    files.change(source, 1)
    newer = mirror(source, destination, base, "newer")
    if label:
        fresh_agent(files, label)
        with pytest.raises(MirrordError):
            files.destination().reinstate(KEPT)
        assert "!" in labels(files)
    for _ in range(2):
        files.destination().reinstate(KEPT)
    assert files.destination().facts().role is Role.LIVE
    assert state(files, destination) == before
    assert files.content(files.destination()) == losing
    datasets = files.guest.run("zfs", "list", "-Ho", "name").split()
    beside = [one for one in datasets if one.startswith(f"{destination.location}{MARKER}")]
    assert len(beside) == 1 and not beside[0].endswith("new")
    assert newer.guid in {one.guid for one in files.destination().snapshots()}
    files.change(files.destination(), 4)
    assert files.destination().rollback(base.guid, mirror_id=MIRROR, keep_as="again") == "again"
    files.destination().delete_snapshot(newer.guid)
    assert beside[0] not in files.guest.run("zfs", "list", "-Ho", "name").split()


def ext4_of(folder: Path) -> str:
    """A file system as large as the volume, packed; the machine has no program to make one."""
    image = folder / "ext4"
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    return base64.b64encode(gzip.compress(image.read_bytes())).decode()


def test_what_was_set_aside_is_not_deleted_with_later_work_in_it(files: ZfsLab) -> None:
    _source, destination, base = initialized(files)
    destination.promote()
    files.change(destination, 3)
    assert destination.rollback(base.guid, mirror_id=MIRROR, keep_as=KEPT) == KEPT
    [one] = diverged(files, destination)
    aside = one.path.partition("/.zfs/")[0]
    files.guest.run("zfs", "set", "readonly=off", aside.lstrip("/"))
    files.guest.user("write_text", f"{aside}/later", "work")
    with destination.lock("test"), pytest.raises(Refused, match="written to after"):
        destination.delete_snapshot(one.guid)
    assert files.guest.user("read_text", f"{aside}/later") == "work"
    assert diverged(files, destination) == [one]


def test_a_zvol_that_is_mounted_or_held_is_named(ends: ZfsLab, tmp_path: Path) -> None:
    source = ends.source()
    view = source.facts().view
    if not view.startswith("/dev/"):
        return  # a file system's writers are in the test of the freeze
    ends.guest.run("sh", "-c", f"base64 -d | gunzip > {view}", given=ext4_of(tmp_path))
    folder = f"/var/tmp/{ends.name}"
    ends.guest.run("mkdir", folder)
    ends.guest.run("mount", view, folder)
    try:
        assert folder in {one.path for one in source.writers()}
    finally:
        ends.guest.run("umount", folder)
    assert source.writers() == []


def test_break_works_where_the_quota_is_reached(ends: ZfsLab) -> None:
    _source, destination, base = initialized(ends)
    before = ends.content(destination)
    parent = destination.location.rpartition("/")[0]
    ends.guest.run("zpool", "sync", parent.partition("/")[0])
    used = ends.guest.run("zfs", "get", "-Hpo", "value", "used", parent).strip()
    ends.guest.run("zfs", "set", f"quota={used}", parent)
    destination.promote()
    facts = ends.destination().facts()
    assert facts.role is Role.LIVE and facts.origin == base.guid
    assert ends.content(ends.destination()) == before
    ends.guest.run("zfs", "set", "quota=none", parent)


def test_break_works_on_a_pool_without_a_free_block(files: ZfsLab) -> None:
    source = files.source()
    with small_pool(files.guest, 160) as pool:
        destination = files.driver(f"{pool}/backup")
        destination.prepare(MIRROR)
        base = mirror(source, destination, None, "base")
        before = files.content(destination)
        files.guest.run("zfs", "create", f"{pool}/other")
        for size in ("1M", "4k"):
            fill = f"! dd if=/dev/urandom of=/{pool}/other/{size} bs={size} oflag=sync 2>/dev/null"
            files.guest.run("sh", "-c", fill)
        destination.promote()
        facts = files.driver(f"{pool}/backup").facts()
        assert facts.role is Role.LIVE and facts.origin == base.guid
        assert files.content(destination) == before
        files.others.close()


@pytest.mark.nightly
def test_a_tree_is_frozen_marked_and_put_back(trees: Trees) -> None:
    trees.mirrored()

    def driver() -> Driver:
        return RemoteDriver.of(Endpoint("zfs-tree", trees.place, HOST), trees.lab.others)

    mirror_id, base = driver().facts().mirror_id, driver().snapshots()[-1]
    asked = ["-t", "filesystem,volume", "-o", "name,property,value,source"]
    words = ["zfs", "get", "-rHp", *asked, "readonly,canmount,mounted,mountpoint,mirrord:mark"]
    driver().promote()
    before, tree = trees.run(*words, trees.place), driver()
    mark = tree.mark()
    assert tree.is_marked(mark)
    trees.write("a/deep/file", "later work", trees.place)
    assert not tree.is_marked(mark)
    tree.freeze()
    assert driver().facts().frozen
    assert trees.guest.user("refused", f"/{trees.place}/a/deep/file") != ""
    tree.thaw()
    assert trees.run(*words, trees.place) == before
    for label in ("", "ZFS:TREE:TAKE", "ZFS:TREE:RENAME"):
        fresh_agent(trees.lab, label)
        if label:
            with pytest.raises(MirrordError):
                driver().rollback(base.guid, mirror_id=mirror_id, keep_as=KEPT)
            assert "!" in labels(trees.lab)
        else:
            kept = driver().rollback(base.guid, mirror_id=mirror_id, keep_as=KEPT)
            assert kept == KEPT and driver().facts().role is Role.MIRROR
            assert trees.read("a/deep/file") == "a/deep"
        driver().reinstate(KEPT)
        assert driver().facts().role is Role.LIVE
        assert trees.read("a/deep/file") == "later work"
        assert trees.run(*words, trees.place) == before, label
