"""A user who works on a file system: fills a folder, changes it, and sees what is in it.

(Runs in the test machine, too, where there is nothing but the standard library.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import random
import stat
import struct
from pathlib import Path

_FICLONE = 0x40049409
_SETFLAGS, _NOATIME = 0x40086602, 0x80
#: Names that users may give: bytes that are not UTF-8, line breaks, what commands a terminal, the
#: longest name, what a shell or a listing makes something else of.
HOSTILE = (
    b"not UTF-8 \xff\xfe", b"line\nbreak", b"escape \x1b[31mred\x1b[0m", b"tab\tand\rreturn",
    b"C1 \xc2\x9b31m", b"back\\slash", b"-dash", b" ", b"n" * 255, b"latin \xe9",
)  # fmt: skip
#: A path of some 2,000 bytes.
DEEP = b"/".join([b"d" * 200] * 10)
#: An ACL that lets one more user read (see acl(5); version 2, five entries).
_ACL = struct.pack(
    "<I" + "HHI" * 5,
    2,
    1,
    6,
    0xFFFFFFFF,
    2,
    4,
    1234,
    4,
    4,
    0xFFFFFFFF,
    16,
    4,
    0xFFFFFFFF,
    32,
    0,
    0xFFFFFFFF,
)
#: The file of programs that write numbers, one a line.
WRITTEN = "written numbers"
_PIECE = 1 << 16
#: Enough to be sent in several pieces; every comparison of two volumes reads it several times.
_BIG_BLOCKS = 256
#: Nobody attacks: the quickest where the processor helps, and where it is emulated.
_HASH = hashlib.sha256 if " sha_ni " in Path("/proc/cpuinfo").read_text() else hashlib.md5
_ZEROS = bytes(_PIECE)


def fill(volume: Path, seed: int = 0, *, files: int = 30) -> None:
    """Something of all that a file system can hold."""
    chance = random.Random(seed)
    for number in range(files):
        folder = volume / f"dir{number % 5}" / "below"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file{number}").write_bytes(chance.randbytes(chance.choice([10, 3000, 90_000])))
    big = volume / "big"
    big.write_bytes(chance.randbytes(_BIG_BLOCKS << 12))
    reflink(big, volume / "reflink")
    os.link(big, volume / "hard link")
    os.symlink("big", volume / "symbolic")
    (volume / "ümläut 日本 \U0001f980").write_text("unicode")
    with (volume / "sparse").open("wb") as file:
        file.seek(50 << 20)
        file.write(b"end")
    with (volume / "preallocated").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        file.write(b"x" * 5000)
    os.setxattr(big, "user.colour", b"blue\0\xff")
    for name in HOSTILE:
        (volume / os.fsdecode(name)).write_bytes(name)
    deep = volume / os.fsdecode(DEEP)
    deep.mkdir(parents=True)
    (deep / "file").write_text("deep")
    with contextlib.suppress(OSError):  # not every file system has them
        os.setxattr(volume / "ümläut 日本 \U0001f980", "system.posix_acl_access", _ACL)
    with contextlib.suppress(OSError), (volume / "-dash").open("rb") as file:
        fcntl.ioctl(file, _SETFLAGS, struct.pack("l", _NOATIME))
    os.mkfifo(volume / "pipe")
    os.mknod(volume / "device", 0o640 | stat.S_IFCHR, os.makedev(1, 3))
    os.chown(volume / "dir1", 1234, 5678)
    (volume / "dir2").chmod(0o2750)


def change(volume: Path, seed: int) -> None:
    """A user's work: writes, overwrites, renames, deletes, links, attributes."""
    chance = random.Random(seed * 7919 + 1)
    for number in range(8):
        # (Some of so many changes overwrite: the volume of a long test stays small.)
        target = volume / f"dir{chance.randrange(5)}" / "below" / f"new{seed % 4}.{number}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(chance.randbytes(chance.randrange(20_000)))
    with (volume / "big").open("r+b") as file:
        for _ in range(4):
            file.seek(chance.randrange(_BIG_BLOCKS - 3) << 12)
            file.write(chance.randbytes(9000))
    with (volume / "sparse").open("r+b") as file:
        file.seek(chance.randrange(50 << 20))
        file.write(chance.randbytes(100))
    here = volume.stat().st_dev  # (not in what is nested inside)
    every = [path for path in volume.rglob("*") if path.is_file() and path.stat().st_dev == here]
    present = sorted(p for p in every if "below" in p.parts)
    for path in chance.sample(present, min(3, len(present))):
        path.unlink()
    present = sorted(p for p in every if p.name.startswith("file") and p.exists())
    if present:
        moved = chance.choice(present)
        moved.rename(volume / f"moved{seed}.{moved.name}")
    for name in HOSTILE[:3]:
        with (volume / os.fsdecode(name)).open("ab") as file:
            file.write(b"more")
    (volume / "reflink").unlink(missing_ok=True)
    reflink(volume / "big", volume / "reflink")
    (volume / "reflink").chmod(0o600 + seed % 8)
    os.setxattr(volume / "big", "user.seed", str(seed).encode())
    folder = volume / f"folder{seed}"
    folder.mkdir(exist_ok=True)
    os.utime(folder, ns=(seed, seed * 1_000_000_007))


