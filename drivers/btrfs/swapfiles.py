"""Active swap files: the kernel makes no snapshot of a subvolume that has one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mirrord.core.errors import MirrordError, Refused
from mirrord.core.text import escaped


def refused(volume: Path, where: str) -> MirrordError:
    """The error for ETXTBSY when a snapshot of `volume` is taken."""
    named = " ".join(escaped(path) for path in active_in(volume)) or "a swap file"
    return Refused(
        "no snapshot can be taken while a swap file in the volume is active",
        where=where,
        why=f"btrfs cannot snapshot a subvolume with an active swap file: {named}",
        hint=f"Run 'swapoff {named}', and create the swap file in a separate subvolume that is "
        "not mirrored. Then run the same command again.",
    )


def active_in(volume: Path) -> list[str]:
    """The active swap files in the subvolume."""
    device = os.stat(volume).st_dev
    found = []
    for line in Path("/proc/swaps").read_bytes().splitlines()[1:]:
        # White space is escaped as a backslash with three octal digits.
        octal = line.split()[0]
        path = re.sub(rb"\\([0-7]{3})", lambda digits: bytes([int(digits[1], 8)]), octal)
        try:
            if os.stat(path).st_dev == device:
                found.append(os.fsdecode(path))
        except OSError:
            continue  # in another mount namespace
    return found
