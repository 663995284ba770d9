"""`mirrord create`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(create)


def create(
    name: Name,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="For example btrfs:/data/home or block:/srv/v1.")
    ],
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="A path that does not exist yet.")
    ],
    keep_source: Annotated[
        int, typer.Option(min=1, max=10_000, help="Reference snapshots that stay at the source.")
    ] = 2,
    keep_destination: Annotated[
        int, typer.Option(min=1, max=10_000, help="Reference snapshots kept at the destination.")
    ] = 10,
    snapshots: Annotated[
        list[str] | None,
        typer.Option(
            "--snapshots",
            metavar="PATTERN",
            help="The source's own snapshots that go along, by name (may be repeated).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Define a mirror; no data move yet."""
    with service() as built:
        result = built.create(
            name,
            source,
            destination,
            keep_source=keep_source,
            keep_destination=keep_destination,
            snapshots=tuple(snapshots or ()),
        )
    show(result, as_json=as_json)
