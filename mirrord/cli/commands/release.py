"""`mirrord release`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(release)


def release(name: Name, as_json: Json = False) -> None:
    """Delete this mirror's reference snapshots at the source."""
    with service(quiet=as_json) as built:
        show(built.release(name), as_json=as_json)
