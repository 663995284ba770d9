"""Relationship records as files: one for each mirror, in a folder of the volume."""

from __future__ import annotations

import os
from pathlib import Path

from mirrord.core import relationship
from mirrord.core.relationship import Relationship
from mirrord.system import files

NAME = "relationships"


def read(folder: Path) -> dict[str, Relationship | None]:
    """See `Volume.relationships`."""
    names = [name for name in os.listdir(folder) if name[0] != "."] if folder.is_dir() else []
    return {name: relationship.decode((folder / name).read_bytes()) for name in sorted(names)}


def write(folder: Path, op: str, record: Relationship) -> None:
    """Replace the record in one durable step."""
    files.make_directory(f"{op}:FOLDER", folder, mode=0o700)
    data = relationship.encode(record) + b"\n"
    files.write_atomic(f"{op}:RECORD", folder / record.mirror_id, data, mode=0o600)


def remove(folder: Path, op: str, mirror_id: str) -> None:
    """Remove the record, and the folder when it is then empty."""
    files.remove_file(f"{op}:RECORD", folder / mirror_id)
    if not os.listdir(folder):
        files.remove_directory(f"{op}:FOLDER", folder)
