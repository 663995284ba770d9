"""`mirrord initialize`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(initialize)


def initialize(name: Name, as_json: Json = False) -> None:
    """Transfer everything for the first time: the base."""
    with service(quiet=as_json) as built:
        show(built.initialize(name), as_json=as_json)
