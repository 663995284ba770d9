"""break works as long as the destination holds one intact snapshot, whatever else is missing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mirrord.control.shared import Shared
from mirrord.core.errors import Damaged, IoFailed, MirrordError, NoSpace, Refused
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system import steps
from mirrord.system.paths import Paths
from tests.failover.test_interrupted import stopped_at
from tests.failover.volumes import lose
from tests.support import btrfs
from tests.support.btrfs import delete_subvolume
from tests.support.verbs import Service
from tests.support.world import NAME, World


def test_without_source_and_catalogue(world: World) -> None:
    world.initialized()
    content = world.view_content()
    lose(world.lab, world.lab.source())
    world.service.close()
    shutil.rmtree(world.paths.state)
    assert world.again().break_off(NAME).status == "done"
    assert world.view_content() == content
    assert world.lab.destination().facts().role is Role.LIVE


def test_an_older_snapshot_keeps_the_newer(world: World) -> None:
    world.initialized(keep_destination=5)
    first, content = world.lab.destination().facts().shown, world.view_content()
    assert first is not None
    for seed in range(2):
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
    before = [one.guid for one in world.lab.destination().snapshots()]
    result = world.service.break_off(NAME, snapshot=first)
    assert world.view_content() == content
    assert [one.guid for one in world.lab.destination().snapshots()] == before
    name = next(s.name for s in world.lab.destination().snapshots() if s.guid == first)
    assert name in result.text
    with pytest.raises(Refused, match="already writable"):
        world.service.break_off(NAME, snapshot=first)
    world.service.resync(NAME, yes=True)
    assert world.in_step()


class Mirror:
    """A mirror between two btrfs file systems of its own."""

    def __init__(self, here: Path, there: Path, home: Path) -> None:
        self.source = btrfs.make_subvolume(here / "home")
        (self.source / "file").write_text("one")
        self.there = there / "home"
        self.view = self.there / "current"
        self.store = self.there / ".mirrord" / "current"
        self.paths = Paths(home / "etc", home / "state", home / "run")
        self.service = Service(self.paths)
        self.service.create(NAME, f"btrfs:{self.source}", f"btrfs:{self.there}")
        self.service.initialize(NAME)
        (self.source / "file").write_text("two")
        self.service.update(NAME)
        facts = BtrfsDriver(str(self.there)).facts()
        names = {one.guid: one.name for one in BtrfsDriver(str(self.there)).snapshots()}
        self.shown = self.store / "snapshots" / names[facts.shown or ""]

    def again(self) -> Service:
        self.service.close()
        self.service = Service(self.paths)
        return self.service

    def content(self) -> str:
        return (self.view / "file").read_text()


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    with btrfs.folders() as (here, there):
        made = Mirror(here, there, tmp_path / "home")
        yield made
        made.service.close()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


#: What happens to the destination, and what the view holds after a break.
DAMAGES: dict[str, tuple[Callable[[Mirror], object], str]] = {
    "the view's link removed": (lambda m: m.view.unlink(), "two"),
    "mirror.json empty": (lambda m: _empty(m.store / "mirror.json"), "two"),
    "mirror.json removed": (lambda m: (m.store / "mirror.json").unlink(), "two"),
    "mirror.json malformed": (lambda m: (m.store / "mirror.json").write_text('{"a":'), "two"),
    "the shown record empty": (lambda m: _empty(m.shown / "transfer.json"), "two"),
    "the shown record removed": (lambda m: (m.shown / "transfer.json").unlink(), "two"),
    "the shown snapshot deleted": (lambda m: delete_subvolume(m.shown / m.shown.name), "one"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("catalogue", ["known", "lost"])
def test_with_our_own_records_damaged(mirror: Mirror, damage: str, catalogue: str) -> None:
    hurt, expected = DAMAGES[damage]
    hurt(mirror)
    if catalogue == "lost":
        mirror.service.close()
        shutil.rmtree(mirror.paths.state)
    assert mirror.again().break_off(NAME).status == "done"
    assert mirror.content() == expected
    (mirror.view / "file").write_text("in the emergency")
    mirror.service.resync(NAME, yes=True)
    assert mirror.content() == "two"
    (mirror.source / "file").write_text("three")
    mirror.service.update(NAME)
    assert mirror.content() == "three"


def _scribble(m: Mirror) -> None:
    with m.paths.catalogue.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xaa" * 40_000)


def _own_state(m: Mirror) -> None:
    content = m.paths.catalogue.read_bytes()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", m.paths.state], check=True)
    m.paths.catalogue.write_bytes(content)


def _full_state(m: Mirror) -> None:
    _own_state(m)
    try:
        (m.paths.state / "fill").write_bytes(bytes(2 << 20))
    except OSError:
        pass


def _read_only_state(m: Mirror) -> None:
    _own_state(m)
    subprocess.run(["mount", "-o", "remount,ro", m.paths.state], check=True)


def _all_read_only(m: Mirror) -> None:
    """Also the locks, as with `MIRRORD_HOME` on one file system."""
    _read_only_state(m)
    subprocess.run(["mount", "--bind", m.paths.run, m.paths.run], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", m.paths.run], check=True)


def _writable(m: Mirror) -> None:
    subprocess.run(["umount", "-q", m.paths.run])  # if it is one: a bind mount is not recognized
    subprocess.run(["mount", "-o", "remount,rw", m.paths.state], check=True)


#: What happens to the catalogue's file, and what is done about it afterwards.
UNUSABLE: dict[str, tuple[Callable[[Mirror], object], Callable[[Mirror], object]]] = {
    "random bytes": (
        lambda m: m.paths.catalogue.write_bytes(os.urandom(40_000)),
        lambda m: m.paths.catalogue.unlink(),
    ),
    "cut short": (
        lambda m: os.truncate(m.paths.catalogue, 60_000),
        lambda m: m.paths.catalogue.unlink(),
    ),
    "overwritten in the middle": (_scribble, lambda m: m.paths.catalogue.unlink()),
    "its file system full": (_full_state, lambda m: (m.paths.state / "fill").unlink()),
    "its file system read-only": (_read_only_state, _writable),
    "and that of the locks": (_all_read_only, _writable),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_with_a_catalogue_that_cannot_be_used(mirror: Mirror, what: str) -> None:
    hurt, mend = UNUSABLE[what]
    mirror.service.close()
    try:
        hurt(mirror)
        result = mirror.again().break_off(NAME)
        assert result.status == "done" and str(mirror.paths.catalogue) in result.text
        (mirror.view / "file").write_text("in the emergency")
        mirror.service.close()
        assert result.text.count("Warning: ") == len(set(result.data["warnings"]))
        mend(mirror)
        problems = mirror.again().status(NAME)[0].problems
        assert not any("outside of this mirror" in one for one in problems), problems
        with pytest.raises(MirrordError, match=r"broken off|writable"):
            mirror.again().update(NAME)
        assert mirror.service.status(NAME)[0].state == "broken-off"
        assert mirror.content() == "in the emergency"
        mirror.service.resync(NAME, yes=True)
        assert mirror.content() == "two"
    finally:
        mirror.service.close()
        subprocess.run(["umount", "-q", mirror.paths.run, mirror.paths.state])


def test_with_a_run_folder_in_which_no_lock_can_be_created(mirror: Mirror) -> None:
    mirror.service.close()
    full = ["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "none", str(mirror.paths.run)]
    subprocess.run(full, check=True)
    try:
        assert mirror.again().break_off(NAME).status == "done"
        assert mirror.service.status(NAME)[0].state == "broken-off"
    finally:
        mirror.service.close()
        subprocess.run(["umount", mirror.paths.run], check=True)


def test_a_full_disk_of_the_catalogue_hides_nothing(mirror: Mirror) -> None:
    """Commands that only show read a copy; the others say why, and change nothing."""
    mirror.service.close()
    shown = [one.name for one in mirror.again().snapshots(NAME).snapshots]
    mirror.service.close()
    try:
        _full_state(mirror)
        for _ in range(2):
            service = mirror.again()
            assert service.status(NAME)[0].state == "mirrored"
            assert [one.name for one in service.snapshots(NAME).snapshots] == shown
            assert len(service.history(NAME, limit=9).transfers) == 2
            (mirror.source / "file").write_text("three")
            with pytest.raises(NoSpace, match="the catalogue cannot be written"):
                service.update(NAME)
            assert mirror.content() == "two"
            service.close()
        with closing(Service(mirror.paths, shared=Shared())) as lasting, pytest.raises(IoFailed):
            lasting.status(NAME)
        (mirror.paths.state / "fill").unlink()
        mirror.again().update(NAME)
        assert mirror.content() == "three"
    finally:
        mirror.service.close()
        if os.path.ismount(mirror.paths.state):
            subprocess.run(["umount", mirror.paths.state], check=True)


def test_a_copy_of_a_newer_catalogue_is_not_read(mirror: Mirror) -> None:
    mirror.service.close()
    with closing(sqlite3.connect(mirror.paths.catalogue)) as db:
        db.execute("PRAGMA user_version = 999")
    try:
        _full_state(mirror)
        with pytest.raises(Damaged, match="written by a newer mirrord"):
            mirror.again().status(NAME)
    finally:
        mirror.service.close()
        subprocess.run(["umount", mirror.paths.state], check=True)


def test_a_break_that_fails_is_not_done_later(mirror: Mirror) -> None:
    """Something of somebody's lies where the view was."""
    mirror.view.unlink()
    mirror.view.mkdir()
    (mirror.view / "somebodys").touch()
    with pytest.raises(MirrordError, match="not a view that mirrord made"):
        mirror.service.break_off(NAME)
    shutil.rmtree(mirror.view)
    (mirror.source / "file").write_text("three")
    mirror.again().update(NAME)
    assert mirror.content() == "three" and mirror.service.status(NAME)[0].state == "mirrored"


