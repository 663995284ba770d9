"""Show what the next update would send.

Panel: Monitoring 4

Shows what the next update would send, or the difference between two snapshots of the source, by
name or guid. It takes a snapshot of the source and deletes it again, so it needs write access.
`--quick` takes time proportional to the change. `--files` is for btrfs and ZFS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.control.documents import of_delta
from mirrord.core.reports import DeltaReport
from mirrord.core.text import escaped
from mirrord.core.units import format_duration, format_size

_FILES_SHOWN = 50


def _shown(found: DeltaReport, arguments: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found.name}: from {found.base or 'nothing (a full transfer)'}"
    if found.states is None:
        yield f"  added           {format_size(found.added_bytes)}"
    else:
        for state in ("added", "deleted", "unchanged", "unused"):
            blocks = getattr(found.states, state)
            size = format_size(blocks * found.block_size)
            yield f"  {state:9} {blocks:>14,} blocks {size:>10}"
    exactly = "" if found.exact else "about "
    yield f"  will be sent    {exactly}{format_size(found.send_bytes)}"
    if found.estimated_s is not None and found.rate_bytes_s:
        yield (
            f"  that takes      about {format_duration(found.estimated_s)} at this mirror's "
            f"usual {format_size(found.rate_bytes_s)}/s"
        )
    changes = found.changes
    if arguments["files"] and changes is None:
        yield "  This kind of volume holds blocks, not files."
    for change in (changes or [])[:_FILES_SHOWN]:
        size = format_size(change.data_bytes) if change.data_bytes else ""
        yield f"  {change.change:9} {size:>9}  {escaped(change.path) or '.'}"
    if changes and len(changes) > _FILES_SHOWN:
        yield f"  … and {len(changes) - _FILES_SHOWN} more (--json lists all)"


@command(Right.ACT, text=_shown, document=of_delta)
def delta(
    service: Service,
    name: MirrorName,
    *,
    base: Annotated[
        str | None,
        Option(
            "The older snapshot; default: the base of the next update.", "SNAPSHOT", ("--from",)
        ),
    ] = None,
    incremental: Annotated[
        str | None,
        Option("The newer snapshot; default: the source as it is now.", "SNAPSHOT", ("--to",)),
    ] = None,
    quick: Annotated[bool, Option("Only what will be sent, not all four block states.")] = False,
    files: Annotated[bool, Option("List the changed files.")] = False,
) -> DeltaReport:
    from mirrord.engine import delta as engine

    return service.look(
        name,
        lambda mirror: engine.delta(
            mirror, base=base, incremental=incremental, states=not quick, files=files
        ),
    )
