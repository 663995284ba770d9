"""The directory that a file system is mounted on, while the file system is not mounted there.

What is created by path in that moment lands in the file system above, where nobody looks for it
afterwards. So the directory is made immutable (`chattr +i`) before it is uncovered. Where the file
system above has no such flag, what landed there is found and named.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mirrord.system import steps

_OPEN_TREE = 428
_OPEN_TREE_CLONE = 1
_AT_FDCWD = -100
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_IMMUTABLE = 0x10
#: On the directory: mirrord made it immutable, not its owner.
_GUARDED = "trusted.mirrord.guarded"
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    """The directory under whatever is mounted at it. Raises `OSError` where it cannot be seen."""
    above, name = os.path.split(folder.rstrip("/"))
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    # A copy of the mount above, without what is mounted in it.
    tree = _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(above), flags)
    if tree < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), above)
    try:
        found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
    finally:
        os.close(tree)
    try:
        yield found
    finally:
        os.close(found)


def names(folder: str) -> list[str]:
    """What is in the directory itself; [] when nothing is, or it cannot be seen."""
    with suppress(OSError), _opened(folder) as found:
        return sorted(os.listdir(found))
    return []


def guard(folder: str) -> None:
    """Let nobody create anything in it, also after a crash or a restart of the host."""
    with suppress(OSError), _opened(folder) as found:
        flags = _flags(found)
        if not flags & _IMMUTABLE:
            steps.reached("ZFS:SWAP:GUARD")
            os.setxattr(found, _GUARDED, b"1")
            _set_flags(found, flags | _IMMUTABLE)


def release(folder: str) -> None:
    """Make it what it was before `guard`. One that its owner made immutable stays so."""
    with suppress(OSError), _opened(folder) as found:
        flags = _flags(found)
        os.getxattr(found, _GUARDED)  # or it is not ours
        _set_flags(found, flags & ~_IMMUTABLE)
        os.removexattr(found, _GUARDED)


def _flags(descriptor: int) -> int:
    flags = array.array("l", [0])
    fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    return flags[0]


def _set_flags(descriptor: int, flags: int) -> None:
    fcntl.ioctl(descriptor, _SET_FLAGS, array.array("l", [flags]))
