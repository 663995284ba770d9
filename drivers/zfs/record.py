"""The record of a transfer that was begun: what a checkpoint in the pool belongs to.

ZFS keeps what was received of a stream that broke off, but takes back the properties that the
`zfs recv` had set. So what is to be known of it lies in a file of this host's. When that is lost,
with the host perhaps, the transfer begins anew: the checkpoint alone is nobody's.
"""

from __future__ import annotations

import os
from pathlib import Path

from mirrord.core.model import ReceiveRequest
from mirrord.drivers.zfs import marks
from mirrord.drivers.zfs.locking import file_name
from mirrord.system import files


def file_of(location: str, use: str = "transfer") -> Path:
    """Where what is to be remembered of a dataset lies; durable, unlike locks."""
    if os.geteuid() == 0:
        folder = Path("/var/lib/mirrord/zfs")
    else:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        folder = Path(state) / "mirrord" / "zfs"
    return folder / f"{file_name(location)}.{use}"


def read(location: str) -> ReceiveRequest | None:
    """The transfer that was begun last and not committed, or None."""
    try:
        return marks.parse_staging(file_of(location).read_text())
    except (OSError, UnicodeDecodeError):
        return None


def write(location: str, request: ReceiveRequest) -> None:
    """Record a transfer before anything of it is received; durable."""
    path = file_of(location)
    files.make_directory("ZFS:RECEIVE:FOLDER", path.parent, mode=0o700)
    files.write_atomic("ZFS:RECEIVE:RECORD", path, marks.staging_text(request).encode(), mode=0o600)


def remove(label: str, location: str) -> None:
    """Forget the transfer: it is committed, or given up."""
    path = file_of(location)
    if path.exists():
        files.remove_file(label, path)
