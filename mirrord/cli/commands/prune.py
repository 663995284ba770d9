"""`mirrord prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def prune(
    name: Name,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", "-n", help="Show what would be deleted, and why the rest is kept."
        ),
    ] = False,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Also delete at an end that --dry-run marks as in doubt."),
    ] = False,
    unpin: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Remove the pins, at both ends, of a mirror that no longer exists, by its id. No "
            "snapshot is deleted. Not with the other options.",
        ),
    ] = "",
    as_json: Json = False,
) -> int:
    with service(quiet=True) as built:
        result = built.prune(name, dry_run=dry_run, accept=accept, unpin=unpin)
    show(result, as_json=as_json)
    return 1 if result.status == "refused" else 0
