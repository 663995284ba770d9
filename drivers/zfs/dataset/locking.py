"""The lock files of datasets: in a folder of this host, by the dataset's name."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from mirrord.core.errors import PermissionMissing


def _folder() -> Path:
    if os.geteuid() == 0:
        return Path("/run/mirrord/zfs")
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    if os.path.isdir(own):
        return Path(own) / "mirrord" / "zfs"
    return Path("/tmp") / f"mirrord-{os.geteuid()}"  # noqa: S108 - it is checked to be our own


def lock_file(location: str, use: str) -> Path:
    """The file to lock for a use of a dataset; its folder is created."""
    folder = _folder()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionMissing(
            "the folder of the locks belongs to another user, or others can write to it",
            where=str(folder),
            hint="Remove it, or set XDG_RUNTIME_DIR to a folder that only you can write to.",
        )
    return folder / f"{file_name(location)}.{use}"


def file_name(location: str) -> str:
    """The file name for a dataset: the dataset's own name could be too long."""
    return hashlib.sha256(location.encode()).hexdigest()[:24]
