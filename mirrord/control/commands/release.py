"""Delete a mirror's reference snapshots at the source.

Panel: Mirrors 9

Deletes the reference snapshots of a broken-off mirror at the source. The ends then have no base:
to mirror again, create a new mirror. The mirror's pins at both ends are removed.
"""

from __future__ import annotations

from mirrord.control.command import MirrorName, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT)
def release(service: Service, name: MirrorName) -> Result:
    from mirrord.engine import simple as engine
    from mirrord.live import verbs

    return service.verb(Verb.RELEASE, name, engine.release, live=verbs.release)
