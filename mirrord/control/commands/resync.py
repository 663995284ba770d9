"""Mirror again after a break: the source wins.

Panel: Failover and failback 2

Mirrors again in the same direction: the destination is rolled back to the newest common snapshot,
then updated. The plan shows the changes that the destination loses; they are kept as a `diverged`
snapshot. A [live mirror](live-modes.md#fail-over-and-back) does not keep them.

`resync`, `reverse` and `restore --all` are refused while a program has files of the volume that is
set aside open for writing; the error names process and file. `--force` overrides this: later writes
of such a program are kept with the losing side, or fail. (A block volume that is open for writing
cannot be switched at all.)
"""

from __future__ import annotations

from mirrord.control.command import Force, Lock, MirrorName, Right, Service, Yes, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT, Lock.QUEUED)
def resync(service: Service, name: MirrorName, *, yes: Yes = False, force: Force = False) -> Result:
    """Shows first what would be lost; that is kept as a diverged snapshot (a live mirror keeps
    nothing).
    """
    from mirrord.engine import failover
    from mirrord.live import verbs

    return service.verb(
        Verb.RESYNC,
        name,
        lambda mirror: failover.resync(mirror, yes=yes, force=force),
        live=lambda mirror: verbs.resync(mirror, yes=yes),
    )
