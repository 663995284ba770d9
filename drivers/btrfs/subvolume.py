"""Subvolumes: what the kernel reports about them, and the operations on them.

The identity of a snapshot is `<uuid>:<transaction>`: for a received snapshot the pair that it was
received with, else its own uuid and the transaction of its last change. Copies of one snapshot
therefore have the same identity, and a snapshot that was made writable and changed has another.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import Refused, Unsupported
from mirrord.core.text import escaped
from mirrord.drivers.btrfs import ioctl
from mirrord.system import openers, steps
from mirrord.system.files import opened

try:
    import btrfsutil

    _IMPORT_ERROR = ""
except ImportError as _error:  # the module is optional: other drivers work without it
    _IMPORT_ERROR = str(_error)

_READ_ONLY = 1
#: How many snapshots are taken at the same time.
_AT_ONCE = 16
_ROOT_INODE = 256
_NO_UUID = bytes(16)


class Info(NamedTuple):
    """The root item of a subvolume. uuid, parent_uuid, received_uuid: hex, "" when not set.

    otransid: transaction in which it was created; ctransid: of its last change; stransid: the
    ctransid that the sender announced, 0 when it was not received. otime_ns: creation time, in full
    seconds (`made_at_ns`).
    """

    id: int
    uuid: str
    parent_uuid: str
    received_uuid: str
    read_only: bool
    ctransid: int
    otransid: int
    stransid: int
    otime_ns: int

    @property
    def guid(self) -> str:
        """The identity of its content, as long as it is read-only."""
        if self.received_uuid:
            return f"{self.received_uuid}:{self.stransid}"
        return f"{self.uuid}:{self.ctransid}"

    @property
    def newest_generation(self) -> int:
        """The transaction of its newest extent, at most."""
        return max(self.ctransid, self.otransid)


def require_support() -> None:
    """Raise `Unsupported`, with a hint, when this host does not support btrfs."""
    if _IMPORT_ERROR:
        raise Unsupported(
            "btrfs volumes need the Python module 'btrfsutil'",
            why=_IMPORT_ERROR,
            hint="Install it with: pip install 'mirrord[btrfs]' (Debian also needs the packages "
            "libbtrfsutil-dev and btrfs-progs).",
        )
    _require_kernel()


@functools.cache
def _require_kernel() -> None:
    """`Unsupported` when the kernel lacks btrfs. Only success is cached: a module may be loaded."""
    with Path("/proc/filesystems").open(encoding="utf-8") as file:
        if any(line.endswith("\tbtrfs\n") for line in file):
            return
    raise Unsupported(
        "btrfs is not available in this kernel", hint="Load the module as root: modprobe btrfs"
    )


def is_subvolume(path: str | Path) -> bool:
    """Whether `path` itself (no link is followed) is the root of a btrfs subvolume."""
    try:
        found = os.lstat(path)
        return stat.S_ISDIR(found.st_mode) and found.st_ino == _ROOT_INODE and ioctl.is_btrfs(path)
    except (FileNotFoundError, NotADirectoryError):
        return False


def info(path: str | Path) -> Info:
    """The facts of the subvolume at `path`; OSError when there is none."""
    return _info(btrfsutil.subvolume_info(os.fspath(path)))


def path_inside(path: str | Path) -> str:
    """The path of the subvolume at `path` from the top level of its file system; needs root."""
    return str(btrfsutil.subvolume_path(os.fspath(path)))


def made_at_ns(path: str | Path, facts: Info) -> int:
    """When the subvolume at `path` was created, as exactly as the kernel tells."""
    return ioctl.made_at_ns(path) or facts.otime_ns


def last_change(path: str | Path, facts: Info) -> int:
    """The transaction of the last change of the subvolume at `path`, as it is on disk.

    That is its ctransid, except for what the kernel replays from the log tree after a power failure
    (everything written with fsync since the last commit): the mount writes it to the subvolume's
    tree without changing the ctransid.
    """
    newest = ioctl.newest_inode(path, facts.id, newer_than=facts.ctransid)
    return max(facts.ctransid, newest)


def _info(found: btrfsutil.SubvolumeInfo) -> Info:
    return Info(
        id=found.id,
        uuid=_hex(found.uuid),
        parent_uuid=_hex(found.parent_uuid),
        received_uuid=_hex(found.received_uuid),
        read_only=bool(found.flags & _READ_ONLY),
        ctransid=found.ctransid,
        otransid=found.otransid,
        stransid=found.stransid,
        otime_ns=int(found.otime) * 1_000_000_000,
    )


def _hex(uuid: bytes) -> str:
    return "" if uuid == _NO_UUID else uuid.hex()


def create(op: str, path: str | Path) -> None:
    """Create an empty subvolume."""
    steps.reached(op)
    btrfsutil.create_subvolume(os.fspath(path))


def snapshot(op: str, source: str | Path, path: str | Path, *, read_only: bool) -> None:
    """Make `path` a snapshot of `source`; durable on return (the kernel commits)."""
    snapshots(op, {Path(path): Path(source)}, read_only=read_only)


def snapshots(op: str, wanted: Mapping[Path, Path], *, read_only: bool) -> None:
    """Make each path a snapshot of its source, as close together in time as the kernel can:
    snapshots requested before it commits belong to one commit, and so to one point in time. An
    error names the source that it is about. A writable one is never immutable, as its source may
    have been: it could not be renamed.
    """

    def take(path: Path, source: Path) -> None:
        try:
            ioctl.snapshot(source, path, read_only=read_only)
            if not read_only:
                ioctl.remove_protection(path)
        except OSError as error:
            if error.errno == errno.ETXTBSY:
                raise _swap_file_active(source) from error
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise  # one that is gone, which some callers expect
            raise ioctl.as_mirrord_error(error, f"btrfs:{source}") from error

    if len(wanted) < 2:  # a single one needs no thread
        for path, source in wanted.items():
            steps.reached(op)
            take(path, source)
        return
    from concurrent.futures import ThreadPoolExecutor  # slow to import and rarely needed

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="snapshot") as pool:
        begun = []
        for path, source in wanted.items():
            steps.reached(op)
            begun.append(pool.submit(take, path, source))
    for one in begun:
        one.result()


def _swap_file_active(volume: Path) -> Refused:
    """The error for ETXTBSY when a snapshot of `volume` is taken."""
    active = openers.swap_files(os.stat(volume).st_dev)
    named = " ".join(map(escaped, active)) or "a swap file"
    return Refused(
        "no snapshot can be taken while a swap file in the volume is active",
        where=f"btrfs:{volume}",
        why=f"btrfs cannot snapshot a subvolume with an active swap file: {named}",
        hint=f"Run 'swapoff {named}', and create the swap file in a separate subvolume that is "
        "not mirrored. Then run the same command again.",
    )


def delete(op: str, path: str | Path) -> None:
    """Delete a subvolume, read-only or not; durable with the next sync of its directory."""
    steps.reached(op)
    try:
        btrfsutil.delete_subvolume(os.fspath(path))
    except OSError as error:
        if error.errno != errno.EPERM or not ioctl.is_protected(path):
            raise
        # The snapshot of a volume that was immutable is immutable, too.
        btrfsutil.set_subvolume_read_only(os.fspath(path), False)
        ioctl.remove_protection(path)
        btrfsutil.delete_subvolume(os.fspath(path))


def delete_all(op: str, path: str | Path, nested: Collection[str] | None = None) -> None:
    """Delete a subvolume with those nested in it, the inner ones first. nested: their paths; None:
    all that there are. (The kernel does not delete one that contains others.)
    """
    inner = below(path) if nested is None else nested
    every = sorted([*inner, ""], key=lambda one: one.split("/") if one else [])
    if len(every) > 1:
        for one in every:  # nothing can be removed from what is read-only
            if info(Path(path) / one).read_only:
                set_read_only(op, Path(path) / one, False)
    for one in reversed(every):
        delete(op, Path(path) / one)


def reclaim(path: str | Path) -> None:
    """Let the kernel free the space of deleted subvolumes now, in the background. Otherwise it
    starts up to 30 s later, and a full file system stays full until then.
    """
    with contextlib.suppress(OSError):  # it would happen anyway
        ioctl.sync(path)


def begin_commit(path: str | Path, beginning: threading.Lock) -> None:
    """Let the kernel commit the file system's trees, and then clean up deleted subvolumes, in the
    background; data that users wrote stays in memory. By default it cleans up every 30 s, all at
    once: with a mirror that runs every second, that blocks the file system for seconds.

    The kernel may delay the start, so this does not wait. `beginning` is held until the commit has
    started; calls in the meantime return at once.
    """
    if not beginning.acquire(blocking=False):
        return

    def begin() -> None:
        try:
            with contextlib.suppress(OSError):  # it would happen anyway
                ioctl.start_sync(path)
        finally:
            beginning.release()

    threading.Thread(target=begin, name="btrfs-commit", daemon=True).start()


def set_read_only(op: str, path: str | Path, read_only: bool = True) -> None:
    """Make a subvolume read-only, or writable again; durable on return."""
    steps.reached(op)
    btrfsutil.set_subvolume_read_only(os.fspath(path), read_only)


def below(path: str | Path) -> Iterator[str]:
    """The relative paths of all subvolumes below the subvolume at `path`; needs root."""
    # A descriptor: an iterator created from a path never closes it (btrfsutil 6.12).
    with (
        opened(path, os.O_DIRECTORY) as folder,
        btrfsutil.SubvolumeIterator(folder) as found,
    ):
        for name, _id in found:
            yield os.fsdecode(name)


def below_with_info(path: str | Path) -> Iterator[tuple[str, Info]]:
    """(relative path, facts) of all subvolumes below the subvolume at `path`; needs root."""
    with (
        opened(path, os.O_DIRECTORY) as folder,  # see `below`
        btrfsutil.SubvolumeIterator(folder, info=True) as found,
    ):
        for name, facts in found:
            yield os.fsdecode(name), _info(facts)
