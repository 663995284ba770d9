"""Holds: what mirrord needs nobody destroys by mistake."""

from __future__ import annotations

from mirrord.drivers.zfs import command, marks

#: It is so already; or what was to be held is gone, and holding nothing is no failure.
_FINE = "tag already exists", "does not exist"


def hold(label: str, snapshot: str) -> command.Wish:
    """Keep others from destroying a snapshot that mirrord needs."""
    return command.Wish(label, ["zfs", "hold", marks.HOLD, snapshot], _FINE)
