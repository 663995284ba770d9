"""`mirrord resume`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(resume)


def resume(name: Name, as_json: Json = False) -> None:
    """End a quiesce: transfers may begin again."""
    with service(quiet=as_json) as built:
        show(built.resume(name), as_json=as_json)
