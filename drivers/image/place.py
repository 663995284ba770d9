"""What is at the location of an image, and where its records are."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mirrord.core.errors import Refused
from mirrord.core.live import ImageFacts
from mirrord.core.model import Role, VolumeFacts
from mirrord.system import openers

_LOOKED_AT_BYTES = 1 << 20


def image_facts(location: str) -> ImageFacts:
    """See `Live.image_facts`, without what only the process finds out."""
    path = Path(location)
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ImageFacts()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISBLK(found.st_mode):
        raise Refused(
            "this is neither a file nor a block device",
            where=location,
            hint="Give the path of an image file, a zvol or another block device.",
        )
    if stat.S_ISREG(found.st_mode):
        users = [
            one for one in openers.writers_on(found.st_dev, limit=1000) if _same(one.path, location)
        ]
        size, blank = found.st_size, found.st_blocks == 0
    else:
        users = list(openers.writers_of_devices([found.st_rdev]))
        with path.open("rb") as device:
            size = device.seek(0, os.SEEK_END)
            device.seek(0)
            blank = not device.read(_LOOKED_AT_BYTES).strip(b"\0")
    users = [one for one in users if one.process not in ("mirrord-live", "_live")]
    in_use = f"{users[0].process} (process {users[0].pid}) writes to it" if users else ""
    return ImageFacts(size, blank, in_use)


def _same(opened: str, location: str) -> bool:
    try:
        return os.path.samefile(opened, location)
    except OSError:
        return False


def volume_facts(kind: str, location: str, mirror_id: str, role: Role | None) -> VolumeFacts:
    """The facts of an image. role: as its records say, None without them."""
    path = Path(location)
    folder = path.parent
    if not folder.is_dir():
        where = f"the folder {folder} does not exist"
        return VolumeFacts(
            kind, location, Role.ABSENT, "", "", location, notes=(where,), parent_missing=True
        )
    space, device = os.statvfs(folder), folder.stat().st_dev
    facts = VolumeFacts(
        kind=kind,
        location=location,
        role=Role.ABSENT,
        identity="",
        filesystem=f"{space.f_fsid:x}-{device:x}",
        view=location,
        mirror_id=mirror_id,
        used_bytes=(space.f_blocks - space.f_bfree) * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,
    )
    try:
        found = path.stat()
    except FileNotFoundError:
        return facts
    if stat.S_ISBLK(found.st_mode):
        facts = facts._replace(identity=f"device-{found.st_rdev:x}", filesystem="")
    elif stat.S_ISREG(found.st_mode):
        facts = facts._replace(identity=f"file-{found.st_dev:x}-{found.st_ino:x}")
    else:
        return facts._replace(role=Role.FOREIGN, notes=("it is no file and no block device",))
    return facts._replace(role=role or Role.LIVE)
