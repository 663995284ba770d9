"""`mirrord change-source`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def change_source(
    name: Name,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The new source: KIND:PATH.")],
    as_json: Json = False,
) -> None:
    with service(quiet=as_json) as built:
        show(built.change_source(name, source), as_json=as_json)
