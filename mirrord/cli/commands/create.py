"""`mirrord create`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show
from mirrord.core.errors import UsageError

Sites = Annotated[
    str,
    typer.Option(metavar="SOURCE,DESTINATION", help="Names of the two sites, such as berlin,dr."),
]
_Members = Annotated[
    list[str] | None,
    typer.Option(
        "--member",
        metavar="SOURCE=DESTINATION",
        help="A volume of a mirror of several volumes; may be repeated.",
    ),
]
_Snapshots = Annotated[
    list[str] | None,
    typer.Option(
        "--snapshots",
        metavar="PATTERN",
        help="Replicated user snapshots, by name; may be repeated.",
    ),
]


def create(
    name: Name,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="For example btrfs:/data/home or block:/srv/v1.")
    ] = "",
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DESTINATION", help="For example btrfs:/backup/home: new, or an empty folder."
        ),
    ] = "",
    member: _Members = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="'every 15m', 'lag 5m', '*/10 * * * *', or a name ('mirrord schedule list').",
        ),
    ] = None,
    rpo: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Recovery point objective: the maximum lag, such as 30m."
        ),
    ] = None,
    throttle: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Maximum transfer rate, such as 20MiB/s."),
    ] = None,
    keep_source: Annotated[
        str,
        typer.Option(metavar="KEEP", help="Snapshots kept at the source: a number or rules."),
    ] = "2",
    keep_destination: Annotated[
        str,
        typer.Option(
            metavar="KEEP",
            help="Snapshots kept at the destination, such as 'newest 10, 24 hourly, 7 daily'.",
        ),
    ] = "10",
    snapshots: _Snapshots = None,
    recursive: Annotated[
        bool,
        typer.Option("--recursive", help="ZFS: the dataset and its descendants, as one volume."),
    ] = False,
    sites: Sites = "primary,secondary",
    as_json: Json = False,
) -> None:
    for option, value in (("schedule", schedule), ("rpo", rpo), ("throttle", throttle)):
        if value is not None and not value.strip():  # as of a variable of a script that is not set
            raise UsageError(f"'--{option}' is empty", hint="Omit it, or give a value.")
    with service() as built:
        result = built.create(
            name,
            source,
            destination,
            members=tuple(member or ()),
            keep_source=keep_source,
            keep_destination=keep_destination,
            snapshots=tuple(snapshots or ()),
            schedule=schedule or "",
            rpo=rpo or "",
            throttle=throttle or "",
            recursive=recursive,
            sites=tuple(site.strip() for site in sites.split(",")),
        )
    show(result, as_json=as_json)
