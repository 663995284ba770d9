"""Set when the writes of a live mirror are acknowledged.

Panel: Mirrors 13

Sets the [mode](live-modes.md#modes) of a live mirror, `sync`, `strict-sync`, `semi-sync` or
`async`, in its definition, and applies it at once. Or it sets a [policy](policies.md) that changes
the mode by itself, such as `dynamic`, whose keys are in the definition; the daemon applies it.
"""

from __future__ import annotations

from typing import Annotated

from mirrord.control.command import Argument, MirrorName, Right, Service, command
from mirrord.core.results import Result


@command(Right.ACT)
def mode(
    service: Service,
    name: MirrorName,
    wanted: Annotated[str, Argument("MODE", "sync, strict-sync, semi-sync or async; or a policy.")],
) -> Result:
    from mirrord.live import serving

    return service.look_live(name, lambda mirror: serving.set_mode(mirror, wanted))
