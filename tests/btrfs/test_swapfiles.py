"""What the kernel refuses: snapshots with an active swap file, and paths that are too long."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import Refused, Unsupported
from mirrord.drivers.btrfs.driver import BtrfsDriver
from tests.contract.flows import MIRROR, mirror
from tests.support import btrfs


@pytest.fixture
def filesystem() -> Iterator[Path]:
    with btrfs.filesystem() as mounted:
        yield mounted


def test_an_active_swap_file_is_named(filesystem: Path) -> None:
    volume = btrfs.make_subvolume(filesystem / "home")
    file = volume / "a swap\nfile"
    file.touch(mode=0o600)
    subprocess.run(["chattr", "+C", file], check=True)
    file.write_bytes(bytes(8 << 20))
    subprocess.run(["mkswap", "-q", file], check=True)
    source = BtrfsDriver(str(volume))
    subprocess.run(["swapon", file], check=True)
    try:
        with pytest.raises(Refused, match="swap file") as found:
            source.take_snapshot("one")
    finally:
        subprocess.run(["swapoff", file], check=True)
    assert str(volume / r"a swap\nfile") in str(found.value)
    assert "swapoff" in found.value.hint
    assert source.snapshots() == []
    source.take_snapshot("one")


def _walk_down(top: Path, work: Callable[[], None]) -> None:
    """Do something in each of 20 folders below one another; the path of the last is 4,019 bytes."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(top)
        for _ in range(20):
            work()
            os.chdir("d" * 200)
    finally:
        os.fchdir(before)
        os.close(before)


def test_a_path_that_is_too_long_for_btrfs_receive_is_no_damage(filesystem: Path) -> None:
    """`mirrord-receive` opens one folder after the other."""
    volume = btrfs.make_subvolume(filesystem / "home")
    _walk_down(volume, lambda: Path("d" * 200).mkdir())
    source, place = BtrfsDriver(str(volume)), str(filesystem / "backup")
    other = BtrfsDriver(place, receiver=lambda: "btrfs-progs")
    other.prepare(MIRROR)
    with pytest.raises(Unsupported, match="too long"):
        mirror(source, other, None, "base")
    assert other.facts().shown is None
    destination = BtrfsDriver(place)
    mirror(source, destination, None, "base")
    found: list[list[str]] = []
    _walk_down(Path(destination.facts().view), lambda: found.append(os.listdir()))
    assert found == [["d" * 200]] * 20
