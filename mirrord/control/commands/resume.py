"""End a quiesce: transfers are allowed again.

Panel: Mirrors 6

Allows transfers again after `mirrord quiesce NAME`.
"""

from __future__ import annotations

from mirrord.control.command import MirrorName, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT)
def resume(service: Service, name: MirrorName) -> Result:
    from mirrord.engine import simple as engine

    return service.verb(Verb.RESUME, name, engine.resume)
