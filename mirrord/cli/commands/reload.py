"""`mirrord reload`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(reload)


def reload(as_json: Json = False) -> None:
    """Let the service read all definitions anew; it keeps the old ones when any is wrong."""
    with service(quiet=True) as built:
        show(built.reload(), as_json=as_json)
