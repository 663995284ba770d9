"""`mirrord abort`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(abort)


def abort(
    name: Name,
    hard: Annotated[
        bool, typer.Option("--hard", help="Drop the checkpoint too: the next one starts anew.")
    ] = False,
    as_json: Json = False,
) -> None:
    """End a running transfer; the destination shows what it showed before."""
    with service(quiet=True) as built:
        show(built.abort(name, hard=hard), as_json=as_json)
