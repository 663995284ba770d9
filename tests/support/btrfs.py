"""Real btrfs for tests: file systems on loop devices, and a user who works on a volume.

To make, mount and unmount file systems takes longer than most tests: a test whose subject is not a
file system itself (full, damaged, unmounted, mounted elsewhere) has folders of its own on two that
all tests of a run share.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.files import change, digest, fill, reflink
from tests.support.mounts import unmount

__all__ = ["change", "clear", "close_shared", "delete_subvolume", "digest", "filesystem", "fill"]
__all__ += [
    "folders",
    "make_filesystem",
    "make_subvolume",
    "reflink",
    "require_btrfs",
    "scrub",
    "unmount",
]

_MEMORY = Path("/dev/shm")
#: Images are kept in memory only where so much is left besides: a full test disk has 3 GiB.
_MEMORY_FREE_BYTES = 12 << 30
_SHARED_MIB = 8192
#: Every subvolume's root has this inode number.
_ROOT_INODE = 256
_IOC_SYNC = 0x9408
_PATIENCE_S = 60.0
_numbers = itertools.count(1)
_undo = ExitStack()
_shared: list[Path] = []


def require_btrfs() -> None:
    """Fail the test with what is missing here; skip it only where somebody said that it may be
    (MIRRORD_TEST_UNPRIVILEGED=1).
    """
    why = ""
    if os.geteuid() != 0:
        why = "real btrfs on loop devices needs root"
    elif "btrfs" not in Path("/proc/filesystems").read_text():
        why = "this kernel has no btrfs (modprobe btrfs)"
    elif shutil.which("mkfs.btrfs") is None:
        why = "mkfs.btrfs is missing (apt-get install btrfs-progs)"
    if not why:
        return
    if os.environ.get("MIRRORD_TEST_UNPRIVILEGED") == "1":
        pytest.skip(why)
    pytest.fail(f"{why}; set MIRRORD_TEST_UNPRIVILEGED=1 to skip the tests that need it")


def make_filesystem(image: Path | str, *options: str) -> None:
    """mkfs.btrfs, with patience: it asks each mounted loop device what is in it, and fails when one
    of another test is given back at that moment.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        words = ["mkfs.btrfs", "-q", "-f", *options, image]
        made = subprocess.run(words, check=False, capture_output=True, text=True)
        if made.returncode == 0:
            return
        if "cannot check mount status" not in made.stderr or time.monotonic() > deadline_s:
            raise RuntimeError(f"mkfs.btrfs {image}: {made.stderr.strip()}")


@contextmanager
def filesystem(*, size_mib: int = 1024, options: str = "") -> Iterator[Path]:
    """The mount point of a fresh btrfs file system, mounted whole, gone afterwards."""
    require_btrfs()
    folder = Path(tempfile.mkdtemp(prefix="mirrord-btrfs-", dir=_images()))
    image, mount = folder / "image", folder / "mount"
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder)
        mount.mkdir()
        with image.open("wb") as file:
            file.truncate(size_mib << 20)
        make_filesystem(image)
        flags = "loop" + (f",{options}" if options else "")
        subprocess.run(["mount", "-o", flags, image, mount], check=True)
        undo.callback(unmount, mount)
        yield mount


def _images() -> Path | None:
    """Where images are quick to sync: in memory. None: where all temporary files are."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        [free] = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")]
        there = os.statvfs(_MEMORY)
    except (OSError, ValueError):
        return None
    enough = min(free, there.f_bavail * there.f_frsize) >= _MEMORY_FREE_BYTES
    return _MEMORY if enough else None


@contextmanager
def folders() -> Iterator[tuple[Path, Path]]:
    """A fresh folder on each of the two shared file systems, gone afterwards with all in it."""
    if not _shared:
        _shared.extend(_undo.enter_context(filesystem(size_mib=_SHARED_MIB)) for _ in range(2))
    number = next(_numbers)
    here, there = (mount / f"test{number}" for mount in _shared)
    try:
        for folder in (here, there):
            folder.mkdir()
        yield here, there
    finally:
        for folder in (here, there):
            clear(folder)
            _give_back(folder.parent)


def _give_back(mount: Path) -> None:
    """Commit, so that what was deleted can be used again: the kernel would wait for up to 30 s."""
    descriptor = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _IOC_SYNC)
    finally:
        os.close(descriptor)


def close_shared() -> None:
    """The run is over."""
    _shared.clear()
    _undo.close()


def clear(folder: Path) -> None:
    """Remove a folder with the subvolumes in it."""
    _delete(_inner(folder))
    shutil.rmtree(folder)


def delete_subvolume(path: Path) -> None:
    """Delete a subvolume with those in it."""
    _delete([*_inner(path), path])


def _inner(folder: Path) -> list[Path]:
    """The subvolumes in a folder; inner ones come before those around them."""
    return [
        Path(at, name)
        for at, names, _ in os.walk(folder, topdown=False)
        for name in names
        if os.lstat(os.path.join(at, name)).st_ino == _ROOT_INODE
    ]


def _delete(paths: list[Path]) -> None:
    """Delete subvolumes, inner ones first."""
    for one in paths:  # (what holds another one, and is read-only, would not let it go)
        if any(one in other.parents for other in paths):
            words: list[str | Path] = ["btrfs", "property", "set", "-f", "-ts", one, "ro", "false"]
            subprocess.run(words, check=True)
    if paths:
        subprocess.run(["btrfs", "-q", "subvolume", "delete", *paths], check=True)


def scrub(path: Path) -> None:
    """Assert that each block of a file system is what its checksum says."""
    for _ in range(3):
        done = subprocess.run(
            ["btrfs", "scrub", "start", "-B", path], check=False, capture_output=True, text=True
        ).stdout
        # Superblocks alone: a transaction was committed while they were compared with the last one
        # (deleted subvolumes are cleaned up in the background).
        if re.search(r"summary:\s+super=\d+$", done, re.MULTILINE) is None:
            break
    assert "no errors found" in done, done


def make_subvolume(path: Path) -> Path:
    """An empty subvolume."""
    subprocess.run(["btrfs", "-q", "subvolume", "create", path], check=True)
    return path
