"""`mirrord break`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, Name, service, show
from mirrord.core.errors import UsageError


def break_(
    name: Name,
    test: Annotated[
        bool, typer.Option("--test", help="Only make a writable copy; the mirror goes on.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Where the copy is to be: a path, or POOL/DATASET."),
    ] = None,
    end_test: Annotated[
        bool, typer.Option("--end-test", help="Remove that copy, with what was written to it.")
    ] = False,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="SNAPSHOT", help="Begin as that one, not the newest."),
    ] = None,
    as_json: Json = False,
) -> None:
    if test and end_test:
        raise UsageError("'--test' and '--end-test' exclude each other")
    if at is not None and not (test and at.strip()):
        raise UsageError("'--at' says where the copy of '--test' is to be", hint="Give both.")
    if snapshot is not None and (test or end_test):
        raise UsageError("'--snapshot' goes with neither '--test' nor '--end-test'")
    with service(quiet=as_json) as built:
        if test:
            result = built.begin_test(name, place=at or "")
        elif end_test:
            result = built.end_test(name)
        else:
            result = built.break_off(name, snapshot=snapshot)
    show(result, as_json=as_json)
