"""`mirrord explain`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(explain)


def explain(name: Name, as_json: Json = False) -> None:
    """Say why things are as they are, and which command changes it."""
    with service(quiet=as_json) as built:
        show(built.explain(name), as_json=as_json)
