"""What is in a directory: nothing, a block volume, or other data."""

from __future__ import annotations

import os
from pathlib import Path

from mirrord.drivers.block import rootrecord
from mirrord.drivers.refusals import permission_missing

#: What an interrupted preparation may leave in a directory that can still be used.
_LEFTOVERS = frozenset(
    {f".{rootrecord.NAME}.new", f".{rootrecord.COPY}.new", rootrecord.RESERVE, "lock", "writer"}
)
_OURS = frozenset({"data", "staging", "writer", "copy"})


def foreign_content(path: Path) -> str | None:
    """Why `path` cannot become a new volume, as text; None: it is absent or empty."""
    try:
        names = sorted(set(os.listdir(path)) - _LEFTOVERS)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return "a file"
    except PermissionError as error:
        raise permission_missing(str(path), f"'{path}' cannot be read") from error
    if not names:
        return None
    if rootrecord.NAME in names and is_volume(path):
        return "a block volume"
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def is_volume(path: Path) -> bool:
    """Whether a block volume is there, even damaged; a mirror's also without root record."""
    try:
        if (path / rootrecord.COPY).is_file():
            return True
        with (path / rootrecord.NAME).open("rb") as file:
            if file.read(len(rootrecord.MAGIC)) == rootrecord.MAGIC.encode():
                return True
        return not _OURS.isdisjoint(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except PermissionError as error:
        raise permission_missing(str(path), f"'{path}' cannot be read") from error


def nearest_directory(path: Path) -> Path:
    """The directory itself, or its nearest parent that exists."""
    while not path.is_dir():
        path = path.parent
    return path


def mount_point(path: Path) -> Path:
    """The mount point below which a path is, or would be."""
    path = nearest_directory(path).resolve()
    while not path.is_mount():
        path = path.parent
    return path
