"""Random histories of a file tree, and all of a tree that a copy must have as well."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import stat
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FICLONERANGE = 0x4020940D
_NAMES = [
    b"a",
    b"b c",
    b"\xff\xfe",
    b"new\nline",
    "grün".encode(),
    b"-rf",
    b"x" * 255,
    b"...",
    b"o257-7-0",
]
_GETFLAGS, _SETFLAGS = 0x80086601, 0x40086602
_SYNC, _NODUMP, _NOATIME = 0x8, 0x40, 0x80
_NO_ENTRY = 0xFFFFFFFF


def acl(chance: random.Random) -> bytes:
    """A valid access ACL of one more user."""
    entries = [(1, 6, _NO_ENTRY), (2, chance.randrange(8), chance.randrange(1, 9999))]
    entries += [(4, 4, _NO_ENTRY), (16, 7, _NO_ENTRY), (32, chance.randrange(8), _NO_ENTRY)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries)


def capability(chance: random.Random) -> bytes:
    """File capabilities, revision 2."""
    return struct.pack("<5I", 0x02000001, chance.randrange(1, 1 << 20), 0, 0, 0)


class History:
    """Changes the tree `root` step by step; every step leaves a valid tree."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = os.fsencode(root)
        self.chance = random.Random(seed)
        self._steps: list[Callable[[], None]] = [
            self._create,
            self._create,
            self._create,
            self._write,
            self._write,
            self._overwrite,
            self._truncate,
            self._punch,
            self._clone,
            self._clone,
            self._clone_within,
            self._rename,
            self._rename,
            self._rename_over,
            self._exchange_folders,
            self._link,
            self._unlink,
            self._unlink,
            self._remove_tree,
            self._folder,
            self._folder,
            self._symlink,
            self._special,
            self._chmod,
            self._chown,
            self._xattr,
            self._xattr,
            self._remove_xattr,
            self._times,
            self._deep,
            self._append,
            self._set_id,
            self._replace,
            self._attributes,
        ]

    def run(self, steps: int) -> None:
        """So many steps; one that is not possible in this tree does nothing."""
        for _ in range(steps):
            try:
                self.chance.choice(self._steps)()
            except (OSError, IndexError, ValueError):  # nothing there to do it with
                pass

    def _all(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Folders (with the root), regular files, others."""
        folders = [self.root]
        files: list[bytes] = []
        others: list[bytes] = []
        for at, names, leaves in os.walk(self.root):
            folders += [
                os.path.join(at, name)
                for name in names
                if not os.path.islink(os.path.join(at, name))
            ]
            others += [
                os.path.join(at, name) for name in names if os.path.islink(os.path.join(at, name))
            ]
            for name in leaves:
                path = os.path.join(at, name)
                regular = stat.S_ISREG(os.lstat(path).st_mode)
                (files if regular else others).append(path)
        return folders, files, others

    def _folder_path(self) -> bytes:
        return self.chance.choice(self._all()[0])

    def _file(self) -> bytes:
        return self.chance.choice(self._all()[1])

    def _any(self) -> bytes:
        folders, files, others = self._all()
        return self.chance.choice([*folders[1:], *files, *others])

    def _new(self) -> bytes:
        name = self.chance.choice(_NAMES)
        if self.chance.random() < 0.8:
            name = b"n%d" % self.chance.randrange(10_000)
        path = os.path.join(self._folder_path(), name)
        if os.path.lexists(path) or len(path) - len(self.root) > 3500:
            raise FileExistsError
        return path

    def _data(self) -> bytes:
        size = self.chance.choice([0, 1, 100, 2047, 4096, 5000, 70_000, 300_000])
        if self.chance.random() < 0.3:
            return bytes(size) if self.chance.random() < 0.3 else b"text " * (size // 5)
        return self.chance.randbytes(size)

    def _create(self) -> None:
        with open(self._new(), "wb") as file:  # noqa: PTH123 - bytes
            file.write(self._data())
            if self.chance.random() < 0.2:
                file.seek(self.chance.randrange(1 << 20), os.SEEK_CUR)
                file.write(self._data())

    def _at(self, path: bytes, at: int, data: bytes) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123
            file.seek(at)
            file.write(data)

    def _write(self) -> None:
        self._at(self._file(), self.chance.randrange(600_000), self._data())

    def _overwrite(self) -> None:
        path = self._file()
        self._at(path, self.chance.randrange(os.path.getsize(path) + 1), self._data()[:5000])

    def _append(self) -> None:
        path = self._file()
        self._at(path, os.path.getsize(path), self._data())

    def _replace(self) -> None:
        """As editors do: a new file is renamed over the old one."""
        path, new = self._file(), self._new()
        with open(new, "wb") as file:  # noqa: PTH123
            file.write(self._data())
        os.rename(new, path)

    def _truncate(self) -> None:
        os.truncate(self._file(), self.chance.choice([0, 1, 4096, 10_000, 500_000]))

    def _punch(self) -> None:
        path = self._file()
        size = os.path.getsize(path)
        at = self.chance.randrange(size + 1)
        length = self.chance.choice([4096, 100, 65_536])
        subprocess.run(
            ["fallocate", "-p", "-o", str(at), "-l", str(length), path],
            check=False,
            capture_output=True,
        )

    def _clone_range(self, source: bytes, target: bytes, at: int, to: int, length: int) -> None:
        with open(source, "rb") as one, open(target, "r+b") as other:  # noqa: PTH123
            argument = struct.pack("qQQQ", one.fileno(), at, length, to)
            fcntl.ioctl(other.fileno(), _FICLONERANGE, argument)

    def _clone(self) -> None:
        source = self._file()
        if self.chance.random() < 0.5:
            target = self._new()
            open(target, "wb").close()  # noqa: PTH123
            self._clone_range(source, target, 0, 0, 0)
        else:
            size = os.path.getsize(source) // 4096 * 4096
            length = self.chance.randrange(1, size // 4096 + 1) * 4096
            at = self.chance.randrange((size - length) // 4096 + 1) * 4096
            to = self.chance.randrange(30) * 4096
            self._clone_range(source, self._file(), at, to, length)

    def _clone_within(self) -> None:
        path = self._file()
        blocks = os.path.getsize(path) // 4096
        at = self.chance.randrange(blocks) * 4096
        self._clone_range(path, path, at, (blocks + self.chance.randrange(9)) * 4096, 4096)

    def _rename(self) -> None:
        os.rename(self._any(), self._new())

    def _rename_over(self) -> None:
        os.rename(self._any(), self._any())

    def _exchange_folders(self) -> None:
        """Two folders (or whatever it is) get each other's names."""
        one, other = self._any(), self._any()
        new = self._new()
        os.rename(one, new)
        os.rename(other, one)
        os.rename(new, other)

    def _link(self) -> None:
        os.link(self._file(), self._new(), follow_symlinks=False)

    def _unlink(self) -> None:
        _folders, files, others = self._all()
        os.unlink(self.chance.choice([*files, *others]))

    def _remove_tree(self) -> None:
        if self.chance.random() < 0.3:
            folders = self._all()[0]
            subprocess.run(["rm", "-rf", self.chance.choice(folders[1:])], check=True)

    def _folder(self) -> None:
        os.mkdir(self._new())

    def _deep(self) -> None:
        if self.chance.random() < 0.1:
            path = self._new()
            for _ in range(self.chance.randrange(12)):
                os.mkdir(path)
                path = os.path.join(path, b"d" * self.chance.choice([1, 200]))

    def _symlink(self) -> None:
        targets = [b"/etc/passwd", b"..", b"x" * 4000, os.path.basename(self._any()), b"\xff"]
        os.symlink(self.chance.choice(targets), self._new())

    def _special(self) -> None:
        path, kind = self._new(), self.chance.randrange(4)
        if kind == 0:
            os.mkfifo(path)
        elif kind == 1:
            os.mknod(path, stat.S_IFSOCK | 0o600)
        else:
            device = os.makedev(self.chance.randrange(1, 4000), self.chance.randrange(1 << 19))
            os.mknod(path, (stat.S_IFCHR if kind == 2 else stat.S_IFBLK) | 0o600, device)

    def _chmod(self) -> None:
        path = self._any()
        if not os.path.islink(path):
            os.chmod(path, self.chance.choice([0, 0o400, 0o644, 0o755, 0o1777, 0o640]))

    def _set_id(self) -> None:
        folders, files, _others = self._all()
        path = self.chance.choice([*folders, *files])
        os.chmod(path, self.chance.choice([0o4755, 0o2755, 0o6711, 0o2770]))

    def _chown(self) -> None:
        path = self._any()
        mode = os.lstat(path).st_mode
        owner = self.chance.choice([(0, 0), (1000, 1000), (0, 7), (1 << 31, 65_534)])
        os.chown(path, *owner, follow_symlinks=False)
        if not stat.S_ISLNK(mode) and self.chance.random() < 0.7:
            os.chmod(path, stat.S_IMODE(mode))

    def _xattr(self) -> None:
        folders, files, others = self._all()
        kind = self.chance.randrange(6)
        value = self.chance.randbytes(self.chance.choice([0, 1, 50, 3000]))
        if kind < 2:
            path = self.chance.choice([*folders, *files])
            os.setxattr(path, b"user.%d" % self.chance.randrange(5), value)
        elif kind == 2:
            path = self.chance.choice([*folders, *files, *others])
            os.setxattr(path, b"trusted.x", value, follow_symlinks=False)
        elif kind == 3:
            os.setxattr(self._file(), b"security.capability", capability(self.chance))
        elif kind == 4:
            path = self.chance.choice([*folders, *files])
            os.setxattr(path, b"system.posix_acl_access", acl(self.chance))
        else:
            os.setxattr(folders[-1], b"system.posix_acl_default", acl(self.chance))

    def _remove_xattr(self) -> None:
        path = self._any()
        names = os.listxattr(path, follow_symlinks=False)
        os.removexattr(path, self.chance.choice(names), follow_symlinks=False)

    def _attributes(self) -> None:
        folders, files, _others = self._all()
        path = self.chance.choice([*folders, *files])
        flags = self.chance.choice([0, _NODUMP, _NOATIME, _SYNC | _NOATIME])
        _set_flags(path, _flags(path) & ~(_NODUMP | _NOATIME | _SYNC) | flags)

    def _times(self) -> None:
        times = (self.chance.randrange(1 << 60), self.chance.randrange(1 << 60))
        os.utime(self._any(), ns=times, follow_symlinks=False)


def _flags(path: bytes) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return int(struct.unpack("l", fcntl.ioctl(descriptor, _GETFLAGS, bytes(8)))[0])
    finally:
        os.close(descriptor)


def _set_flags(path: bytes, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _SETFLAGS, struct.pack("l", flags))
    finally:
        os.close(descriptor)


def state(root: Path) -> dict[bytes, dict[str, Any]]:
    """Content and metadata of everything in a tree, by path; hard links by their first path.

    Without the flags of chattr(1): the kernel sends them only of files that existed in the base.
    """
    base = os.fsencode(root)
    found: dict[bytes, dict[str, Any]] = {}
    first: dict[int, bytes] = {}
    paths = [base]
    for at, names, leaves in os.walk(base):
        paths += [os.path.join(at, name) for name in (*names, *leaves)]
    for path in sorted(paths):
        facts = os.lstat(path)
        name = os.path.relpath(path, base)
        one: dict[str, Any] = {
            "mode": oct(facts.st_mode),
            "owner": (facts.st_uid, facts.st_gid),
            "mtime": facts.st_mtime_ns,
        }
        one["xattrs"] = {
            key: os.getxattr(path, key, follow_symlinks=False)
            for key in sorted(os.listxattr(path, follow_symlinks=False))
        }
        if stat.S_ISDIR(facts.st_mode):
            found[name] = one
            continue
        one["links"] = (facts.st_nlink, first.setdefault(facts.st_ino, name))
        one["atime"] = facts.st_atime_ns
        if stat.S_ISREG(facts.st_mode):
            one["size"] = facts.st_size
            with open(path, "rb") as file:  # noqa: PTH123
                one["content"] = hashlib.sha256(file.read()).hexdigest()
        elif stat.S_ISLNK(facts.st_mode):
            one["target"] = os.readlink(path)
        else:
            one["device"] = facts.st_rdev
        found[name] = one
    return found


def differences(one: dict[bytes, dict[str, Any]], other: dict[bytes, dict[str, Any]]) -> list[str]:
    """What differs, for people."""
    found = []
    for name in sorted(one.keys() | other.keys()):
        here, there = one.get(name), other.get(name)
        if here is None or there is None:
            found.append(f"{name!r}: {'missing' if there is None else 'not expected'}")
            continue
        for key in sorted(here.keys() | there.keys()):
            if here.get(key) != there.get(key):
                found.append(f"{name!r}: {key} {here.get(key)!r}, here {there.get(key)!r}")
    return found
