"""The directory that a file system is mounted on, while the file system is not mounted there.

Files that are created there at that time are in the parent file system, and hidden afterwards. So
the directory is made immutable (`chattr +i`) before the file system is unmounted. Where the parent
file system does not support that flag, such files are found and reported.
"""

from __future__ import annotations

import array
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mirrord.system import steps
from mirrord.system.libc import checked, lib

_OPEN_TREE = 428
_OPEN_TREE_CLONE = 1
_AT_FDCWD = -100
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_IMMUTABLE = 0x10
#: An attribute of the directory: mirrord made it immutable.
_GUARDED = "trusted.mirrord.guarded"


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    """The directory below whatever is mounted on it. Raises `OSError` when it cannot be opened."""
    above, name = os.path.split(folder.rstrip("/"))
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    # A copy of the mount above, without what is mounted in it.
    tree = checked(lib.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(above), flags), above)
    try:
        found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
    finally:
        os.close(tree)
    try:
        yield found
    finally:
        os.close(found)


def names(folder: str) -> list[str]:
    """The names in the directory itself; [] when it is empty or cannot be read."""
    with suppress(OSError), _opened(folder) as found:
        return sorted(os.listdir(found))
    return []


def guard(folder: str) -> None:
    """Prevent that anything is created in it, also after a crash or reboot."""
    with suppress(OSError), _opened(folder) as found:
        flags = _flags(found)
        if not flags & _IMMUTABLE:
            steps.reached("ZFS:SWAP:GUARD")
            os.setxattr(found, _GUARDED, b"1")
            _set_flags(found, flags | _IMMUTABLE)


def release(folder: str) -> None:
    """Undo `guard`. A directory that others made immutable stays immutable."""
    with suppress(OSError), _opened(folder) as found:
        flags = _flags(found)
        os.getxattr(found, _GUARDED)  # (fails if mirrord did not set the flag)
        _set_flags(found, flags & ~_IMMUTABLE)
        os.removexattr(found, _GUARDED)


def _flags(descriptor: int) -> int:
    flags = array.array("l", [0])
    fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    return flags[0]


def _set_flags(descriptor: int, flags: int) -> None:
    fcntl.ioctl(descriptor, _SET_FLAGS, array.array("l", [flags]))
