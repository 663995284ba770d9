"""Delete a mirror. The destination keeps its data.

Panel: Mirrors 10

Removes the definition, the records, and the mirror's reference snapshots at the source. The data at
the destination is kept. A working (`mirrored`) mirror is deleted only with `--yes`, which also
proceeds when the source cannot be reached; its destination stays read-only as last shown. The
command does not ask. It is refused while the read-only destination is the source of another mirror
of this host (a cascade): break this mirror first, or give the other one another source. The
mirror's pins are removed; for an end that cannot be reached the output shows how to do that later.
"""

from __future__ import annotations

from typing import Annotated

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT)
def delete(
    service: Service,
    name: MirrorName,
    *,
    yes: Annotated[
        bool,
        Option(
            "Also if the mirror is not broken off, or an end does not answer.",
            flags=("--yes", "-y"),
        ),
    ] = False,
    keep_snapshots: Annotated[bool, Option("Keep the reference snapshots at the source.")] = False,
) -> Result:
    """Does not ask for confirmation, even without --yes."""
    from mirrord.engine import simple
    from mirrord.live import verbs

    return service.verb(
        Verb.DELETE,
        name,
        lambda mirror: simple.delete(mirror, yes=yes, keep_snapshots=keep_snapshots),
        live=lambda mirror: verbs.delete(mirror, yes=yes),
    )
