"""Import, record and convert traces of a workload (docs/traces.md).

Panel: Planning 1

For [traces of a workload](traces.md). A TRACE is a stored one (Parquet) or a source of any
[format](traces.md#formats), a SOURCE is a file or `-`. `import` reports the
[findings](traces.md#findings) of its sources; `generate` makes a synthetic workload whose [answer
is known](replay.md#generated-workloads); `record` records a live volume or a block device
([recording.md](recording.md)). All but `formats`, `generate` and `record` take the options for
reading.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mirrord.cli.commands.trace_generate import generate
from mirrord.cli.commands.trace_record import record
from mirrord.cli.options import Json
from mirrord.cli.output import answer
from mirrord.cli.progress import ProgressLine
from mirrord.cli.reading import Output, need_analysis, reads_traces
from mirrord.cli.tracetext import described, row_text
from mirrord.core.errors import Refused, UsageError
from mirrord.core.units import format_duration, parse_duration
from mirrord.traces.options import ReadOptions

Sources = Annotated[
    list[str], typer.Argument(metavar="SOURCE…", help="Files in one format; - is standard input.")
]
Trace = Annotated[
    str, typer.Argument(metavar="TRACE", help="A stored trace, or a file in a known format.")
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the trace; default: the file's.")]


@reads_traces
def import_(
    sources: Sources, output: Output, options: ReadOptions, name: Name = None, as_json: Json = False
) -> None:
    """Store a trace of any known format, ordered by time, and report its anomalies."""
    from mirrord.traces.importing import import_trace
    from mirrord.traces.writing import check_apart

    check_apart(output, sources)
    with ProgressLine(quiet=as_json) as line:
        made = import_trace(sources, output, options, name=name, progress=line.reading)
    found: dict[str, Any] = {
        "status": "done", "file": str(output), "stored_records": made.records,
        "align_shift_bytes": made.shift_bytes, **_document(made.facts, made.seen, made.findings),
    }  # fmt: skip
    lines = [
        described(made.facts, made.seen, made.findings),
        f"{made.records:,} records are stored in {output}.",
    ]
    answer(found, lines, as_json=as_json)


@reads_traces
def info(traces: Sources, options: ReadOptions, as_json: Json = False) -> None:
    """Show the contents of a trace and its anomalies, each with the option that handles it."""
    from mirrord.traces.importing import inspect_source, inspect_stored
    from mirrord.traces.reading import is_stored

    handled: list[dict[str, str]] = []
    stored = len(traces) == 1 and is_stored(traces[0])
    with ProgressLine(quiet=as_json) as line:
        if stored or options.filters:
            facts, seen, findings, handled = inspect_stored(traces, options, line.reading)
        else:
            facts, seen, findings = inspect_source(traces, options, line.reading)
    document = {**_document(facts, seen, findings), "source_findings": handled}
    answer(document, [described(facts, seen, findings, handled)], as_json=as_json)


def _document(facts: Any, seen: Any, findings: Any) -> dict[str, Any]:
    """Facts, numbers and findings for `--json`."""
    return {
        **asdict(facts),
        "volumes": list(facts.volumes),
        **asdict(seen),
        "span_s": seen.span_s,
        "findings": [asdict(each) for each in findings],
    }


@reads_traces
def head(
    trace: Trace,
    options: ReadOptions,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many records.")] = 10,
    as_json: Json = False,
) -> None:
    """Show the first records: of a foreign source in file order, of a stored trace by time."""
    from mirrord.traces.importing import first_records

    facts, rows = first_records(trace, options, count)
    document = {"name": facts.name, "format": facts.source_format, "records": rows}
    answer(document, map(row_text, rows), as_json=as_json)


@reads_traces
def convert(
    source: Trace,
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="Output file; compressed if it ends in .gz or .zst."),
    ],
    options: ReadOptions,
    to: Annotated[
        str | None,
        typer.Option("--to", help="parquet, csv, blkparse, fio3 or msr; default: by suffix."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a trace in another format."""
    from mirrord.traces.importing import import_trace
    from mirrord.traces.reading import filter_trace, is_stored, open_trace
    from mirrord.traces.store import TraceFile
    from mirrord.traces.writing import Written, check_apart, check_file, format_of, write_text

    kind = format_of(target, to)
    check_file(target)
    check_apart(target, [source])
    with ProgressLine(quiet=as_json) as line:
        if kind != "parquet":
            with open_trace(source, options=options, progress=line.reading) as opened:
                written = write_text(opened.batches(), opened.facts, target, kind)
        elif is_stored(source):
            written = Written(filter_trace(TraceFile(source), target, options).records)
        else:
            made = import_trace([source], target, options, progress=line.reading)
            written = Written(made.records)
    lines = [f"{written.records:,} records written to {target} as {kind}."]
    if left := sum(written.left_out.values()):
        each = ", ".join(f"{count:,} {name}" for name, count in written.left_out.items())
        lines.append(f"{left:,} records left out, which {kind} cannot represent: {each}.")
    document = {
        "status": "done",
        "file": str(target),
        "format": kind,
        "records": written.records,
        "left_out": written.left_out,
    }
    answer(document, lines, as_json=as_json)


