"""`mirrord trace generate`: a synthetic workload with a known result, for what-if analysis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mirrord.cli.options import Json, finite
from mirrord.cli.output import answer
from mirrord.cli.progress import ProgressLine
from mirrord.cli.reading import Output, need_analysis
from mirrord.core.errors import UsageError
from mirrord.core.units import format_duration, parse_duration

if TYPE_CHECKING:
    from mirrord.traces.generators import Workload

Kind = Literal["hot-spots", "sequential", "database", "files"]
#: Period of the periodic workloads, seconds.
_PERIOD_S = 60.0
#: Update intervals for which the known result is printed, seconds.
_INTERVALS_S = (60, 300, 900, 1800, 3600, 21600, 43200, 86400)


def generate(
    kind: Annotated[
        Kind, typer.Argument(metavar="KIND", help="hot-spots, sequential, database or files.")
    ],
    output: Output,
    records: Annotated[
        int, typer.Option("--records", min=1, help="Approximate number of records.")
    ] = 1_000_000,
    blocks: Annotated[
        int, typer.Option("--blocks", min=1, help="Volume size in 4 KiB blocks.")
    ] = 1_000_000,
    duration: Annotated[
        str, typer.Option("--duration", metavar="TIME", help="The time that the trace covers.")
    ] = "1d",
    skew: Annotated[
        float, typer.Option("--skew", callback=finite, help="hot-spots: Zipf exponent.")
    ] = 0.99,
    volumes: Annotated[
        int, typer.Option("--volumes", min=1, help="hot-spots: number of volumes.")
    ] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 1,
    name: Annotated[str | None, typer.Option("--name", help="Name of the trace.")] = None,
    as_json: Json = False,
) -> None:
    """Generate a synthetic trace with a known result: hot-spots, sequential, database or files."""
    need_analysis()
    from mirrord.traces.model import BLOCK
    from mirrord.traces.store import TraceWriter

    duration_s = parse_duration(duration)
    workload = _workload(kind, records, blocks, duration_s, skew, volumes, seed)
    facts = replace(workload.facts, name=name or workload.facts.name)
    with TraceWriter(output, facts) as writer, ProgressLine(quiet=as_json) as line:
        for batch in workload.batches():
            writer.write(batch)
            # (For the progress line each record counts as one block.)
            done, all_of_it = writer.records * BLOCK, workload.records * BLOCK
            line.reading(facts.name, done, all_of_it, writer.records)
    shares = {s: workload.share(s) for s in _answered(kind, duration_s)}
    known = [
        {
            "seconds": seconds,
            "percent": {
                "update_in_place": 100 * share.update_in_place,
                "active_map": 100 * share.active_map,
            },
        }
        for seconds, share in shares.items()
    ]
    document = {
        "status": "done",
        "file": str(output),
        "records": workload.records,
        "volumes": list(facts.volumes),
        "known": known,
    }
    lines = [
        f"{workload.records:,} records are stored in {output}.",
        *(
            f"every {format_duration(seconds)}: {100 * share.active_map:.1f} % of all block writes"
            for seconds, share in shares.items()
        ),
    ]
    answer(document, lines, as_json=as_json)


def _workload(
    kind: Kind, records: int, blocks: int, duration_s: float, skew: float, volumes: int, seed: int
) -> Workload:
    """The requested generator; `UsageError` for values that cannot be combined."""
    from mirrord.traces import generators

    if kind == "hot-spots":
        return generators.HotSpots(records, blocks, duration_s, skew, seed, volumes)
    if kind == "sequential":
        return generators.Sequential(records, blocks, duration_s)
    periods = int(duration_s // _PERIOD_S)
    half = records // max(periods, 1) // 2
    if periods < 1 or half < 16:
        raise UsageError(
            f"'{kind}' needs at least one minute, and 32 records per minute",
            hint="Give a longer --duration, or more --records.",
        )
    if kind == "files":
        return generators.Files(periods, _PERIOD_S, half, half * 2 // 5)
    pages = max(1, min(blocks, half // 5))
    return generators.LogAndDatabase(periods, _PERIOD_S, half // 8 * 8, pages, half // pages, seed)


def _answered(kind: Kind, duration_s: float) -> list[int]:
    """The intervals within its duration for which the result of a workload is known."""
    most_s = min(duration_s, 10 * _PERIOD_S) if kind == "files" else duration_s
    return [seconds for seconds in _INTERVALS_S if seconds <= most_s]