def test_a_reverse_takes_nested_subvolumes_along(mirror: Mirror) -> None:
    nested = btrfs.make_subvolume(mirror.source / "nested")
    (nested / "file").write_text("only here")
    mirror.service.reverse(NAME, yes=True)
    assert mirror.source.is_symlink() and mirror.content() == "two"
    [kept] = (mirror.source.parent / ".mirrord/home/diverged").iterdir()
    assert (kept / kept.name / "nested/file").read_text() == "only here"
    writable = ["btrfs", "property", "set", "-ts", str(kept / kept.name), "ro", "false"]
    subprocess.run(writable, check=True)
    delete_subvolume(kept / kept.name / "nested")
    (mirror.view / "file").write_text("three")
    mirror.again().update(NAME)
    assert (mirror.source / "file").read_text() == "three"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Mirror]:
    """The same on small file systems of its own, which may be filled."""
    with btrfs.filesystem(size_mib=400) as here, btrfs.filesystem(size_mib=400) as there:
        made = Mirror(here, there, tmp_path / "home")
        yield made
        made.service.close()


def fill_data(folder: Path) -> None:
    """Until not a byte of data goes on it."""
    folder.mkdir()
    for size in (1 << 20, 4096):
        for number in range(10_000):
            try:
                with (folder / f"{size}.{number}").open("wb") as file:
                    file.write(os.urandom(size))
                    os.fsync(file.fileno())
            except OSError:
                break


