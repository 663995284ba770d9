"""Starts a program for which the file tree is read-only, except for one folder.

A program that reads the stream of another host as root must not be able to write anywhere else,
whatever the stream contains. Linux provides that per thread, inherited by child processes: a mount
namespace.

The namespace contains only the file systems that the program needs, because a file system cannot be
unmounted completely while the program runs. It needs Linux 5.14. The folder is a separate mount,
which has one drawback: before Linux 5.18 no data can be shared (reflinked) between it and the rest
of its file system, which fails with EXDEV.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable

from mirrord.core.errors import Unsupported
from mirrord.system import mounts
from mirrord.system.command import Process
from mirrord.system.libc import checked, lib

_CLONE_NEWNS = 0x00020000
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE, _OPEN_TREE_CLONE = 428, 1 | os.O_CLOEXEC
_MOVE_MOUNT, _MOVE_MOUNT_F_EMPTY_PATH = 429, 4
_MOUNT_SETATTR = 442
_MS_PRIVATE = 1 << 18
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
#: What programs need in addition, and where programs and libraries are.
_SYSTEM = ("/etc", "/proc", "/sys")
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_RDONLY, _NOSUID, _NODEV, _NOSYMFOLLOW = 0x1, 0x2, 0x4, 0x200000


def start_confined(
    writable: str, mount: str, start: Callable[[], Process], *, program: str
) -> Process:
    """Call `start` where only the folder `writable` can be changed, and return the process that it
    started. No device can be opened, and below `mount` no symbolic link is followed.

    mount: the mount point above `writable`. program: what is started. `Unsupported`: Linux before
    5.14, or a container that does not allow it.
    """
    done: list[Process] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            _confine(writable, mount, program)
            done.append(start())
        except BaseException as error:
            failed.append(error)

    # A separate thread: it cannot leave the namespace again, and then ends.
    thread = threading.Thread(target=work, name="confined")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _confine(writable: str, mount: str, program: str) -> None:
    """Confine this thread."""
    opened = -1
    try:
        checked(lib.unshare(_CLONE_NEWNS))
        _set_attributes(_AT_FDCWD, "/", _AT_RECURSIVE, 0, _MS_PRIVATE)
        _detach_mounts([writable, mount, os.path.realpath(program)])
        opened = checked(_call(_OPEN_TREE, _AT_FDCWD, writable, _OPEN_TREE_CLONE))
        _set_attributes(opened, "", _AT_EMPTY_PATH, _NOSUID | _NODEV | _NOSYMFOLLOW)
        # Devices could be written to even on a read-only file system.
        _set_attributes(_AT_FDCWD, "/", _AT_RECURSIVE, _RDONLY | _NODEV)
        if mount != "/":  # the root has links that every program needs
            _set_attributes(_AT_FDCWD, mount, 0, _NOSYMFOLLOW)
        checked(_call(_MOVE_MOUNT, opened, "", _AT_FDCWD, writable, _MOVE_MOUNT_F_EMPTY_PATH))
    except OSError as error:
        raise Unsupported(
            "the program that applies the stream cannot be confined",
            where=writable,
            why=f"{error.strerror}: that needs Linux 5.14, root, and a mount namespace",
            hint="Use a newer kernel; in a container, allow CAP_SYS_ADMIN.",
        ) from error
    finally:
        if opened >= 0:
            os.close(opened)


def _detach_mounts(needed: list[str]) -> None:
    """Detach each file system from this thread's namespace that is not on the path to a needed one,
    and contains no programs or libraries.
    """
    kept = [*needed, *_SYSTEM]
    points = (mount.path for mount in mounts.here(mounts.OF_THREAD))
    for point in sorted(points, key=len, reverse=True):
        below = point.rstrip("/") + "/"
        is_parent = any(f"{path}/".startswith(below) for path in kept)
        if is_parent or any(below.startswith(f"{folder}/") for folder in _PROGRAMS):
            continue
        if lib.umount2(os.fsencode(point), _MNT_DETACH | _UMOUNT_NOFOLLOW) < 0:
            number = ctypes.get_errno()
            # A mount below another one was detached with it, or is hidden.
            if number not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise OSError(number, os.strerror(number))


def _set_attributes(descriptor: int, path: str, how: int, flags: int, propagation: int = 0) -> None:
    attributes = struct.pack("=4Q", flags, 0, propagation, 0)
    checked(_call(_MOUNT_SETATTR, descriptor, path, how, attributes, len(attributes)))


def _call(number: int, *words: int | str | bytes) -> int:
    passed = [
        ctypes.c_long(word) if isinstance(word, int) else ctypes.c_char_p(os.fsencode(word))
        for word in words
    ]
    return int(lib.syscall(ctypes.c_long(number), *passed))
