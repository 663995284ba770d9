"""`mirrord delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def delete(
    name: Name,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Also if the mirror is not broken off, or an end does not answer.",
        ),
    ] = False,
    keep_snapshots: Annotated[
        bool, typer.Option("--keep-snapshots", help="Keep the reference snapshots at the source.")
    ] = False,
    as_json: Json = False,
) -> None:
    with service(quiet=True) as built:
        show(built.delete(name, yes=yes, keep_snapshots=keep_snapshots), as_json=as_json)
