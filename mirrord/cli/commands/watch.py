"""Show mirrors, updated until Ctrl-C.

Panel: Monitoring 6

Shows all mirrors in a live table: activity, lag, the window of [semi-sync](live-modes.md#semi-sync)
and how much of it is used, the used share of the RPO, the next run, the last transfer, alarms. With
NAME that mirror only; of a [live mirror](live-modes.md) its mode, window, latencies, rates, what
is tracked, unanswered and to be copied, and since the command began the mode, the lag in bytes and
time, M and the latency over time. It needs a terminal; Ctrl-C ends it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mirrord.cli.options import finite
from mirrord.cli.output import running
from mirrord.control.commands.status import status
from mirrord.control.livetext import rates, window
from mirrord.control.statustext import activity_of, details
from mirrord.core.errors import Aborted, UsageError
from mirrord.core.states import State
from mirrord.core.units import format_duration, format_size
from mirrord.system import clock

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from mirrord.core.live import LiveReading
    from mirrord.core.status import MirrorStatus


def watch(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One mirror; default: all.")
    ] = None,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            min=0.2,
            max=3600,
            callback=finite,
            help="Seconds between two updates of the table.",
        ),
    ] = 1.0,
) -> None:
    if not sys.stdout.isatty():
        raise UsageError(
            "'mirrord watch' needs a terminal", hint="'mirrord status' prints the table once."
        )
    from rich.console import Group
    from rich.live import Live

    from mirrord.cli.livecourse import LiveCourse

    with running(quiet=True) as runner, Live(auto_refresh=False, screen=True) as live:
        before: LiveReading | None = None
        course = LiveCourse()
        try:
            while True:
                found = runner.run(status(name))
                reading = found[0].reading.live if name and found else None
                if reading is None:
                    shown: RenderableType = _table(found)
                else:
                    course.add(reading)
                    facts = _details(found[0], before)
                    shown = Group(facts, course.lines(live.console.width))
                before = reading
                live.update(shown, refresh=True)
                clock.sleep_s(every)
        except Aborted as error:
            if error.why != "SIGINT":  # Ctrl-C is the way out, not a failure
                raise


def _details(found: MirrorStatus, before: LiveReading | None) -> Text:
    """One live mirror. before: what was read of it last."""
    from rich.text import Text

    lines = details(found)
    if before is not None and found.reading.live is not None:
        lines.append(f"  rates        {rates(before, found.reading.live)}")
    return Text("\n".join(lines), style="" if found.healthy else "red")


def _table(mirrors: list[MirrorStatus]) -> Table:
    from rich.table import Table

    table = Table(title="mirrord", expand=True, title_justify="left")
    windows = [window(each.reading.live) for each in mirrors]
    shown = ["WINDOW"] if any(windows) else []
    for name in ("MIRROR", "ACTIVITY", "LAG", *shown, "RPO", "NEXT", "LAST", ""):
        table.add_column(name, no_wrap=name != "", ratio=2 if name == "" else None)
    now_ns = clock.now_ns()
    for each, its_window in zip(mirrors, windows, strict=True):
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
            *([its_window or "-"] if shown else []),
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
