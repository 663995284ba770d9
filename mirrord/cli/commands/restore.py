"""`mirrord restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrord.cli.output import Force, Json, Name, Yes, confirm, service, show
from mirrord.core.errors import UsageError


def restore(
    name: Name,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Files or folders, as paths inside the volume."),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="The whole volume.")] = False,
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="NAME",
            help="The snapshot; default: the one that the destination shows.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Restore to this folder; default: the source."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace existing files; the old ones are kept next to them."
        ),
    ] = False,
    yes: Yes = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    if whole == bool(files):
        raise UsageError(
            "give either files, or --all",
            hint=f"For example: mirrord restore {name} etc/hosts",
        )
    with service(quiet=as_json) as built:
        if files:
            result = built.restore_files(
                name, files, snapshot=snapshot, into=into, overwrite=overwrite
            )
        else:
            result = built.restore_all(name, snapshot=snapshot, yes=yes, force=force)
            if result.status == "confirmation-required":
                confirm(result, command=f"mirrord restore {name} --all", as_json=as_json)
                result = built.restore_all(name, snapshot=snapshot, yes=True, force=force)
        show(result, as_json=as_json)
