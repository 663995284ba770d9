"""`mirrord quiesce`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(quiesce)


def quiesce(name: Name, as_json: Json = False) -> None:
    """Let no new transfer begin; a running one finishes. Survives restarts."""
    with service(quiet=as_json) as built:
        show(built.quiesce(name), as_json=as_json)
