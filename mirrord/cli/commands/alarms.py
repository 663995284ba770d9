"""`mirrord alarms`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from mirrord.cli.output import Json, print_json, service, show


def alarms(
    past: Annotated[bool, typer.Option("--all", help="Also alarms that were cleared.")] = False,
    accept_clock: Annotated[
        bool,
        typer.Option("--accept-clock", help="Accept the current system time after a clock change."),
    ] = False,
    as_json: Json = False,
) -> None:
    from mirrord.daemon.build import daemon_runs

    with service(quiet=True) as built:
        if accept_clock:
            show(built.accept_clock(), as_json=as_json)
            return
        found = built.alarms(up=not past)
    if as_json:
        print_json({"alarms": [row._asdict() for row in found]})
        return
    if any(row.cleared_ns is None for row in found) and not daemon_runs():
        print("The daemon is not running: these alarms were active when it stopped.")
    if not found:
        print("No active alarms." if not past else "No alarms are recorded.")
    for row in found:
        end = "" if row.cleared_ns is None else f", cleared {_moment(row.cleared_ns)}"
        name = row.mirror or ("this host" if row.mirror_id is None else row.mirror_id)
        print(f"{_moment(row.raised_ns)}  {row.level:7}  {name}  {row.kind}: {row.text}{end}")


def _moment(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
