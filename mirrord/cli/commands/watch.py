"""Show all mirrors in a table that is updated until Ctrl-C.

Panel: Monitoring 6

Shows all mirrors in a live table: activity, lag, the used share of the RPO, the next run, the last
transfer, alarms. It needs a terminal; Ctrl-C ends it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mirrord.cli.output import running
from mirrord.control.commands.status import status
from mirrord.control.statustext import activity_of
from mirrord.core.errors import Aborted, UsageError
from mirrord.core.states import State
from mirrord.core.units import format_duration, format_size
from mirrord.system import clock

if TYPE_CHECKING:
    from rich.table import Table

    from mirrord.core.status import MirrorStatus


def watch(
    every: Annotated[
        float,
        typer.Option(
            "--every", min=0.2, max=3600, help="Seconds between two updates of the table."
        ),
    ] = 1.0,
) -> None:
    if not sys.stdout.isatty():
        raise UsageError(
            "'mirrord watch' needs a terminal", hint="'mirrord status' prints the table once."
        )
    from rich.live import Live

    with running(quiet=True) as runner, Live(auto_refresh=False, screen=True) as live:
        try:
            while True:
                live.update(_table(runner.run(status())), refresh=True)
                clock.sleep_s(every)
        except Aborted as error:
            if error.why != "SIGINT":  # Ctrl-C is the way out, not a failure
                raise


def _table(mirrors: list[MirrorStatus]) -> Table:
    from rich.table import Table

    table = Table(title="mirrord", expand=True, title_justify="left")
    for name in ("MIRROR", "ACTIVITY", "LAG", "RPO", "NEXT", "LAST", ""):
        table.add_column(name, no_wrap=name != "", ratio=2 if name == "" else None)
    now_ns = clock.now_ns()
    for each in mirrors:
        last, running = each.reading.last_transfer, each.running
        alarms = [alarm.text for alarm in each.alarms] or each.problems
        note = alarms[0] if alarms else each.lag.forecast
        if running and running.progress.rate_bytes_s:
            note = f"{format_size(running.progress.rate_bytes_s)}/s  {note}"
        used = each.lag.used
        table.add_row(
            each.name,
            activity_of(each) if each.reading.state is State.MIRRORED else each.state,
            format_duration(each.lag_s) if each.lag_s is not None else "-",
            f"{used:.0%}" if used is not None else "-",
            _until(each.next_ns, now_ns),
            f"{format_size(last.stream_bytes)} in {format_duration(last.duration_ms / 1000)}"
            if last
            else "-",
            note,
            style="red" if alarms else None,
        )
    return table


def _until(at_ns: int | None, now_ns: int) -> str:
    if at_ns is None:
        return "-"
    return f"in {format_duration(max(0.0, (at_ns - now_ns) / 1e9))}"
