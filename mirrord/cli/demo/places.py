"""Where the demo plays: two btrfs file systems on loop images, or two block volumes."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
import tarfile
from pathlib import Path

from mirrord.core.errors import IoFailed, MirrordError
from mirrord.system import command

FILES = 3000
_IMAGE_BYTES = 3 << 30
_BIG_BYTES = 512 << 20
_TIMEOUT_S = 120.0
_TRIES = 5


def open_place(folder: Path) -> Place:
    """btrfs when this user and kernel can, else block volumes."""
    if os.geteuid() == 0:
        place = BtrfsPlace(folder)
        try:
            place.make()
        except (MirrordError, OSError) as error:
            place.close()
            print(f"(btrfs is not available: {error}; using two block volumes)\n")
        except BaseException:
            place.close()  # interrupted: nobody else knows yet what is mounted
            raise
        else:
            return place
    else:
        print("(not root: using two block volumes instead of two btrfs file systems)\n")
    return BlockPlace(folder)


def must(*arguments: str) -> str:
    """Run a program; `IoFailed` with what it said when it fails."""
    program = command.find(arguments[0], hint="Install it.")
    done = command.run([program, *arguments[1:]], timeout_s=_TIMEOUT_S)
    if done.status != 0:
        raise IoFailed(f"'{' '.join(arguments)}' failed", why=done.errors.strip())
    return done.output


def _make_filesystem(image: Path) -> None:
    """mkfs.btrfs asks each mounted loop device what is in it: it fails, and may be tried again,
    when one of somebody else is detached at that moment.
    """
    for left in reversed(range(_TRIES)):
        try:
            must("mkfs.btrfs", "-q", str(image))
            return
        except IoFailed as error:
            if not left or "cannot check mount status" not in error.why:
                raise


class BtrfsPlace:
    """Two btrfs file systems, each in a sparse image on a loop device."""

    story = "two btrfs file systems, each on a loop device"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "disk1" / "home"
        self.source = f"btrfs:{self.home}"
        self.destination = f"btrfs:{folder / 'disk2' / 'home'}"
        self._random = random.Random(20)  # noqa: S311 - made-up content
        self._mounted: list[Path] = []

    def make(self) -> None:
        """Make and mount both."""
        for name in ("disk1", "disk2"):
            image, mount = self.folder / f"{name}.img", self.folder / name
            with image.open("wb") as file:
                file.truncate(_IMAGE_BYTES)
            mount.mkdir()
            _make_filesystem(image)
            must("mount", "-t", "btrfs", "-o", "loop", str(image), str(mount))
            self._mounted.append(mount)
        must("btrfs", "subvolume", "create", str(self.home))

    def fill(self) -> str:
        """A few thousand small files."""
        for number in range(FILES):
            path = self.home / f"folder{number // 100:02}" / f"file{number:04}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(self._content())
        return f"{FILES:,} files in {self.home}"

    def change(self, number: int) -> str:
        """Write, remove, rename."""
        files = sorted(self.home.rglob("*.txt"))
        chosen = self._random.sample(files, 60)
        for path in chosen[:50]:
            path.write_bytes(self._content())
        for path in chosen[50:]:
            path.unlink()
        new = self.home / f"new{number}.txt"
        new.write_text(f"round {number}\n")
        return "50 files rewritten, 10 removed, 1 new"

    def change_much(self) -> str:
        """One large file."""
        with (self.home / "large.bin").open("wb") as file:
            for _ in range(_BIG_BYTES >> 20):
                file.write(self._random.randbytes(1 << 20))
        return f"a new file of {_BIG_BYTES >> 20} MiB"

    def write_at_destination(self) -> str:
        """A file that only the destination has."""
        view = self.folder / "disk2" / "home" / "current"
        (view / "written-during-the-disaster.txt").write_text("work went on here\n")
        return f"a new file in {view}"

    def view(self) -> str:
        """The names and sizes below the view."""
        root = self.folder / "disk2" / "home" / "current"
        listed = sorted(
            f"{path.relative_to(root)} {path.stat().st_size} {path.stat().st_mtime_ns}"
            for path in root.rglob("*")
        )
        return "\n".join(listed)

    def close(self) -> None:
        """Unmount what was mounted here; the images go with the folder."""
        for mount in reversed(self._mounted):
            command.run([command.find("umount", hint=""), str(mount)], timeout_s=_TIMEOUT_S)
        self._mounted.clear()

    def _content(self) -> bytes:
        return self._random.randbytes(self._random.randrange(500, 20_000))


class BlockPlace:
    """Two block volumes: directories, no privileges."""

    story = "two block volumes, each a directory (no root, no special file system)"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = f"block:{folder / 'volume1'}"
        self.destination = f"block:{folder / 'volume2'}"
        self._random = random.Random(20)  # noqa: S311 - made-up content

    def fill(self) -> str:
        """A tar stream of a few thousand files, in the volume's first bytes."""
        self._volume("create", str(self.folder / "volume1"), "4G")
        tar = self.folder / "files.tar"
        with tarfile.open(tar, "w") as stream:
            for number in range(FILES):
                content = self._random.randbytes(self._random.randrange(500, 20_000))
                entry = tarfile.TarInfo(f"folder{number // 100:02}/file{number:04}.txt")
                entry.size = len(content)
                stream.addfile(entry, io.BytesIO(content))
        self._volume("import", str(self.folder / "volume1"), str(tar))
        tar.unlink()
        return f"an archive of {FILES:,} files in {self.folder / 'volume1'}"

    def change(self, number: int) -> str:
        """Overwrite some blocks."""
        for _ in range(5):
            self._write("volume1", self._random.randrange(0, 1 << 30), 64 << 10)
        return "5 pieces of 64 KiB rewritten"

    def change_much(self) -> str:
        """A large piece."""
        self._write("volume1", 2 << 30, _BIG_BYTES)
        return f"{_BIG_BYTES >> 20} MiB written"

    def write_at_destination(self) -> str:
        """A write that only the destination has."""
        self._write("volume2", 3 << 30, 64 << 10)
        return f"64 KiB in {self.folder / 'volume2'}"

    def view(self) -> str:
        """What `mirrord volume info` says of the content."""
        found = json.loads(self._volume("info", str(self.folder / "volume2"), "--json"))
        return str(found["content"])

    def close(self) -> None:
        """Nothing but files."""
        for name in ("volume1", "volume2"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _write(self, volume: str, offset: int, length: int) -> None:
        piece = self.folder / "piece.bin"
        with piece.open("wb") as file:
            for start in range(0, length, 1 << 20):
                file.write(self._random.randbytes(min(1 << 20, length - start)))
        self._volume(
            "write", str(self.folder / volume), "--offset", str(offset), "--from", str(piece)
        )
        piece.unlink()

    @staticmethod
    def _volume(*words: str) -> str:
        return must(sys.executable, "-m", "mirrord", "volume", *words)


#: A source with files in it and room for a destination. What changes one says what it did.
Place = BtrfsPlace | BlockPlace
