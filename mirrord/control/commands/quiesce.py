"""Start no new transfers. A running one finishes. Survives restarts.

Panel: Mirrors 5

Prevents new transfers (`initialize`, `update`, `resync`, `reverse` are refused) until `mirrord
resume NAME`. A running transfer finishes. The state survives restarts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrord.control.command import MirrorName, Right, command
from mirrord.core.results import Result
from mirrord.core.states import Verb

if TYPE_CHECKING:
    from mirrord.control.api import Service


@command(Right.ACT)
def quiesce(service: Service, name: MirrorName) -> Result:
    from mirrord.engine import simple as engine

    return service.verb(Verb.QUIESCE, name, engine.quiesce)
