"""`mirrord break`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show
from mirrord.core.errors import UsageError


def break_(
    name: Name,
    test: Annotated[
        bool, typer.Option("--test", help="Make a writable copy only; the mirror continues.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Location of the copy: a path, or POOL/DATASET."),
    ] = None,
    end_test: Annotated[
        bool, typer.Option("--end-test", help="Delete that copy and what was written to it.")
    ] = False,
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot", metavar="SNAPSHOT", help="Start from this snapshot instead of the newest."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    if test and end_test:
        raise UsageError("'--test' and '--end-test' cannot be combined")
    if at is not None and not (test and at.strip()):
        raise UsageError("'--at' requires '--test'", hint="Give both.")
    if snapshot is not None and (test or end_test):
        raise UsageError("'--snapshot' cannot be combined with '--test' or '--end-test'")
    with service(quiet=as_json) as built:
        if test:
            result = built.begin_test(name, place=at or "")
        elif end_test:
            result = built.end_test(name)
        else:
            result = built.break_off(name, snapshot=snapshot)
    show(result, as_json=as_json)
