"""`fsfreeze`: freezes a mounted file system (FIFREEZE), for example ext4 on a zvol of the mirror.
Unlike the other kinds it also writes the file system's dirty data to disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from mirrord.pausers.contract import Pauser
from mirrord.system import clock, files, mounts

_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878


class FsfreezePauser(Pauser):
    """argument: the mount point."""

    def __init__(self, kind: str, argument: str) -> None:
        super().__init__(kind, argument)
        if not argument.startswith("/"):
            raise ValueError("expected a mount point, such as fsfreeze:/srv/db")
        self._folder = -1

    def lock_path(self) -> Path | None:
        """See `Pauser.lock_path`."""
        return Path(self.argument)

    def mark(self) -> str:
        """See `Pauser.mark`: the device that is mounted there."""
        return f"{clock.boot_id()} {os.stat(self.argument).st_dev}"

    def check(self, written: Sequence[Path]) -> None:
        """See `Pauser.check`."""
        kind = mounts.type_at(self.argument)
        if kind is None:
            raise self.failed(
                "the file system cannot be frozen",
                why="that is not a mount point",
                hint="Name the mount point of the file system that the application writes to.",
            )
        if kind == "btrfs":
            raise self.failed(
                "a btrfs file system cannot be frozen for a snapshot",
                why="taking a btrfs snapshot writes to the file system: it would wait for the thaw",
                hint="Pause the programs that write to it, for example by cgroup:UNIT.",
            )
        if kind == "zfs":
            raise self.failed(
                "a ZFS file system cannot be frozen",
                why="OpenZFS does not support it",
                hint="Pause the programs that write to it, for example by cgroup:UNIT.",
            )
        device = os.stat(self.argument).st_dev
        for path in written:
            if _device_of(path) == device:
                raise self.failed(
                    "the file system cannot be frozen: mirrord writes to it",
                    why=f"{path} is on it",
                    hint="Pause the programs that write to it, for example by cgroup:UNIT.",
                )
        self._open()
        files.sync_filesystem("FSFREEZE:SYNC", self.argument)  # the freeze then has little to write

    def pause(self, timeout_s: float) -> None:
        """See `Pauser.pause`. The kernel sets no limit: the caller does."""
        try:
            fcntl.ioctl(self._folder, _FIFREEZE, 0)
        except OSError as error:
            self.others = error.errno == errno.EBUSY
            why = "it is frozen already" if self.others else error.strerror or str(error)
            raise self.failed("the file system cannot be frozen", why=why) from None

    def is_paused(self) -> bool:
        """See `Pauser.is_paused`: one that is frozen cannot be frozen again. One that could be is
        thawed by `resume`.
        """
        try:
            fcntl.ioctl(self._folder, _FIFREEZE, 0)
        except OSError as error:
            return error.errno == errno.EBUSY
        return False

    def resume(self) -> None:
        """See `Pauser.resume`."""
        if self.others:
            return
        try:
            if self._folder < 0:
                self._open()
            fcntl.ioctl(self._folder, _FITHAW, 0)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise

    def close(self) -> None:
        """See `Pauser.close`."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _open(self) -> None:
        self._folder = os.open(self.argument, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _device_of(path: Path) -> int | None:
    """The device of a path, or of the nearest folder above it; None for the name of a dataset: its
    pool writes the snapshot, to no other file system.
    """
    if not path.is_absolute():
        return None
    for one in (path, *path.parents):
        try:
            return os.stat(one).st_dev
        except OSError:
            continue
    return None