@reads_traces
def merge(
    traces: Sources,
    output: Output,
    options: ReadOptions,
    align: Annotated[
        Literal["clock", "start"],
        typer.Option("--align", help="Align by time of day, or let all begin at 0."),
    ] = "clock",
    same_volumes: Annotated[
        bool, typer.Option("--same-volumes", help="Treat volumes with the same name as one.")
    ] = False,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Merge several traces into one, such as those of a host's disks."""
    from mirrord.traces.merging import merge_traces
    from mirrord.traces.reading import open_trace
    from mirrord.traces.writing import check_apart

    if len(traces) < 2:
        raise UsageError("only one trace was given", hint="Give all traces to be merged.")
    check_apart(output, traces)
    with ExitStack() as stack, ProgressLine(quiet=as_json) as line:
        opened = [
            stack.enter_context(open_trace(each, options=options, progress=line.reading))
            for each in traces
        ]
        made = merge_traces(opened, output, align=align, same_volumes=same_volumes, name=name)
    document = {
        "status": "done",
        "file": str(output),
        "records": made.records,
        "volumes": list(made.facts.volumes),
    }
    text = f"{made.records:,} records of {len(traces)} traces are stored in {output}."
    answer(document, [text], as_json=as_json)


@reads_traces
def slice_(
    trace: Trace,
    output: Output,
    options: ReadOptions,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Start, from the trace's zero, e.g. 90s."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End, exclusive.")] = None,
    without: Annotated[
        str | None,
        typer.Option(metavar="FROM..TO", help="Leave out this span of time."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a part of a trace to a new one: a span of time, or one volume (--volume)."""
    from mirrord.traces.reading import filter_trace, is_stored, open_trace
    from mirrord.traces.writing import check_apart

    if not is_stored(trace):  # (a stored trace may be replaced by its slice)
        check_apart(output, [trace])
    begin_s = None if begin is None else parse_duration(begin)
    end_s = None if end is None else parse_duration(end)
    if begin_s is not None and end_s is not None and end_s <= begin_s:
        raise UsageError("--to is not later than --from")
    without_ns = None if without is None else _span(without)
    with (
        ProgressLine(quiet=as_json) as line,
        open_trace(trace, options=options, progress=line.reading) as opened,
    ):
        first_ns, last_ns = opened.first_ns, opened.last_ns
        before = end_s is not None and end_s * 1e9 <= first_ns
        after = (begin_s or 0) * 1e9 > last_ns
        every = without_ns is not None and without_ns[0] <= first_ns and last_ns < without_ns[1]
        if before or after or every:
            raise Refused(
                "there is no record between these times",
                where=trace,
                hint=f"The trace has records from {format_duration(first_ns / 1e9)} to "
                f"{format_duration(last_ns / 1e9)}.",
            )
        made = filter_trace(
            opened,
            output,
            ReadOptions(),
            begin_ns=None if begin_s is None else round(begin_s * 1e9),
            end_ns=None if end_s is None else round(end_s * 1e9),
            without_ns=without_ns,
        )
    document = {
        "status": "done",
        "file": str(output),
        "records": made.records,
        "first_ns": made.first_ns,
        "last_ns": made.last_ns,
    }
    answer(document, [f"{made.records:,} records are stored in {output}."], as_json=as_json)


def _span(text: str) -> tuple[int, int]:
    """Nanoseconds of `FROM..TO`; `UsageError`."""
    begin, dots, end = text.partition("..")
    if not dots:
        raise UsageError(
            f"'{text}' is not a span",
            hint="Give its start and its end, such as 36m and 37m, joined by two periods.",
        )
    begin_ns, end_ns = (round(parse_duration(each) * 1e9) for each in (begin, end))
    if end_ns <= begin_ns:
        raise UsageError(f"the span '{text}' does not end after its beginning")
    return begin_ns, end_ns


def formats(as_json: Json = False) -> None:
    """List the formats that can be read."""
    need_analysis()
    from mirrord.traces.formats import FORMATS

    found = [
        {"name": each.name, "description": each.description, "options": list(each.takes)}
        for each in FORMATS.values()
    ]
    width = max(map(len, FORMATS))
    lines = (f"{each.name:{width}}  {each.description}" for each in FORMATS.values())
    answer({"formats": found}, lines, as_json=as_json)


#: The commands of this group.
COMMANDS = {
    "import": import_,
    "info": info,
    "head": head,
    "convert": convert,
    "merge": merge,
    "slice": slice_,
    "formats": formats,
    "record": record,
    "generate": generate,
}
