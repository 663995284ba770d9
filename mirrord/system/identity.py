"""The identity of this host, derived without stored state."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_MACHINE_ID = Path("/etc/machine-id")


def controller(config: Path) -> str:
    """The identity of the definitions in that folder on this host: 16 hexadecimal digits, "@" and
    the host name, which is informational only.

    It is derived from the machine id (if there is none, from the host name) and the folder's path,
    so it stays the same when all other data of mirrord is lost.
    """
    name = os.uname().nodename
    try:
        machine = _MACHINE_ID.read_text(encoding="ascii").strip() or name
    except (OSError, UnicodeDecodeError):
        machine = name
    digest = hashlib.sha256(f"{machine}\n{config.resolve()}".encode(errors="surrogateescape"))
    shown = "".join(letter for letter in name if letter.isalnum() or letter in "-._")
    return f"{digest.hexdigest()[:16]}@{shown[:40] or 'host'}"
