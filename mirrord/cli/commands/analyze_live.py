"""`mirrord analyze live`: what a live mirror did, from a recording of its data path."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from mirrord.cli.commands.analyze_run import Out, needs_extras, publish
from mirrord.cli.options import Json
from mirrord.cli.reading import need_analysis
from mirrord.traces.options import ReadOptions

Recordings = Annotated[
    list[str],
    typer.Argument(metavar="RECORDING…", help="Made by 'mirrord trace record MIRROR'."),
]


@needs_extras()
def live(traces: Recordings, out: Out = None, as_json: Json = False) -> None:
    """Show what recorded live mirrors did: modes, latency, lag and M over time."""
    given = {**locals(), "options": ReadOptions()}
    need_analysis()
    from mirrord.analysis.recorded import read
    from mirrord.analysis.reports.common import distinct
    from mirrord.analysis.reports.live import report

    def made() -> Any:
        found = [read(path) for path in traces]
        names = distinct([each.name for each in found])
        return report([replace(each, name=name) for each, name in zip(found, names, strict=True)])

    publish(live, given, made)
