"""A file system that is full while its application is paused: of a member, or of mirrord itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mirrord.core.errors import NoSpace, PauseFailed
from mirrord.system import steps
from tests.failover.test_break import fill_data, fill_metadata
from tests.pausers.conftest import NAME, Group
from tests.pausers.hosts import Hosts, hosts
from tests.support import btrfs
from tests.support.stripes import FILE

#: That of each subvolume's root.
_ROOT_INODE = 256


@contextmanager
def at(step: str, work: Callable[[], object]) -> Iterator[None]:
    """Do something when a step of the pause is reached."""

    def act(label: str) -> None:
        if label == f"ENGINE:PAUSE:{step}":
            work()

    steps.observe(act)
    try:
        yield
    finally:
        steps.observe(None)


class Full:
    """Fills a btrfs file system until it takes no snapshot of a volume."""

    def __init__(self, mount: Path, volume: Path) -> None:
        self._folder, self._volume = mount / "full", volume
        self._snapshots: list[Path] = []

    def fill(self) -> None:
        fill_data(self._folder)
        number = 0
        while number < 3 or self._more():  # a commit gives back what was reserved
            number += 1
            with suppress(OSError):
                fill_metadata(self._folder / str(number))
            self._sync()

    def _more(self) -> bool:
        """Take snapshots until one fails; whether there were any."""
        before = len(self._snapshots)
        while True:
            path = self._folder / f"snapshot{len(self._snapshots)}"
            words: list[str | Path] = ["btrfs", "subvolume", "snapshot", self._volume, path]
            if subprocess.run(words, capture_output=True).returncode != 0:
                return len(self._snapshots) > before
            self._snapshots.append(path)

    def _sync(self) -> None:
        subprocess.run(["sync", "-f", self._volume], check=True)

    def empty(self) -> None:
        words: list[str | Path] = ["btrfs", "-q", "subvolume", "delete", *self._snapshots]
        subprocess.run(words, check=True)
        shutil.rmtree(self._folder)
        self._sync()


def _stored(*folders: Path) -> set[Path]:
    """The snapshots in these, whoever knows of them."""
    found = {path for one in folders for path in one.glob(".mirrord/*/snapshots/*/*")}
    return {path for path in found if path.stat().st_ino == _ROOT_INODE}


def test_a_member_whose_file_system_is_full(group: Group, tmp_path: Path) -> None:
    """The set is aborted, everything is resumed, and the message names the member."""
    with btrfs.filesystem(size_mib=120) as mount:
        btrfs.make_subvolume(mount / "c")
        volumes = {"a": group.here / "a", "c": mount / "c"}
        ends = tuple(f"btrfs:{path}=btrfs:{group.there / one}" for one, path in volumes.items())
        group.service.create(NAME, members=ends, pause=f"cgroup:{group.app.name}")
        group.app.python("import time; time.sleep(1000)")
        group.service.initialize(NAME)
        (group.here / "a" / "file").write_text("1")
        before, stored = group.snapshots(), _stored(group.here, mount)
        full = Full(mount, mount / "c")
        with at("BEGIN", full.fill), pytest.raises(NoSpace) as failure:
            group.service.update(NAME)
        assert failure.value.where == f"btrfs:{mount}/c" and "\n" not in str(failure.value)
        assert not group.app.asked() and not group.records()
        assert group.snapshots() == before and _stored(group.here, mount) == stored
        with pytest.raises(NoSpace) as failure:
            group.service.update(NAME)
        assert failure.value.where == f"btrfs:{mount}/c"
        assert not group.app.asked() and _stored(group.here, mount) == stored
        full.empty()
        (group.here / "a" / "file").write_text("2")
        assert group.service.update(NAME).status == "done"
        assert (group.there / "a/current/file").read_text() == "2"
        folders = [*mount.glob(".mirrord/*/snapshots/*")]
        assert {one.name for one in folders} == set(group.snapshots()), "no folder is left behind"


@contextmanager
def small_folder(folder: Path) -> Iterator[Callable[[], object]]:
    """A folder that the function which is yielded fills to the last byte."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], check=True)

    def fill() -> None:
        with suppress(OSError), (folder / "full").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    try:
        yield fill
    finally:
        btrfs.unmount(folder)


def _logging(folder: Path) -> tuple[Path, Path]:
    """A program that pauses, and what it was run with."""
    program, log = folder / "pause-db", folder / "log"
    program.write_text(f"#!/bin/sh\necho $1 >> {log}\n")
    program.chmod(0o755)
    log.touch()
    return program, log


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path / "home") as made:
        yield made


@pytest.mark.parametrize("step", ["CONFIRMED", "RESUMED"])
def test_the_catalogue_is_full(group: Group, tmp_path: Path, step: str) -> None:
    """A set that cannot be recorded is deleted by the next command."""
    program, log = _logging(tmp_path)
    with small_folder(group.paths.state) as fill:
        group.create(pause=f"hook:{program}")
        group.service.initialize(NAME)
        [first] = group.snapshots()
        (group.here / "a" / "file").write_text("1")
        log.write_text("")
        with at(step, fill), pytest.raises(NoSpace, match="catalogue cannot be written"):
            group.service.update(NAME)
        assert log.read_text().split() == ["pause", "resume"]
        with pytest.raises(NoSpace, match="catalogue cannot be written"):
            group.service.update(NAME)
        assert log.read_text().split() == ["pause", "resume"], "it was paused for nothing"
        (group.paths.state / "full").unlink()
        group.service.recover(NAME)
        assert {one.name for one in _stored(group.here)} == {first}
        assert group.service.update(NAME).status == "done"
        group.service.close()


def test_the_folder_of_the_records_is_full(pair: Hosts) -> None:
    """On the second host: the first one is not paused either."""
    records = pair.agent_home("two") / "run/agents"
    seen: list[str] = []
    with small_folder(records) as fill:
        pair.paused()
        pair.service.initialize(NAME)
        (pair.here / "a" / FILE).write_text("1")
        fill()
        before = pair.snapshots()
        steps.observe(seen.append)
        try:
            with pytest.raises(PauseFailed, match="No space left") as failure:
                pair.service.update(NAME)
        finally:
            steps.observe(None)
        assert "ENGINE:PAUSE:BEGIN" not in seen
        assert str(records) in failure.value.where and "two" in failure.value.where
        assert "Free space" in failure.value.hint and pair.snapshots() == before
        (records / "full").unlink()
        pair.service.update(NAME)
        pair.service.shared.links.close()
