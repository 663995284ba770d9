"""`mirrord throttle`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(throttle)


def throttle(
    name: Name,
    rate: Annotated[
        str,
        typer.Argument(
            metavar="RATE",
            help="'5MiB/s', '20MiB/s 08:00-18:00 Mon-Fri, else unlimited', or 'unlimited'.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Set how fast a mirror may transfer; a running transfer takes it within a second."""
    with service(quiet=True) as built:
        show(built.throttle(name, rate), as_json=as_json)
