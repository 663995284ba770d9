"""`mirrord takeover`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, Yes, confirm, service, show


def takeover(
    name: Name,
    source: Annotated[
        str,
        typer.Option("--source", metavar="SITE", help="Only set which site is the source."),
    ] = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Give --source if neither the catalogue nor the ends record which site is the source."""
    with service(quiet=as_json) as built:
        result = built.takeover(name, source=source, yes=yes)
        if result.status == "confirmation-required":
            confirm(result, command=f"mirrord takeover {name}", as_json=as_json)
            result = built.takeover(name, yes=True)
        show(result, as_json=as_json)
