"""Transfer what changed at the source since the last update.

Panel: Mirrors 3

Brings the destination up to date. If the source has not changed, no snapshot is taken, but the lag
is reset. An interrupted update is resumed from its [checkpoint](checkpoints.md) if there is one.
"""

from __future__ import annotations

from mirrord.control.command import Lock, MirrorName, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT, Lock.QUEUED)
def update(service: Service, name: MirrorName) -> Result:
    from mirrord.engine import update as engine

    return service.verb(Verb.UPDATE, name, engine.update)
