"""Opening a trace to read it repeatedly, whether it is stored by mirrord or of a foreign format.

A foreign trace is first imported into a temporary stored one (`TMPDIR`, or `options.scratch`), so
readers always get batches ordered by time and can start again at no cost.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from mirrord.core.errors import NotFound, UsageError
from mirrord.traces import filters
from mirrord.traces.importing import import_trace
from mirrord.traces.model import Batch, Facts
from mirrord.traces.options import ReadOptions
from mirrord.traces.parsing import Progress
from mirrord.traces.store import READ_ROWS, TraceFile, TraceWriter, scratch_folder, trace_errors

_PARQUET = b"PAR1"
#: Options that apply only to reading foreign traces.
_FOREIGN = (
    "format", "time_unit", "addr_unit", "size_unit", "write_flag", "columns", "only", "partial",
    "skip_bad",
)  # fmt: skip


class Trace:
    """A trace that can be read repeatedly; a context manager (or call `close`).

    facts, records, first_ns, last_ns: those of the stored trace, after filters.
    """

    def __init__(self, stored: TraceFile, scratch: Path | None = None) -> None:
        self._stored, self._scratch = stored, scratch

    @property
    def facts(self) -> Facts:
        """The metadata of the trace."""
        return self._stored.facts

    @property
    def records(self) -> int:
        """Number of records."""
        return self._stored.records

    @property
    def first_ns(self) -> int:
        """Time of the first record, nanoseconds since the trace's zero."""
        return self._stored.first_ns

    @property
    def last_ns(self) -> int:
        """Time of the last record."""
        return self._stored.last_ns

    @property
    def findings(self) -> list[dict[str, str]]:
        """The findings of the import: each a name, a text, and the option that handles it."""
        return list(self._stored.stored.get("findings", []))

    @property
    def path(self) -> Path:
        """The stored trace (of a foreign format: the temporary one, until `close`)."""
        return self._stored.path

    def batches(
        self, columns: Sequence[str] | None = None, rows: int = READ_ROWS
    ) -> Iterator[Batch]:
        """All records, ordered by time; see `TraceFile.batches`."""
        return self._stored.batches(columns, rows)

    def close(self) -> None:
        """Remove the temporary files."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def is_stored(path: str | Path) -> bool:
    """Whether it is a Parquet file; `-`, the standard input, is not. `NotFound` when the file does
    not exist.
    """
    if str(path) == "-":
        return False
    with trace_errors(path), Path(path).open("rb") as opened:
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
    format: str | None = None,
    options: ReadOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Trace:
    """A stored trace, or sources of a foreign format (several: parts of one trace).

    Errors: `NotFound`, `Damaged`, `Refused`, `UsageError`, `NoSpace` (of the folder for scratch
    files).
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    options = options or ReadOptions()
    if format is not None:
        options = _with_format(options, format)
    if not paths:
        raise NotFound("no trace was given")
    if len(paths) == 1 and is_stored(paths[0]):
        return _stored(TraceFile(paths[0]), options)
    scratch = _scratch_folder(options)
    try:
        target = scratch / "trace.parquet"
        import_trace(paths, target, options, progress=progress, durable=False)
        return Trace(TraceFile(target), scratch)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _scratch_folder(options: ReadOptions) -> Path:
    return scratch_folder(options.scratch or tempfile.gettempdir(), "mirrord-trace-")


def _with_format(options: ReadOptions, format: str) -> ReadOptions:
    from dataclasses import replace

    return replace(options, format=format)


def _stored(trace: TraceFile, options: ReadOptions) -> Trace:
    """A stored trace; with filters, a temporary copy to which they are applied."""
    if not options.filters:
        return Trace(trace)
    scratch = _scratch_folder(options)
    try:
        target = scratch / "trace.parquet"
        filter_trace(trace, target, options, durable=False)
        return Trace(TraceFile(target), scratch)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def filter_trace(
    trace: TraceFile,
    target: Path,
    options: ReadOptions,
    *,
    durable: bool = True,
    begin_ns: int | None = None,
    end_ns: int | None = None,
) -> TraceFile:
    """Store what filters (and a span of time) leave of a stored trace; its zero is unchanged.

    begin_ns, end_ns: nanoseconds since the trace's zero, half open; None: unbounded.
    """
    from dataclasses import replace

    from mirrord.traces.survey import Seen, best_shift, survey

    facts, batches = trace.facts, trace.batches()
    volumes, notes = facts.volumes, dict(facts.notes)
    if options.volume is not None:
        index = filters.volume_index(volumes, options.volume, str(trace.path))
        batches = (filters.of_volume(batch, index) for batch in batches)
        volumes = (options.volume,)
    if begin_ns is not None or end_ns is not None:
        begin = -(1 << 62) if begin_ns is None else begin_ns
        batches = filters.between(batches, begin, 1 << 62 if end_ns is None else end_ns)
    shift = options.align_shift
    if shift == "auto":
        seen: Seen = survey(trace.batches())
        shift = best_shift(seen)
    if shift:
        batches = filters.moved(batches, shift)
        notes["align_shift_bytes"] = str(shift + int(notes.get("align_shift_bytes", 0)))
    if options.dedup_s:
        batches = filters.deduplicated(batches, options.dedup_s)
        notes["option_dedup_s"] = str(options.dedup_s)
    with TraceWriter(target, replace(facts, volumes=volumes, notes=notes), durable=durable) as made:
        for batch in batches:
            made.write(batch)
    return TraceFile(target)
