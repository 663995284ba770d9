"""`mirrord daemon`."""

from __future__ import annotations

import typer


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(daemon)


def daemon() -> None:
    """Look after all mirrors until SIGTERM: schedules, alarms, the socket (docs/service.md)."""
    from mirrord.daemon.build import serve

    serve()
