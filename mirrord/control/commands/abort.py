"""Stop a running transfer. The destination shows what it showed before.

Panel: Mirrors 4

Ends the running transfer, in whatever process: by a request, and after two seconds by SIGTERM. The
destination is unchanged. A checkpoint is kept for `checkpoint_days`; `--hard` discards it, and
gives up an interrupted operation: the volume that was set aside is live again, and nothing is
deleted at either end. A source that a power cut left frozen is thawed.
"""

from __future__ import annotations

from typing import Annotated

from mirrord.control.command import Lock, MirrorName, Option, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT, Lock.ENDS_RUNS)
def abort(
    service: Service,
    name: MirrorName,
    *,
    hard: Annotated[
        bool, Option("Also discard the checkpoint, or give up an interrupted operation.")
    ] = False,
) -> Result:
    from mirrord.engine import simple
    from mirrord.live import verbs

    return service.verb(
        Verb.ABORT, name, lambda mirror: simple.abort(mirror, hard=hard), live=verbs.abort
    )
