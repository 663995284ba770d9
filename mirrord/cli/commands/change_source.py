"""`mirrord change-source`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(change_source)


def change_source(
    name: Name,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The new source: KIND:PATH.")],
    as_json: Json = False,
) -> None:
    """Go on from another source that has the base: when the middle of a cascade is lost."""
    with service(quiet=as_json) as built:
        show(built.change_source(name, source), as_json=as_json)
