"""`mirrord adopt`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(adopt)


def adopt(
    name: Name,
    source: Annotated[
        str, typer.Option("--source", metavar="SITE", help="The name of the site that is it.")
    ],
    as_json: Json = False,
) -> None:
    """Say which site is the source, where neither the catalogue nor the ends can tell."""
    with service(quiet=as_json) as built:
        show(built.adopt(name, source=source), as_json=as_json)
