"""Finish an interrupted resync, reverse or restore.

Panel: Failover and failback 5

Finishes a `resync`, `reverse` or `restore --all` that was interrupted and waits for a decision,
because the volume that it sets aside was written to since. The later changes are kept as a
`diverged` snapshot. The alternative is `mirrord abort NAME --hard`.
"""

from __future__ import annotations

from mirrord.control.command import Lock, MirrorName, Right, Service, Yes, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT, Lock.QUEUED)
def resume_operation(service: Service, name: MirrorName, *, yes: Yes = False) -> Result:
    """What was written since the interruption is kept as a diverged snapshot. To give it up
    instead: 'mirrord abort NAME --hard'.
    """
    from mirrord.engine import simple

    return service.verb(
        Verb.RESUME_OPERATION, name, lambda mirror: simple.resume_operation(mirror, yes=yes)
    )
