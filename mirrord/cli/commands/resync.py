"""`mirrord resync`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Force, Json, Name, Yes, confirm, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(resync)


def resync(name: Name, yes: Yes = False, force: Force = False, as_json: Json = False) -> None:
    """Mirror again after a break: source wins, from the newest common snapshot.

    Shows first what would be lost, which is kept as a diverged snapshot.
    """
    with service(quiet=as_json) as built:
        result = built.resync(name, yes=yes, force=force)
        if result.status == "needs-yes":
            confirm(result, command=f"mirrord resync {name}", as_json=as_json)
            result = built.resync(name, yes=True, force=force)
        show(result, as_json=as_json)
