"""A snapshot that is mounted by itself is in use: it is not deleted, and the others are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.core.errors import Busy
from mirrord.system import mounts
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs
from tests.support.service import until
from tests.support.unit import ROOT
from tests.support.world import NAME, World


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """One mirror; of nested subvolumes for tests whose parameter says so."""
    with btrfs.folders() as (here, there):
        made = World(BtrfsLab(here, there), tmp_path / "home")
        if nested := getattr(request, "param", False):
            btrfs.make_subvolume(Path(made.lab.source().location) / "inner")
        made.initialized(nested=nested, keep_destination=1)
        yield made
        made.clean_up()


def updated(world: World, seeds: range) -> list[str]:
    """The names of the destination's snapshots after these updates."""
    for seed in seeds:
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
    return [one.name for one in world.driver("destination").snapshots()]


@contextmanager
def mounted(what: Path, at: Path, *options: str) -> Iterator[Path]:
    at.mkdir()
    subprocess.run(["mount", *options, what, at], check=True)
    try:
        yield at
    finally:
        btrfs.unmount(at)


def device_of(path: Path) -> str:
    words = ["findmnt", "-nro", "SOURCE", "--nofsroot", "-T", str(path)]
    return subprocess.check_output(words, text=True).strip()


@pytest.mark.parametrize("kind", ["bind", "of a folder", "independent"])
def test_it_is_kept_until_it_is_unmounted(world: World, tmp_path: Path, kind: str) -> None:
    (Path(world.lab.source().location) / "folder").mkdir()
    updated(world, range(1))
    [shown] = world.driver("destination").snapshots()
    view = Path(shown.path)
    at = tmp_path / "a place"
    if kind == "independent":
        words = ["btrfs", "subvolume", "show", str(view)]
        inside = subprocess.check_output(words, text=True).splitlines()[0]
        made = mounted(Path(device_of(view)), at, "-o", f"subvol={inside}")
    else:
        made = mounted(view / "folder" if kind == "of a folder" else view, at, "--bind")
    with made:
        there = sorted(at.iterdir())
        assert len(updated(world, range(1, 4))) == 2, "the mounted one and the newest"
        assert sorted(at.iterdir()) == there and view.is_dir()
        with pytest.raises(Busy, match="is mounted at"):
            world.driver("destination").delete_snapshot(shown.guid)
        told = f"'{shown.name}' is mounted at {at}"
        planned = world.service.prune(NAME, dry_run=True, accept=False)
        assert "0 snapshots would be deleted" in planned.text, planned.text
        assert f"keep    {shown.name}  it is mounted at {at}" in planned.text
        there = planned.data["ends"]["destination"]
        assert not there["gone"] and shown.name in [one["name"] for one in there["kept"]]
        made_by_hand = world.service.prune(NAME, dry_run=False, accept=False)
        assert made_by_hand.status == "done" and "0 snapshots deleted" in made_by_hand.text
        assert told in made_by_hand.text
        events = [event.text for event in world.service.history(NAME, limit=50).events]
        assert sum(told in text for text in events) == 1
        assert not world.status()["problems"]
    # (A process that began meanwhile in a mount namespace of its own has it mounted until it ends.)
    until(lambda: len(updated(world, range(4, 5))) == 1)
    assert not view.exists()


def test_that_of_a_source_is_kept_too(world: World, tmp_path: Path) -> None:
    """A backup program has it mounted, for example."""
    updated(world, range(1))
    taken = Path(world.driver("source").snapshots()[-1].path)
    with mounted(taken, tmp_path / "at", "--bind") as at:
        there = sorted(at.iterdir())
        updated(world, range(1, 4))
        assert sorted(at.iterdir()) == there and taken.is_dir()
    updated(world, range(4, 5))
    assert not taken.exists()


@pytest.mark.parametrize("world", [True], indirect=True, ids=["nested"])
def test_the_view_of_nested_subvolumes_is_kept_while_it_is_mounted(
    world: World, tmp_path: Path
) -> None:
    """What is shown is a tree that was assembled from the snapshots."""
    view = Path(world.driver("destination").facts().view)
    with mounted(view.resolve(), tmp_path / "at", "--bind") as at:
        assert len(updated(world, range(2))) == 2
        assert (at / "inner").is_dir()
    assert len(updated(world, range(2, 3))) == 1


def test_a_mount_in_another_namespace_counts(world: World, tmp_path: Path) -> None:
    """As that of a container."""
    [shown] = world.driver("destination").snapshots()
    at = tmp_path / "inside"
    at.mkdir()
    program = "import sys; print(flush=True); sys.stdin.read()"
    words = ["unshare", "-m", "sh", "-c", 'mount --bind "$1" "$2" && exec "$3" -c "$4"', "sh"]
    container = subprocess.Popen(
        [*words, shown.path, at, sys.executable, program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert container.stdout is not None and container.stdout.readline() == b"\n"
        assert list(at.iterdir()) == []
        assert len(updated(world, range(2))) == 2
    finally:
        container.communicate(b"")
    assert len(updated(world, range(2, 3))) == 1


def test_a_mount_is_found_by_what_it_shows_whatever_its_name(tmp_path: Path) -> None:
    with btrfs.folders() as (here, _):
        folder = here / "a b\\c\td\x0ce\nf\u2028\u00e9#"
        (folder / "inside").mkdir(parents=True)
        words = ["findmnt", "-nro", "TARGET", "-T", str(here)]
        top = subprocess.check_output(words, text=True).strip()
        within = f"/{folder.relative_to(top)}"
        with mounted(folder / "inside", tmp_path / "at", "--bind") as at:
            found = [one for one in mounts.everywhere(within) if one.root.startswith(within)]
            assert [(one.root, one.path) for one in found] == [(f"{within}/inside", str(at))]
        assert not list(mounts.everywhere(within))


def test_a_process_that_sees_no_mount_is_passed_over(tmp_path: Path) -> None:
    """Its root was unmounted: its table of mounts is empty."""
    (tmp_path / "root").mkdir()
    program = (
        "import os, subprocess, sys; root = sys.argv[1]\n"
        "subprocess.run(['mount', '-t', 'tmpfs', 'none', root], check=True)\n"
        "inside = os.open(root, os.O_DIRECTORY)\n"
        "subprocess.run(['umount', '-l', root], check=True)\n"
        "os.fchdir(inside); os.chroot('.')\n"
        "print(flush=True); sys.stdin.read()"
    )
    words = ["unshare", "-m", sys.executable, "-c", program, str(tmp_path / "root")]
    alone = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert alone.stdout is not None and alone.stdout.readline() == b"\n"
        assert Path(f"/proc/{alone.pid}/mountinfo").read_bytes() == b""
        assert {one.path for one in mounts.everywhere()} >= {one.path for one in mounts.here()}
    finally:
        alone.communicate(b"")
