"""`mirrord break`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(break_off)


def break_off(name: Name, as_json: Json = False) -> None:
    """Make the destination writable, at once and without the source."""
    with service(quiet=as_json) as built:
        show(built.break_off(name), as_json=as_json)
