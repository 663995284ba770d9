"""A btrfs file system in an image file, and what can happen to a disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from tests.soak.history import Violation
from tests.support.btrfs import make_filesystem

_FILL = "fill"
_PATIENCE_S = 30.0


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


class Disk:
    """One file system below the folder of a seed, mounted while the seed is played."""

    def __init__(self, folder: Path, name: str, size_mib: int) -> None:
        self.name = name
        self.image = folder / f"{name}.img"
        self.mount = folder / name
        self.mount.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_mib << 20)
        make_filesystem(self.image)
        self.attach()

    def attach(self) -> None:
        # A commit at the kernel's own moment would tear the copy that a power cut takes.
        subprocess.run(
            ["mount", "-o", "loop,noatime,commit=300", self.image, self.mount],
            check=True,
            capture_output=True,
        )

    def detach(self) -> None:
        """Unmount; a process that was just killed may take a moment to let go."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while os.path.ismount(self.mount):
            tried = call("umount", self.mount)
            if tried.returncode == 0:
                continue
            if time.monotonic() > deadline_s:
                users = call("fuser", "-vm", self.mount)
                raise RuntimeError(f"{tried.stderr}{users.stderr}")
            time.sleep(0.2)

    def read_only(self) -> bool:
        return bool(os.statvfs(self.mount).f_flag & os.ST_RDONLY)

    def fill_data(self) -> str:
        """Leave no byte for data."""
        folder = self.mount / _FILL
        folder.mkdir(exist_ok=True)
        for number, block in enumerate((1 << 20, 64 << 10, 4096)):
            _fill_file(folder / f"data{number}", block)
        _sync(self.mount)
        _fill_file(folder / "data3", 4096)
        left = os.statvfs(self.mount)
        return f"{left.f_bavail * left.f_bsize} bytes left"

    def fill_metadata(self) -> str:
        """Leave no byte for metadata either: long symbolic links, then short ones."""
        said = self.fill_data()
        folder, number = self.mount / _FILL, 0
        for size in (3900, 500, 1):
            failed = 0
            while failed < 20:
                number += 1
                try:
                    os.symlink("x" * size, folder / f"link{number}")
                except OSError:
                    failed += 1
            _sync(self.mount)
        return f"{said}, {number} links"

    def unfill(self) -> bool:
        """Give the room back; whether there was anything to give."""
        folder = self.mount / _FILL
        if not folder.exists():
            return False
        for entry in sorted(folder.glob("data*"), reverse=True):
            try:
                os.truncate(entry, 0)  # needs less room than an unlink
            except OSError:
                pass
        _sync(self.mount)
        shutil.rmtree(folder, ignore_errors=True)
        call("btrfs", "filesystem", "sync", self.mount)
        return True

    def copy(self, to: Path) -> None:
        """What the disk holds now, as a power cut leaves it."""
        subprocess.run(["cp", "--sparse=always", self.image, to], check=True)

    def scrub(self) -> None:
        done = call("btrfs", "scrub", "start", "-B", self.mount)
        if done.returncode != 0 or "no errors found" not in done.stdout:
            raise Violation("scrub", f"{self.mount}: {done.stdout}{done.stderr}")

    def check(self) -> None:
        """An independent look at the file system, which is not mounted now."""
        done = call("btrfs", "check", "--readonly", self.image)
        if done.returncode != 0:
            raise Violation(
                "btrfs check", f"{self.image}: {done.stdout[-800:]}{done.stderr[-800:]}"
            )


def _fill_file(path: Path, block: int) -> None:
    data = bytes(block)
    try:
        with path.open("ab", buffering=0) as file:
            while file.write(data):
                pass
    except OSError:
        pass


def _sync(mount: Path) -> None:
    call("sync", "-f", mount)
