"""`mirrord delta`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrord.cli.documents import of_delta
from mirrord.cli.output import Json, Name, print_json, service
from mirrord.core.text import escaped
from mirrord.core.units import format_duration, format_size

if TYPE_CHECKING:
    from mirrord.core.reports import DeltaReport

_FILES_SHOWN = 50


def delta(
    name: Name,
    base: Annotated[
        str | None, typer.Option("--from", metavar="SNAPSHOT", help="Default: the next base.")
    ] = None,
    incremental: Annotated[
        str | None,
        typer.Option("--to", metavar="SNAPSHOT", help="Default: the source as it is now."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what will be sent, not all four block states.")
    ] = False,
    files: Annotated[bool, typer.Option("--files", help="List the changed files.")] = False,
    as_json: Json = False,
) -> None:
    with service(quiet=True) as built:
        found = built.delta(name, base=base, incremental=incremental, states=not quick, files=files)
    if as_json:
        print_json(of_delta(found))
        return
    print(f"{name}: from {found.base or 'nothing (a full transfer)'}")
    _print_states(found)
    exactly = "" if found.exact else "about "
    print(f"  will be sent    {exactly}{format_size(found.send_bytes)}")
    if found.estimated_s is not None and found.rate_bytes_s:
        print(
            f"  that takes      about {format_duration(found.estimated_s)} at this mirror's "
            f"usual {format_size(found.rate_bytes_s)}/s"
        )
    changes = found.changes
    if files and changes is None:
        print("  This kind of volume holds blocks, not files.")
    for change in (changes or [])[:_FILES_SHOWN]:
        size = format_size(change.data_bytes) if change.data_bytes else ""
        print(f"  {change.change:9} {size:>9}  {escaped(change.path) or '.'}")
    if changes and len(changes) > _FILES_SHOWN:
        print(f"  … and {len(changes) - _FILES_SHOWN} more (--json lists all)")


def _print_states(found: DeltaReport) -> None:
    states = found.states
    if states is None:
        print(f"  added           {format_size(found.added_bytes)}")
        return
    for state in ("added", "deleted", "unchanged", "unused"):
        blocks = getattr(states, state)
        print(f"  {state:9} {blocks:>14,} blocks {format_size(blocks * found.block_size):>10}")
