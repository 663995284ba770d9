"""File operations that change stored state, each with a label (see `mirrord.system.steps`).

The first argument of each is the label of the step, such as `"BLOCK:COMMIT:RENAME"`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mirrord.core.errors import UsageError
from mirrord.system import clock, steps
from mirrord.system.libc import checked, lib

#: Times of files are coarser than that on no file system in use.
_SETTLED_NS = 2 * 10**9
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@contextmanager
def opened(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o777) -> Iterator[int]:
    """A descriptor of a file or directory, which is closed again."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """An error of a write or a sync names no file: name it."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def names_in(folder: str | Path) -> list[str]:
    """The names in a folder, sorted; none when it does not exist (any more)."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def paths_in(folder: Path) -> list[Path]:
    """The same as paths."""
    return [folder / name for name in names_in(folder)]


def identity(path: str | Path) -> tuple[int, int] | None:
    """What another file at `path` has not. None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def stamp(path: str | Path) -> tuple[int, ...] | None:
    """What differs once the file at `path` was written or replaced. None: there is none, or it was
    changed just now, so that another change could have the same time: read it again.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    if clock.now_ns() - found.st_ctime_ns < _SETTLED_NS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def sync_directory(path: str | Path) -> None:
    """Make the entries of a directory durable."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor, _naming(path):
        os.fsync(descriptor)


def sync_filesystem(op: str, path: str | Path, held: int = -1) -> None:
    """Make everything written to the file system of `path` durable (syncfs).

    held: a descriptor of it. All data that could not be written since it was opened is an error;
    without it, an error that another program was told of is not reported again.
    """
    steps.reached(op)
    with opened(path, os.O_RDONLY) as descriptor:
        checked(lib.syncfs(held if held >= 0 else descriptor), str(path))


def sync_device(op: str, path: str | Path) -> None:
    """Make everything written to a block device through the page cache durable."""
    steps.reached(op)
    with opened(path, os.O_RDONLY) as descriptor, _naming(path):
        os.fsync(descriptor)


def beside(path: Path) -> Path:
    """What `write_atomic` writes before it takes the place of `path`; a crash may leave it."""
    return path.with_name(f".{path.name}.new")


def check_target(path: Path, hint: str) -> None:
    """`UsageError` when there is a device, a pipe or a socket at `path`: what is written beside it
    would take its place.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UsageError(f"'{path}' is not a regular file, and would be replaced by one", hint=hint)


def interrupted(folder: Path) -> list[str]:
    """The names of files in a folder of which a write was begun and not completed."""
    return sorted(one.name[1:-4] for one in folder.glob(".?*.new"))


def write_atomic(
    op: str,
    path: str | Path,
    data: bytes,
    *,
    mode: int = 0o644,
    like: Path | None = None,
    durable: bool = True,
) -> None:
    """Replace the file at `path` by `data` in one durable step; a crash leaves the old or new file.

    like: a file whose permissions and owner it gets. durable: False: does not wait for the disk;
    after a power failure the file may also be empty.
    """
    path = Path(path)
    new = beside(path)
    steps.reached(f"{op}:WRITE")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with opened(new, flags, mode) as descriptor:
        if like is not None:
            model = like.stat()
            with suppress(PermissionError):  # only root can give it to another user
                os.fchown(descriptor, model.st_uid, model.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(model.st_mode))
        try:
            with _naming(path):
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                if durable:
                    os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise
    if durable:
        rename(f"{op}:RENAME", new, path)
    else:
        steps.reached(f"{op}:RENAME")
        new.rename(path)


def rewrite(op: str, path: str | Path, data: bytes) -> None:
    """Replace the content of a user's file in one durable step: a symbolic link to it, its
    permissions and its owner stay.
    """
    file = Path(path).resolve(strict=True)
    write_atomic(op, file, data, like=file)


def rename(op: str, old: str | Path, new: str | Path, *, leaving: bool = False) -> None:
    """Rename, replacing `new` if it exists; durable on return.

    leaving: the old folder is removed next, so it needs no sync (even after a power failure an
    entry is never in both folders).
    """
    steps.reached(op)
    os.rename(old, new)
    sync_directory(Path(new).parent)
    if not leaving and Path(old).parent != Path(new).parent:
        sync_directory(Path(old).parent)


def exchange(op: str, one: str | Path, other: str | Path) -> None:
    """Swap two directory entries in one step (renameat2 RENAME_EXCHANGE); durable on return."""
    steps.reached(op)
    done = lib.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    )
    checked(done, str(one), None, str(other))
    for directory in {Path(one).parent, Path(other).parent}:
        sync_directory(directory)


def switch_link(op: str, target: str, link: str | Path) -> None:
    """Make the symbolic link `link` point to `target`, in one durable step."""
    new = beside(Path(link))
    new.unlink(missing_ok=True)
    steps.reached(f"{op}:LINK")
    os.symlink(target, new)
    rename(f"{op}:RENAME", new, link)


def make_sparse(op: str, path: str | Path, size: int) -> None:
    """Create a file of that size without data, which must not exist; durable on return."""
    steps.reached(op)
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600) as descriptor:
        try:
            with _naming(path):
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            raise
    sync_directory(Path(path).parent)


def make_directory(op: str, path: str | Path, *, mode: int = 0o755) -> None:
    """Create a directory, and its parents, if it does not exist; durable on return."""
    path = Path(path)
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_directory(op, path.parent, mode=mode)
    steps.reached(op)
    path.mkdir(mode=mode, exist_ok=True)
    path.chmod(mode)
    sync_directory(path.parent)


def remove_file(op: str, path: str | Path) -> None:
    """Remove a file or link, if it exists; durable on return."""
    steps.reached(op)
    path = Path(path)
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        sync_directory(path.parent)


def remove_directory(op: str, path: str | Path) -> None:
    """Remove an empty directory, if it exists."""
    steps.reached(op)
    try:
        Path(path).rmdir()
    except FileNotFoundError:
        return
    sync_directory(Path(path).parent)


def remove_folder(op: str, path: Path) -> None:
    """Remove a directory with the files in it, if it exists."""
    for one in paths_in(path):
        remove_file(op, one)
    remove_directory(op, path)
