"""Opening a trace to read it repeatedly, whether it is stored by mirrord or of a foreign format.

A foreign trace is first imported into a temporary stored one (`TMPDIR`, or `options.scratch`), so
readers always get batches ordered by time and can start again at no cost.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirrord.core.errors import NoSpace, UsageError
from mirrord.traces import filters
from mirrord.traces.importing import import_trace
from mirrord.traces.model import SLICE_OF
from mirrord.traces.options import ReadOptions
from mirrord.traces.parsing import Progress
from mirrord.traces.store import TraceFile, TraceWriter, scratch_folder, trace_errors
from mirrord.traces.survey import best_shift, survey

_PARQUET = b"PAR1"
#: Options that apply only to reading foreign traces.
_FOREIGN = (
    "format", "time_unit", "addr_unit", "size_unit", "write_flag", "columns", "only", "partial",
    "skip_bad",
)  # fmt: skip


def is_stored(path: str | Path) -> bool:
    """Whether it is a Parquet file; `-`, the standard input, is not, nor is a pipe, from which
    nothing can be read twice. `NotFound` when the file does not exist.
    """
    with trace_errors(path):
        if str(path) == "-" or Path(path).is_fifo():
            return False
        with Path(path).open("rb") as opened:
            return opened.read(4) == _PARQUET


def refuse_foreign(paths: Sequence[str], options: ReadOptions) -> None:
    """`UsageError` when options apply only to foreign traces, and all of these are stored ones: the
    options would have no effect. (Filters, such as `--dedup`, apply to both.)
    """
    given = [name for name in _FOREIGN if name in options.given()]
    if not given or not all(Path(each).is_file() for each in paths):
        return
    if all(map(is_stored, paths)):
        option = f"--{given[0].replace('_', '-')}"
        raise UsageError(
            f"{paths[0]} is a stored trace: {option} applies only to foreign traces",
            hint=f"Omit it, or import the source again with {option}.",
        )


def open_trace(
    path: str | Path | Sequence[str | Path],
    options: ReadOptions | None = None,
    *,
    progress: Progress | None = None,
) -> TraceFile:
    """A stored trace, or sources of a foreign format (several: parts of one trace). To be closed:
    what was imported, or filtered, is in a temporary folder.

    Errors: `NotFound`, `Damaged`, `Refused`, `UsageError`, `NoSpace` (of the folder for scratch
    files).
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    options = options or ReadOptions()
    stored = TraceFile(paths[0]) if len(paths) == 1 and is_stored(paths[0]) else None
    if stored is not None and not options.filters:
        return stored
    scratch = scratch_folder(options.scratch or tempfile.gettempdir(), "mirrord-trace-")
    target = Path(scratch.name, "trace.parquet")
    try:
        if stored is not None:
            filter_trace(stored, target, options, durable=False)
        else:
            import_trace(paths, target, options, progress=progress, durable=False)
        return TraceFile(target, scratch)
    except BaseException as error:
        scratch.cleanup()
        if isinstance(error, NoSpace):
            error.hint = "Free some space there, or choose another folder with --scratch."
        raise


def filter_trace(
    trace: TraceFile,
    target: Path,
    options: ReadOptions,
    *,
    durable: bool = True,
    begin_ns: int | None = None,
    end_ns: int | None = None,
    without_ns: tuple[int, int] | None = None,
) -> TraceFile:
    """Store what filters (and a span of time) leave of a stored trace; its zero is unchanged.

    begin_ns, end_ns: nanoseconds since the trace's zero, half open; None: unbounded. without_ns: a
    span that is left out. A part of a trace notes of which one, so that parts can be merged.
    """
    facts, batches = trace.facts, trace.batches()
    volumes, notes = facts.volumes, dict(facts.notes)
    if options.volume is not None:
        index = filters.volume_index(volumes, options.volume, str(trace.path))
        batches = (filters.of_volume(batch, index) for batch in batches)
        volumes = (options.volume,)
    if begin_ns is not None or end_ns is not None:
        begin = -(1 << 62) if begin_ns is None else begin_ns
        batches = filters.between(batches, begin, 1 << 62 if end_ns is None else end_ns)
    if without_ns is not None:
        batches = filters.without(batches, *without_ns)
    if begin_ns is not None or end_ns is not None or without_ns is not None:
        whole = f"{facts.name}, {trace.records} records, {trace.first_ns} to {trace.last_ns} ns"
        notes.setdefault(SLICE_OF, whole)
    shift = options.align_shift
    if shift == "auto":
        shift = best_shift(survey(trace.batches()))
    if shift:
        notes["align_shift_bytes"] = str(shift + int(notes.get("align_shift_bytes", 0)))
    if options.dedup_s:
        notes["option_dedup_s"] = str(options.dedup_s)
    with TraceWriter(target, replace(facts, volumes=volumes, notes=notes), durable=durable) as made:
        for batch in filters.filtered(batches, shift, options.dedup_s):
            made.write(batch)
    return TraceFile(target)