def fill_metadata(folder: Path) -> None:
    """Until not a link goes on it, however often it is tried."""
    folder.mkdir()
    number = 0
    for size in (3900, 500, 1):
        failed = 0
        while failed < 30:
            number += 1
            try:
                (folder / f"l{number}").symlink_to("x" * size)
            except OSError:
                failed += 1


@pytest.mark.parametrize("fill", [fill_data, fill_metadata])
def test_on_a_full_file_system(small: Mirror, fill: Callable[[Path], None]) -> None:
    fill(small.there.parent / "full")
    (small.source / "file").write_text("three")
    (small.source / "more").write_bytes(os.urandom(3 << 20))
    with pytest.raises(NoSpace):
        small.service.update(NAME)
    assert not small.service.status(NAME)[0].healthy
    assert small.service.break_off(NAME).status == "done"
    assert small.content() == "two" and not small.view.is_symlink()
    shutil.rmtree(small.there.parent / "full")
    subprocess.run(["sync", "-f", small.there], check=True)  # of this one alone
    small.service.resync(NAME, yes=True)
    assert small.content() == "three"


def test_a_resync_on_a_file_system_that_is_full_of_data(small: Mirror) -> None:
    small.service.break_off(NAME)
    (small.view / "file").write_text("in the emergency")
    fill_data(small.there.parent / "full")
    small.service.resync(NAME, yes=True)
    assert small.content() == "two" and small.view.is_symlink()
    [kept] = (small.store / "diverged").iterdir()
    assert (kept / kept.name / "file").read_text() == "in the emergency"


class Crash(BaseException):
    """Stands for the end of the process."""


