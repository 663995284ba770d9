"""Disconnect the clients of a live mirror.

Panel: Mirrors 12

Disconnects all NBD clients of a [live mirror](live-modes.md), and listens for new ones no more. The
mirror continues.
"""

from __future__ import annotations

from mirrord.control.command import MirrorName, Right, Service, command
from mirrord.core.results import Result


@command(Right.ACT)
def unserve(service: Service, name: MirrorName) -> Result:
    from mirrord.live import serving

    return service.look_live(name, serving.unserve)
