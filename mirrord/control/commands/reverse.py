"""Swap the roles of source and destination.

Panel: Failover and failback 3

Swaps the roles of source and destination; the [definition](config.md) is unchanged. After a break
the old source's changes are kept as a `diverged` snapshot; a
[live mirror](live-modes.md#fail-over-and-back) does not keep them. On a working mirror it is a
planned switchover: it transfers the last changes, freezes the source, transfers the rest, and then
switches. The same command reverses the direction again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrord.control.command import Force, Lock, MirrorName, Right, Service, Yes, command
from mirrord.core.results import Result
from mirrord.core.states import Verb
from mirrord.system.explain import explained

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror


@command(Right.ACT, Lock.QUEUED)
def reverse(
    service: Service, name: MirrorName, *, yes: Yes = False, force: Force = False
) -> Result:
    """Shows first what would be lost; that is kept as a diverged snapshot (a live mirror keeps
    nothing).
    """
    from mirrord.engine import failover, recovery
    from mirrord.live import verbs

    with explained():
        before = service.definition(name).source

    def work(mirror: Mirror) -> Result:
        if mirror.definition.source != before:
            with mirror.hold(Verb.REVERSE):
                recovery.recover(mirror)  # the record may be ahead of what was done
            return failover.turned(mirror)
        return failover.reverse(mirror, yes=yes, force=force)

    return service.verb(
        Verb.REVERSE, name, work, live=lambda mirror: verbs.reverse(mirror, yes=yes)
    )
