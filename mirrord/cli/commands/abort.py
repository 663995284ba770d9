"""`mirrord abort`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def abort(
    name: Name,
    hard: Annotated[
        bool,
        typer.Option(
            "--hard",
            help="Also delete the checkpoint, or abandon an interrupted operation.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    with service(quiet=True) as built:
        show(built.abort(name, hard=hard), as_json=as_json)
