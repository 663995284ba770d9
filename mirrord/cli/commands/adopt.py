"""`mirrord adopt`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Yes, confirm, service, show


def adopt(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="A volume that is an end of the mirror.")
    ],
    other: Annotated[
        str, typer.Option("--other", metavar="ENDPOINT", help="The other end, as seen from here.")
    ] = "",
    mirror: Annotated[
        str,
        typer.Option(
            "--mirror", metavar="NAME", help="The mirror, if the volume belongs to several."
        ),
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The mirror's name on this host.")
    ] = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    with service(quiet=as_json) as built:
        result = built.adopt(endpoint, other=other, mirror=mirror, name=name, yes=yes)
        if result.status == "confirmation-required":
            confirm(result, command=f"mirrord adopt {endpoint}", as_json=as_json)
            result = built.adopt(endpoint, other=other, mirror=mirror, name=name, yes=True)
        show(result, as_json=as_json)
