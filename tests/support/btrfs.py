"""Real btrfs for tests: file systems on loop devices, and a user who works on a volume."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.files import change, digest, fill, reflink

__all__ = ["change", "digest", "filesystem", "fill", "make_subvolume", "reflink"]
__all__ += ["require_btrfs", "unmount"]


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


@contextmanager
def filesystem(*, size_mib: int = 1024, options: str = "") -> Iterator[Path]:
    """The mount point of a fresh btrfs file system, mounted whole, gone afterwards."""
    require_btrfs()
    folder = Path(tempfile.mkdtemp(prefix="mirrord-btrfs-"))
    image, mount = folder / "image", folder / "mount"
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder)
        mount.mkdir()
        with image.open("wb") as file:
            file.truncate(size_mib << 20)
        subprocess.run(["mkfs.btrfs", "-q", "-f", image], check=True, capture_output=True)
        flags = "loop" + (f",{options}" if options else "")
        subprocess.run(["mount", "-o", flags, image, mount], check=True)
        undo.callback(unmount, mount)
        yield mount


def unmount(mount: Path) -> None:
    """Unmount, also when a child that was killed is still on its way out."""
    if subprocess.run(["umount", mount], check=False, capture_output=True).returncode != 0:
        subprocess.run(["umount", "--lazy", mount], check=True)


def make_subvolume(path: Path) -> Path:
    """An empty subvolume."""
    subprocess.run(["btrfs", "-q", "subvolume", "create", path], check=True)
    return path
