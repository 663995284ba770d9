"""Holds: what mirrord needs nobody destroys by mistake."""

from __future__ import annotations

from mirrord.drivers.zfs import command, marks


def hold(label: str, snapshot: str) -> command.Wish:
    """Keep others from destroying a snapshot that mirrord needs."""
    return command.Wish(label, ["zfs", "hold", marks.HOLD, snapshot], ("tag already exists",))
