"""Restoring single files, on volumes that have files; and whole volumes that were lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import (
    MirrordError,
    NoSpace,
    NotFound,
    Refused,
    Unsupported,
    UsageError,
)
from mirrord.core.model import Role
from mirrord.drivers.block.volume import Volume
from tests.contract import lab_block
from tests.contract.lab_btrfs import BtrfsLab
from tests.failover.volumes import lose
from tests.support import btrfs
from tests.support.service import until
from tests.support.world import NAME, World


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[World, Path]]:
    """A mirror on btrfs, and the folder of its source."""
    with btrfs.folders() as (here, there):
        lab = BtrfsLab(here, there)
        home = Path(lab.source().location)
        (home / "etc").mkdir()
        (home / "etc" / "hosts").write_text("one\n")
        (home / "etc" / "link").symlink_to("/etc")
        os.setxattr(home / "etc" / "hosts", "user.note", b"kept")
        world = World(lab, tmp_path / "home").initialized()
        yield world, home
        world.close()


def restore(world: World, *paths: str, **options: object) -> None:
    values = {"snapshot": None, "into": None, "overwrite": False, **options}
    world.service.restore_files(NAME, list(paths), **values)  # type: ignore[arg-type]


def test_a_lost_file_comes_back_with_all_that_belongs_to_it(files: tuple[World, Path]) -> None:
    world, home = files
    before = (home / "etc" / "hosts").stat()
    (home / "etc" / "hosts").unlink()
    restore(world, "etc/hosts")
    after = (home / "etc" / "hosts").stat()
    assert (home / "etc" / "hosts").read_text() == "one\n"
    assert os.getxattr(home / "etc" / "hosts", "user.note") == b"kept"
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_what_was_restored_is_there_after_a_power_cut(tmp_path: Path) -> None:
    """The image is copied while it is mounted, and the copy is mounted."""
    content = os.urandom(1 << 20)
    with btrfs.filesystem(size_mib=256, options="commit=300") as here, btrfs.folders() as ends:
        lab = BtrfsLab(here, ends[1])
        home = Path(lab.source().location)
        (home / "file").write_bytes(content)
        world = World(lab, tmp_path / "home").initialized()
        (home / "file").unlink()
        subprocess.run(["sync", "-f", home], check=True)
        restore(world, "file")
        world.close()
        cut = tmp_path / "cut"
        subprocess.run(["cp", "--sparse=always", here.parent / "image", cut], check=True)
    again = tmp_path / "again"
    again.mkdir()
    subprocess.run(["mount", "-o", "loop", cut, again], check=True)
    try:
        assert (again / "home/file").read_bytes() == content
    finally:
        btrfs.unmount(again)


def test_a_whole_folder_comes_back(files: tuple[World, Path]) -> None:
    world, home = files
    shutil.rmtree(home / "etc")
    restore(world, str(home / "etc"))
    assert (home / "etc" / "hosts").read_text() == "one\n"
    assert (home / "etc" / "link").is_symlink()


def test_a_folder_that_does_not_fit_is_one_error_with_what_to_do(tmp_path: Path) -> None:
    """cp has a line for each file."""
    with btrfs.filesystem(size_mib=128) as here, btrfs.filesystem() as there:
        lab = BtrfsLab(here, there)
        folder = Path(lab.source().location) / "docs"
        folder.mkdir()
        for number in range(20):
            (folder / f"file{number}").write_bytes(os.urandom(100_000))
        world = World(lab, tmp_path / "home").initialized()
        with (here / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(1 << 20))
        subprocess.run(["sync", "-f", here], check=True)
        with pytest.raises(NoSpace) as caught:
            restore(world, "docs", overwrite=True)
        assert str(caught.value).count("No space left") == 1 and "\n" not in str(caught.value)
        assert "Free space there" in caught.value.hint
        assert not [each for each in folder.parent.iterdir() if each.name.startswith("docs.")]
        (here / "ballast").unlink()
        world.clean_up()


def test_what_is_there_is_kept_unless_told_and_even_then_beside(files: tuple[World, Path]) -> None:
    world, home = files
    (home / "etc" / "hosts").write_text("two\n")
    with pytest.raises(Refused, match="a file of that name already exists"):
        restore(world, "etc/hosts")
    assert (home / "etc" / "hosts").read_text() == "two\n"
    restore(world, "etc/hosts", overwrite=True)
    assert (home / "etc" / "hosts").read_text() == "one\n"
    assert (home / "etc" / "hosts.before-restore").read_text() == "two\n"
    with pytest.raises(Refused, match="earlier restore"):
        restore(world, "etc/hosts", overwrite=True)


@pytest.mark.parametrize(
    "paths", [("etc/hosts", "opt/hosts"), ("etc", "opt/etc"), ("etc/hosts", "etc/hosts")]
)
def test_files_that_would_replace_each_other_are_refused_and_none_is_restored(
    files: tuple[World, Path], tmp_path: Path, paths: tuple[str, ...]
) -> None:
    world, home = files
    (home / "opt" / "etc").mkdir(parents=True)
    (home / "opt" / "hosts").write_text("two\n")
    world.service.update(NAME)
    folder = tmp_path / "restored"
    folder.mkdir()
    with pytest.raises(UsageError, match="same place"):
        restore(world, *paths, into=folder)
    assert os.listdir(folder) == []


def test_a_folder_and_a_file_in_it_are_refused(files: tuple[World, Path]) -> None:
    world, home = files
    with pytest.raises(UsageError, match="same place"):
        restore(world, "etc", "etc/hosts", overwrite=True)
    assert not (home / "etc.before-restore").exists()


def test_any_snapshot_and_any_folder(files: tuple[World, Path], tmp_path: Path) -> None:
    world, home = files
    first = world.lab.destination().facts().shown
    (home / "etc" / "hosts").write_text("two\n")
    world.service.update(NAME)
    restore(world, "etc/hosts", into=tmp_path)
    assert (tmp_path / "hosts").read_text() == "two\n"
    restore(world, "etc/hosts", into=tmp_path, snapshot=first, overwrite=True)
    assert (tmp_path / "hosts").read_text() == "one\n"
    with pytest.raises(NotFound, match="matches no snapshot"):
        restore(world, "etc/hosts", snapshot="nonsense")
    with pytest.raises(UsageError, match="is not a folder"):
        restore(world, "etc/hosts", into=tmp_path / "nowhere")


@pytest.mark.parametrize("path", ["../etc/hosts", "/", "", "etc/../../x"])
def test_a_path_that_leaves_the_volume_is_refused(files: tuple[World, Path], path: str) -> None:
    world, _home = files
    with pytest.raises(UsageError):
        restore(world, path)


def test_no_symbolic_link_is_followed_out_of_the_volume(files: tuple[World, Path]) -> None:
    world, home = files
    with pytest.raises(Refused, match="symbolic link"):
        restore(world, "etc/link/passwd", overwrite=True)
    shutil.rmtree(home / "etc")
    (home / "etc").symlink_to("/tmp")
    with pytest.raises(Refused, match="symbolic link"):
        restore(world, "etc/hosts")


def test_files_come_back_after_a_break_too(files: tuple[World, Path]) -> None:
    world, home = files
    world.service.break_off(NAME)
    (home / "etc" / "hosts").unlink()
    restore(world, "etc/hosts")
    assert (home / "etc" / "hosts").read_text() == "one\n"


def test_restore_all_creates_a_lost_source_again(files: tuple[World, Path]) -> None:
    world, home = files
    content = world.view_content()
    for path in (*home.parent.joinpath(".mirrord/home/snapshots").glob("*/*"), home):
        subprocess.run(["btrfs", "-q", "subvolume", "delete", path], check=True)
    shutil.rmtree(home.parent / ".mirrord")
    with pytest.raises(MirrordError):
        world.service.update(NAME)
    assert world.service.restore_all(NAME, snapshot=None, yes=True).status == "done"
    assert (home / "etc" / "hosts").read_text() == "one\n", "at the path where it was"
    assert world.source_content() == content
    world.lab.change(world.lab.source(), 5)
    assert world.service.update(NAME).status == "done"
    assert world.in_step()


def test_a_source_that_is_missing_before_the_first_transfer_is_not_to_be_restored(
    world: World,
) -> None:
    """There is nothing to restore it from; how a new one is made depends on its kind."""
    world.create()
    place = Path(world.lab.source().location)
    place.rename(place.with_name("elsewhere"))
    with pytest.raises(Refused, match="no volume at the source") as caught:
        world.service.initialize(NAME)
    made = {"btrfs": "btrfs subvolume create", "block": "mirrord volume create"}
    assert f"'{made[world.lab.source().kind]}' creates a new one" in caught.value.hint
    assert "restore" not in caught.value.hint
    assert sum(one in caught.value.hint for one in made.values()) == 1


def test_a_restore_that_is_aborted_ends_and_can_be_given_up(world: World) -> None:
    """Its recovery would go on with the transfer: neither `abort` nor the daemon begins that."""
    source, amount = world.lab.source(), 8 << 20
    if source.kind == "block":
        amount = 3 << 20
        with Volume.open(source.location, writable=True) as volume:
            volume.write(0, os.urandom(amount))
    else:
        (Path(source.location) / "large").write_bytes(os.urandom(amount))
    world.create(throttle="1GiB/s")
    world.service.initialize(NAME)
    content = world.view_content()
    definition = world.paths.mirrors / f"{NAME}.toml"
    slow = definition.read_text().replace("1GiB/s", f"{amount // 64}B/s")
    definition.write_text(slow)
    lose(world.lab, source)
    words = world.command("restore", NAME, "--all", "--yes")
    with subprocess.Popen(words, env=world.environment(), stderr=subprocess.PIPE) as restore:
        until(lambda: world.status()["activity"] == "transferring")
        done = world.service.abort(NAME, hard=False)
        assert restore.wait() == 1
    assert "was ended; the source is not complete" in done.text and done.data["stopped"]
    assert f"mirrord abort {NAME} --hard" in done.text
    time.sleep(1)
    status = world.status()
    assert status["activity"] == "idle" and "interrupted restore waits" in status["problems"][0]
    assert world.lab.source().facts().role is not Role.LIVE
    world.service.abort(NAME, hard=True)
    [problem] = [one for one in world.status()["problems"] if one.startswith("the source")]
    assert "is missing" in problem or "read-only" in problem
    definition.write_text(slow.replace(f"{amount // 64}B/s", "1GiB/s"))
    assert world.service.restore_all(NAME, snapshot=None, yes=True).status == "done"
    assert world.source_content() == content and world.status()["problems"] == []


def test_a_lost_source_whose_snapshots_are_there_needs_no_transfer(
    files: tuple[World, Path],
) -> None:
    world, home = files
    content = world.view_content()
    subprocess.run(["btrfs", "-q", "subvolume", "delete", home], check=True)
    with pytest.raises(Refused, match="no volume at the source") as caught:
        world.service.update(NAME)
    assert f"mirrord restore {NAME} --all" in caught.value.hint
    assert "creates a new one" not in caught.value.hint
    assert world.service.restore_all(NAME, snapshot=None, yes=True).status == "done"
    assert world.source_content() == content
    assert (home / "etc" / "hosts").read_text() == "one\n"
    history = world.service.history(NAME, limit=5).transfers
    assert [row.verb for row in history] == ["initialize"]
    assert world.service.update(NAME).status in ("unchanged", "done")
    assert world.in_step()


def test_a_mounted_source_cannot_be_reversed_and_nothing_is_changed(
    files: tuple[World, Path], tmp_path: Path
) -> None:
    world, home = files
    found = subprocess.run(
        ["findmnt", "-n", "-o", "SOURCE,TARGET", "--target", home], capture_output=True, text=True
    )
    device, whole = found.stdout.split()
    mount = tmp_path / "mounted"
    mount.mkdir()
    inner = f"subvol=/{home.relative_to(whole)}"
    subprocess.run(["mount", "-o", inner, device.split("[")[0], mount], check=True)
    try:
        target = Path(world.lab.destination().location).with_name("second")
        world.service.create("second", f"btrfs:{mount}", f"btrfs:{target}")
        world.service.initialize("second")
        before = world.service.status("second")[0]
        with pytest.raises(MirrordError, match="cannot become a destination"):
            world.service.reverse("second", yes=True)
        after = world.service.status("second")[0]
        assert (after.state, after.reading.source) == (before.state, before.reading.source)
        (mount / "new").write_text("x")
        assert world.service.update("second").status == "done"
        assert (target / "current" / "new").read_text() == "x"
    finally:
        world.service.close()
        subprocess.run(["umount", mount], check=True)


def test_a_snapshot_older_than_all_common_ones_needs_a_renamed_source(tmp_path: Path) -> None:
    """The message does not deny the common snapshots that are newer."""
    with btrfs.folders() as (here, there):
        lab = BtrfsLab(here, there)
        world = World(lab, tmp_path / "home").initialized(keep_source=1)
        content, home = world.view_content(), Path(lab.source().location)
        first = lab.destination().facts().shown
        lab.change(lab.source(), 1)
        world.service.update(NAME)
        base = lab.source().snapshots()[-1].name
        with pytest.raises(Refused, match="no common snapshot up to") as caught:
            world.service.restore_all(NAME, snapshot=first, yes=True)
        assert base in caught.value.hint
        home.rename(home.with_name("renamed"))
        world.service.restore_all(NAME, snapshot=first, yes=True)
        assert world.source_content() == content
        world.close()


def test_files_of_a_kind_of_volume_that_has_none_are_no_failure_of_the_mirror(
    tmp_path: Path,
) -> None:
    with lab_block.lab(tmp_path) as lab:
        world = World(lab, tmp_path / "home").initialized()
        with pytest.raises(Unsupported):
            restore(world, "etc/hosts")
        assert world.status()["healthy"]
        world.close()
