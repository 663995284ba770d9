"""`mirrord throttle`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


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
    with service(quiet=True) as built:
        show(built.throttle(name, rate), as_json=as_json)