def overwrite(volume: Path, seed: int) -> None:
    """Other bytes in the place of some, with the time of the last change put back."""
    path = volume / "big"
    before = path.stat()
    with path.open("r+b", buffering=0) as file:
        old = file.read(4096)
        file.seek(0)
        file.write(bytes(byte ^ (1 + seed % 255) for byte in old))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def written(volume: Path) -> set[int]:
    """The numbers in that file; a line that was cut short is none."""
    path = volume / WRITTEN
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return {int(line) for line in lines}


def reflink(old: Path, new: Path) -> None:
    with old.open("rb") as source, new.open("wb") as target:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())


def digest(volume: Path) -> str:
    """All that a user sees: names, data, kinds, owners, modes, times of change, attributes, and
    which names are one file. Holes are not read: they are zeros.
    """
    whole = hashlib.sha256()
    links: dict[tuple[int, int], str] = {}
    root = os.fspath(volume)
    if os.path.islink(root):
        root = os.path.realpath(root)
    for folder, names, files in os.walk(root):
        names.sort()
        for name in ["", *sorted(names + files)]:
            path = os.path.join(folder, name) if name else folder
            described = _described(path, path[len(root) + 1 :] or ".", links)
            whole.update(repr(described).encode())
    return whole.hexdigest()


def _data(path: str) -> str:
    """A digest of a file's data. Zeros are left out piece by piece, which is quicker than to digest
    them, and the same whether they are written or a hole; the others count with their place.
    """
    whole, at = _HASH(usedforsecurity=False), 0
    file = os.open(path, os.O_RDONLY)
    try:
        until = os.fstat(file).st_size
        while at < until:
            # (Most files are of one piece.)
            start, end = _next_data(file, at, until) if until > _PIECE else (0, until)
            at = start // _PIECE * _PIECE
            while at < end and (piece := os.pread(file, _PIECE, at)):
                if piece != _ZEROS[: len(piece)]:
                    whole.update(b"%d " % at)
                    whole.update(piece)
                at += len(piece)
            at = max(at, end)
    finally:
        os.close(file)
    return whole.hexdigest()


def _next_data(descriptor: int, at: int, size: int) -> tuple[int, int]:
    """Where data begin and end from there on; both the size: there are none."""
    try:
        start = os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size, size
    return start, os.lseek(descriptor, start, os.SEEK_HOLE)


def _described(path: str, relative: str, links: dict[tuple[int, int], str]) -> tuple[object, ...]:
    facts = os.lstat(path)
    content: object = None
    same = (
        links.setdefault((facts.st_dev, facts.st_ino), relative)
        if not stat.S_ISDIR(facts.st_mode)
        else ""
    )
    if stat.S_ISREG(facts.st_mode) and same == relative:  # (of several names of one file the first)
        content = _data(path)
    elif stat.S_ISLNK(facts.st_mode):
        content = os.readlink(path)
    attributes = [
        (name, os.getxattr(path, name, follow_symlinks=False))
        for name in sorted(os.listxattr(path, follow_symlinks=False))
    ]
    size = facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    owner = (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_rdev)
    return relative, content, attributes, size, same, owner, facts.st_mtime_ns
