"""Print one line; the exit status is that of a monitoring plugin.

Panel: Monitoring 8

A Nagios-compatible check: one line, and exit status 0 OK, 1 warning, 2 critical, 3 unknown
([conditions](alarms.md#mirrord-monitor)).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mirrord.cli.options import Json
from mirrord.cli.output import answer, running

#: A transaction writes a few pages of 4 KiB.
_FREE_BYTES_LEAST = 64 << 10


def monitor(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One mirror; default: all.")
    ] = None,
    as_json: Json = False,
) -> int:
    from mirrord.control.commands.alarms import alarms
    from mirrord.control.commands.status import status
    from mirrord.control.monitor import Verdict, judge
    from mirrord.core.errors import MirrordError
    from mirrord.daemon.build import daemon_runs
    from mirrord.system import paths
    from mirrord.system.explain import explained

    try:
        with explained(), running(quiet=True) as runner:
            runs = daemon_runs()
            host = "" if runs else _full(paths.standard().state)
            # What a stopped daemon saw last is not the current state.
            up = runner.run(alarms()).alarms if runs else ()
            rows = runner.run(status(name))
            verdict = judge(rows, up, service_runs=runs, host=host)
    except MirrordError as error:
        verdict = Verdict(3, f"MIRRORD UNKNOWN - {error}")
    answer(verdict._asdict(), [verdict.line], as_json=as_json)
    return verdict.status


def _full(state: Path) -> str:
    """That nothing can be recorded in the state folder, or "": a command that fails for that cannot
    record its failure either. (The daemon has an alarm for it: it writes there all the time.)
    """
    try:
        found = os.statvfs(state)
    except OSError:
        return ""  # nothing is recorded yet; why it cannot be read is told where it is used
    if found.f_bfree * found.f_frsize < _FREE_BYTES_LEAST:
        return f"the catalogue cannot be written: no space is left in {state}"
    return ""
