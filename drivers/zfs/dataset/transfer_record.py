"""The record of a started transfer: it identifies the checkpoint in the pool.

ZFS keeps what was received of an interrupted stream, but reverts the properties that the `zfs recv`
had set. So the facts of the transfer are stored in a file on this host. When that file is lost, for
example with the host, the transfer starts from the beginning: the checkpoint alone is not used.
"""

from __future__ import annotations

import os
from pathlib import Path

from mirrord.core.model import ReceiveRequest
from mirrord.drivers import snapshottrees
from mirrord.drivers.zfs.dataset import marks
from mirrord.drivers.zfs.dataset.locking import file_name
from mirrord.system import files


def file_of(location: str, use: str = "transfer") -> Path:
    """The file for the records of a dataset; durable, unlike locks."""
    if os.geteuid() == 0:
        folder = Path("/var/lib/mirrord/zfs")
    else:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        folder = Path(state) / "mirrord" / "zfs"
    return folder / f"{file_name(location)}.{use}"


def trees(location: str) -> Path:
    """The folder of the digests of its snapshots."""
    return file_of(location, snapshottrees.NAME)


def read(location: str) -> ReceiveRequest | None:
    """The last transfer, if it is not committed, or None."""
    try:
        return marks.parse_staging(file_of(location).read_text())
    except (OSError, UnicodeDecodeError):
        return None


def write(location: str, request: ReceiveRequest) -> None:
    """Record a transfer before anything of it is received; durable."""
    store("ZFS:RECEIVE:RECORD", location, marks.staging_text(request))


def store(label: str, location: str, text: str, use: str = "transfer") -> None:
    """Write a record; durable."""
    path = file_of(location, use)
    files.make_directory("ZFS:RECEIVE:FOLDER", path.parent, mode=0o700)
    files.write_atomic(label, path, text.encode(), mode=0o600)


def remove(label: str, location: str, use: str = "transfer") -> None:
    """Remove the record: the operation is finished, committed or discarded."""
    path = file_of(location, use)
    if path.exists():
        files.remove_file(label, path)
