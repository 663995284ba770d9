"""Holds: they prevent that a snapshot which mirrord needs is destroyed by mistake."""

from __future__ import annotations

from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks

#: Errors that are ignored: the hold already exists, or the snapshot no longer exists.
_IGNORED = "tag already exists", "does not exist"


def hold(label: str, snapshot: str) -> command.Task:
    """The command that holds a snapshot."""
    return command.Task(label, ["zfs", "hold", marks.HOLD, snapshot], _IGNORED)
