"""`mirrord monitor`: a Nagios-compatible plugin."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.output import Json, print_json, service


def monitor(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One mirror; default: all.")
    ] = None,
    as_json: Json = False,
) -> int:
    from mirrord.control.monitor import Verdict, judge
    from mirrord.core.errors import MirrordError
    from mirrord.daemon.build import daemon_runs

    try:
        runs = daemon_runs()
        with service(quiet=True) as built:
            # What a stopped daemon saw last is not the current state.
            alarms = built.alarms(up=True) if runs else []
            verdict = judge(built.status(name), alarms, service_runs=runs)
    except MirrordError as error:
        verdict = Verdict(3, f"MIRRORD UNKNOWN - {error}")
    if as_json:
        print_json(verdict._asdict())
    else:
        print(verdict.line)
    return verdict.status
