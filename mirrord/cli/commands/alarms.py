"""`mirrord alarms`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from mirrord.cli.output import Json, print_json, service, show


def alarms(
    past: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    accept_clock: Annotated[
        bool, typer.Option("--accept-clock", help="Say that the clock is right after a jump.")
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
        print_json({"alarms": found})
        return
    if any(row["cleared_ns"] is None for row in found) and not daemon_runs():
        print("No service runs: these alarms were up when it ended.")
    if not found:
        print("No alarms." if not past else "There were no alarms.")
    for row in found:
        end = "" if row["cleared_ns"] is None else f", over since {_moment(row['cleared_ns'])}"
        name = row["mirror"] or ("this host" if row["mirror_id"] is None else row["mirror_id"])
        print(
            f"{_moment(row['raised_ns'])}  {row['level']:7}  {name}  {row['kind']}: "
            f"{row['text']}{end}"
        )


def _moment(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
