"""`mirrord update`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(update)


def update(name: Name, as_json: Json = False) -> None:
    """Bring the destination up to the source as it is now."""
    with service(quiet=as_json) as built:
        show(built.update(name), as_json=as_json)
