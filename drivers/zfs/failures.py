"""What `zfs` complains of, in mirrord's words."""

from __future__ import annotations

from collections.abc import Sequence

from mirrord.core.errors import Busy, IoFailed, MirrordError, NotFound
from mirrord.drivers import base


def translate(where: str, arguments: Sequence[str], stderr: str) -> MirrordError:
    """The error behind what the command said."""
    why = "; ".join(line.strip() for line in stderr.splitlines() if line.strip())
    lower = why.lower()
    if "permission denied" in lower:
        return base.permission_missing(where, why)
    if "out of space" in lower or "no space" in lower or "quota exceeded" in lower:
        return base.no_space(where, why)
    if "checksum mismatch" in lower or "invalid stream" in lower:
        return base.stream_damaged(where, why)
    if "does not exist" in lower:
        return NotFound("a dataset is not there", where=where, why=why)
    if "busy" in lower or "being held" in lower:
        return Busy("the dataset is in use", where=where, why=why)
    return IoFailed(f"'{' '.join(arguments[:2])}' failed", where=where, why=why)
