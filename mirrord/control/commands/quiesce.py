"""Prevent new transfers; a running one finishes. Survives restarts.

Panel: Mirrors 5

Prevents new transfers (`initialize`, `update`, `resync`, `reverse` are refused) until `mirrord
resume NAME`. A running transfer finishes. The state survives restarts.
"""

from __future__ import annotations

from mirrord.control.command import MirrorName, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT)
def quiesce(service: Service, name: MirrorName) -> Result:
    from mirrord.engine import simple as engine

    return service.verb(Verb.QUIESCE, name, engine.quiesce)
