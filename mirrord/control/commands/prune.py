"""Delete reference snapshots that no retention rule keeps, at both ends.

Panel: Mirrors 8

Deletes the reference snapshots that no rule keeps, at both ends, and shows for each why it is
deleted or kept. Each update prunes as well. When an end looks
[suspicious](schedules.md#retention), nothing is deleted there and the exit status is 1; check it
with `--dry-run`, then `--accept` deletes what was refused, and the snapshots that exist now are no
longer questioned.

`--unpin ID` removes the [pins](hosts.md#several-destinations-and-cascades), at both ends, of a
mirror that no longer exists, by its id.
"""

from __future__ import annotations

from typing import Annotated

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT)
def prune(
    service: Service,
    name: MirrorName,
    *,
    dry_run: Annotated[
        bool,
        Option("Show what would be deleted, and why the rest is kept.", flags=("--dry-run", "-n")),
    ] = False,
    accept: Annotated[
        bool, Option("Also delete at an end that --dry-run marks as in doubt.")
    ] = False,
) -> Result:
    from mirrord.engine import prune as engine

    return service.verb(
        Verb.PRUNE,
        name,
        lambda mirror: engine.prune_now(mirror, dry_run=dry_run, accept=accept),
    )


@command(Right.ACT, when="mirror_id")
def unpin(
    service: Service,
    name: MirrorName,
    mirror_id: Annotated[
        str,
        Option(
            "Remove the pins, at both ends, of a mirror that no longer exists, by its id. No "
            "snapshot is deleted. Not with the other options.",
            "ID",
            ("--unpin",),
        ),
    ],
) -> Result:
    from mirrord.engine import prune as engine

    return service.verb(Verb.PRUNE, name, lambda mirror: engine.unpin(mirror, mirror_id))