def test_what_was_being_received_goes(mirror: Mirror) -> None:
    """Also when nobody knows of it: the catalogue was lost."""
    (mirror.source / "more").write_bytes(os.urandom(3 << 20))

    def crash(label: str) -> None:
        if label == "BTRFS:COMMIT:MOVE":
            raise Crash(label)

    steps.observe(crash)
    with pytest.raises(Crash):
        mirror.service.update(NAME)
    steps.observe(None)
    assert os.listdir(mirror.store / "staging") != []
    mirror.service.close()
    shutil.rmtree(mirror.paths.state)
    mirror.again().break_off(NAME)
    assert os.listdir(mirror.store / "staging") == [] and mirror.content() == "two"


class BlockMirror:
    """A mirror of a block volume, initialized."""

    def __init__(self, folder: Path) -> None:
        self.source, copy = folder / "source", folder / "copy"
        with Volume.create(self.source, 4 << 20) as volume:
            volume.write(0, os.urandom(1 << 20))
        self.data = copy / "data"
        self.service = Service(Paths(folder / "etc", folder / "state", folder / "run"))
        self.service.create(NAME, f"block:{self.source}", f"block:{copy}")
        self.service.initialize(NAME)

    def notes(self) -> tuple[str, ...]:
        return self.service.status(NAME)[0].reading.notes


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[BlockMirror]:
    made = BlockMirror(tmp_path)
    yield made
    made.service.close()


@pytest.mark.parametrize("size", [64 << 10, None])
def test_data_that_is_missing_is_reported(blocks: BlockMirror, size: int | None) -> None:
    assert not blocks.notes()
    if size is None:
        blocks.data.unlink()
    else:
        os.truncate(blocks.data, size)
    [problem] = blocks.service.status(NAME)[0].problems
    assert "Data is missing" in problem and f"'mirrord release {NAME}'" in problem
    result = blocks.service.break_off(NAME)
    what = "is missing" if size is None else "has been truncated"
    assert (
        f"Warning: Data is missing: the file {blocks.data} {what}; 'mirrord volume" in result.text
    )
    assert result.status == "done" and "is broken off" in result.text


def test_blocks_that_were_freed_before_an_update_are_not_missing(blocks: BlockMirror) -> None:
    """The copy's file ends before the highest number that the source has ever used."""
    for _ in range(3):
        with Volume.open(str(blocks.source), writable=True) as volume:
            volume.write(0, os.urandom(4096))
    blocks.service.update(NAME)
    whole = blocks.data.stat().st_size
    assert whole < (blocks.source / "data").stat().st_size
    assert not blocks.notes()
    os.truncate(blocks.data, whole - 1)
    assert "has been truncated" in blocks.notes()[0]
    os.truncate(blocks.data, whole)
    result = blocks.service.break_off(NAME)
    assert "has been truncated" not in result.text


def test_a_writable_volume_that_was_moved_away_is_missed_and_not_reversed_without(
    mirror: Mirror,
) -> None:
    """A volume that begins as an older snapshot does not become the source without a word."""
    mirror.service.break_off(NAME)
    (mirror.view / "file").write_text("work")
    aside = mirror.view.rename(mirror.view.with_name("aside"))
    [problem] = mirror.service.status(NAME)[0].problems
    assert f"writable volume is missing: nothing is at {mirror.view}" in problem
    with pytest.raises(Refused, match="writable volume is missing") as caught:
        mirror.service.reverse(NAME, yes=True)
    assert f"mirrord break {NAME}" in caught.value.hint
    aside.rename(mirror.view)
    mirror.service.reverse(NAME, yes=True)
    assert mirror.source.is_symlink() and (mirror.source / "file").read_text() == "work"


@pytest.mark.parametrize("step", ["MOVE", "READONLY", "KEEP", "END"])
def test_what_an_interrupted_resync_had_set_aside_is_listed_and_named(
    mirror: Mirror, step: str
) -> None:
    mirror.service.break_off(NAME)
    (mirror.view / "file").write_text("work")
    label = "CATALOGUE:OPERATION:END" if step == "END" else f"BTRFS:ROLLBACK:{step}"
    stopped_at(label, lambda: mirror.service.resync(NAME, yes=True))
    result = mirror.again().break_off(NAME)
    listed = BtrfsDriver(str(mirror.there)).snapshots()
    [kept] = [one for one in listed if one.kind is SnapshotKind.DIVERGED]
    assert (Path(kept.path) / "file").read_text() == "work"
    assert f"had set aside is kept as {kept.name}" in result.text
    mirror.service.resync(NAME, yes=True)
    assert "set aside" not in mirror.service.break_off(NAME).text, "it is told once"
