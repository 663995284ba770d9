"""`mirrord takeover`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, Name, Yes, confirm, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(takeover)


def takeover(name: Name, yes: Yes = False, as_json: Json = False) -> None:
    """Control a mirror that another host controlled: both ends refuse that host from then on."""
    with service(quiet=as_json) as built:
        result = built.takeover(name, yes=yes)
        if result.status == "needs-yes":
            confirm(result, command=f"mirrord takeover {name}", as_json=as_json)
            result = built.takeover(name, yes=True)
        show(result, as_json=as_json)
