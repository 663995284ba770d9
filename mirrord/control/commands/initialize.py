"""Transfer the whole volume for the first time.

Panel: Mirrors 2

Takes the base snapshot and makes a full transfer. If it was interrupted, run it again: it resumes
from its [checkpoint](checkpoints.md) if there is one.
"""

from __future__ import annotations

from mirrord.control.command import Lock, MirrorName, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT, Lock.QUEUED)
def initialize(service: Service, name: MirrorName) -> Result:
    from mirrord.engine import update as engine
    from mirrord.live import verbs

    return service.verb(Verb.INITIALIZE, name, engine.initialize, live=verbs.initialize)
