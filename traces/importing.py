"""Import: sources of any known format become one stored trace, ordered by time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirrord.core.errors import IoFailed, NotFound, Refused
from mirrord.traces import filters
from mirrord.traces.model import Batch, Facts, Op
from mirrord.traces.options import ReadOptions
from mirrord.traces.ordering import WINDOW_ROWS, Sorter
from mirrord.traces.parsing import Parsing, Progress
from mirrord.traces.store import TraceFile, TraceWriter, scratch_folder, trace_errors
from mirrord.traces.survey import Seen, Surveyor, best_shift, survey
from mirrord.traces.traps import Finding, findings


@dataclass(frozen=True)
class Imported:
    """The result of an import. seen, findings: of the source itself, before any filter."""

    facts: Facts
    records: int
    seen: Seen
    findings: list[Finding]
    #: Bytes added to each offset.
    shift_bytes: int


def import_trace(
    sources: Sequence[str | Path],
    target: str | Path,
    options: ReadOptions | None = None,
    *,
    name: str | None = None,
    progress: Progress | None = None,
    durable: bool = True,
    window_rows: int = WINDOW_ROWS,
) -> Imported:
    """Read sources of one format and store them as one trace at `target`, replacing what is there.

    Memory is bounded (`window_rows`, and the blocks of two windows of --dedup) whatever the size;
    records far out of order are sorted on disk, in `options.scratch` or next to the target.
    On error nothing is left behind. Errors: of the sources (`NotFound`, `Damaged`, `Refused`,
    `UsageError`), and of the target's file system (`NoSpace`, `IoFailed`).
    """
    options = options or ReadOptions()
    target = Path(target)
    with trace_errors(target):
        if not target.parent.is_dir():
            raise NotFound("there is no such folder", where=str(target.parent))
    # (By default a folder next to the target: on the same file system.)
    scratch = scratch_folder(options.scratch or target.parent, ".mirrord-trace-")
    try:
        return _Import(target, options, name, scratch, durable, window_rows).run(sources, progress)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Import:
    """One import."""

    def __init__(
        self,
        target: Path,
        options: ReadOptions,
        name: str | None,
        scratch: Path,
        durable: bool,
        window_rows: int,
    ) -> None:
        self._target, self._options, self._name = target, options, name
        self._scratch, self._durable, self._window = scratch, durable, window_rows

    def run(self, sources: Sequence[str | Path], progress: Progress | None) -> Imported:
        """Parse and sort; then apply the filters that need sorted records, in a second pass."""
        options = self._options
        parsing = Parsing(sources, options, progress)
        surveyor = Surveyor()
        filtered = bool(options.align_shift or options.dedup_s)
        first = self._scratch / "sorted" if filtered else self._target
        sorter = Sorter(
            first,
            Facts("", "", ()),
            self._scratch,
            durable=self._durable and not filtered,
            window_rows=self._window,
        )
        try:
            self._read(parsing, surveyor, sorter)
            writer = sorter.finish()
        except BaseException:
            sorter.discard()
            raise
        seen = surveyor.result()
        if writer is None:
            raise _no_records(parsing)
        facts = self._facts(parsing, sorter.first_ns)
        return self._store(parsing, seen, facts, writer, filtered)

    def _read(self, parsing: Parsing, surveyor: Surveyor, sorter: Sorter) -> None:
        for batch in parsing.batches():
            if self._options.volume is not None:
                batch = self._one_volume(parsing, batch)
            surveyor.see(batch)
            sorter.add(batch)
        if self._options.volume is not None:  # there may be no volume of that name
            filters.volume_index(parsing.volumes, self._options.volume, str(parsing.paths[0]))

    def _one_volume(self, parsing: Parsing, batch: Batch) -> Batch:
        names, wanted = parsing.volumes, self._options.volume
        index = names.index(wanted) if wanted in names else len(names)
        return filters.of_volume(batch, index)

    def _facts(self, parsing: Parsing, first_ns: int) -> Facts:
        assert parsing.format is not None
        volumes = parsing.volumes if self._options.volume is None else [self._options.volume]
        notes = {
            "sorted": "yes",
            "source": ", ".join(str(path) for path in parsing.paths)[:1000],
            "source_zero_ns": str(parsing.zero_ns + first_ns),
        }
        notes |= {f"option_{key}": value for key, value in self._options.given().items()}
        notes |= {text.replace(" ", "_"): str(count) for text, count in parsing.counts.items()}
        epoch = parsing.epoch_ns
        return Facts(
            name=self._name or parsing.name,
            source_format=parsing.format.name,
            volumes=tuple(volumes),
            epoch_ns=None if epoch is None else epoch + first_ns,
            notes=notes,
        )

    def _store(
        self, parsing: Parsing, seen: Seen, facts: Facts, writer: TraceWriter, filtered: bool
    ) -> Imported:
        assert parsing.format is not None
        odd = findings(
            seen,
            parsing.counts,
            epoch_ns=facts.epoch_ns,
            format_name=parsing.format.name,
            unsure=self._guessed(parsing),
        )
        wanted = self._options.align_shift
        shift = best_shift(seen) if wanted == "auto" else wanted
        more = {"seen": seen.as_dict(), "findings": [each.as_dict() for each in odd]}
        if shift:
            facts.notes["align_shift_bytes"] = str(shift)
        writer.facts, writer.more = facts, dict(more)
        writer.close()
        records = writer.records
        if filtered:
            with TraceWriter(self._target, facts, durable=self._durable) as last:
                last.more = dict(more)
                for batch in self._filtered(TraceFile(writer.path).batches(), shift):
                    last.write(batch)
            records = last.records
        return Imported(facts, records, seen, odd, shift)

    def _filtered(self, batches: Iterator[Batch], shift: int) -> Iterator[Batch]:
        # The grid first: repetitions are detected by block.
        if shift:
            batches = filters.moved(batches, shift)
        if self._options.dedup_s:
            batches = filters.deduplicated(batches, self._options.dedup_s)
        return batches

    def _guessed(self, parsing: Parsing) -> bool:
        """Whether units were guessed, as no option sets them."""
        options = self._options
        given = options.format or options.addr_unit or options.time_unit or options.size_unit
        return parsing.format is not None and parsing.format.unsure and not given


def _no_records(parsing: Parsing) -> Refused | IoFailed:
    """The error for a source without records."""
    where = str(parsing.paths[0])
    if parsing.options.volume is not None:
        return Refused(
            f"there is no record of volume '{parsing.options.volume}'",
            where=where,
            hint=f"Volumes are: {', '.join(parsing.volumes[:20])}.",
        )
    others = parsing.counts.get("events of other actions left out", 0)
    if others:
        wanted = (parsing.options.only or "Q").upper()
        return Refused(
            f"the source has no event of action {wanted}",
            where=where,
            why=f"{others:,} events have other actions",
            hint="Try --only Q (queued), C (completed) or D (issued).",
        )
    return Refused(
        "the source has no records",
        where=where,
        hint="Check that the recording is complete and --format is right.",
    )


def inspect_source(
    sources: Sequence[str | Path],
    options: ReadOptions | None = None,
    progress: Progress | None = None,
) -> tuple[Facts, Seen, list[Finding]]:
    """What `mirrord trace info` shows of a source, without storing anything: one pass over it."""
    parsing = Parsing(sources, options or ReadOptions(), progress)
    seen = survey(parsing.batches())
    if parsing.format is None or not seen.count:
        raise _no_records(parsing)
    epoch = parsing.epoch_ns
    facts = Facts(
        parsing.name,
        parsing.format.name,
        tuple(parsing.volumes),
        None if epoch is None else epoch + seen.first_ns,
        {text.replace(" ", "_"): str(count) for text, count in parsing.counts.items()},
    )
    unsure = parsing.format.unsure and parsing.options.format is None
    return (
        facts,
        seen,
        findings(
            seen,
            parsing.counts,
            epoch_ns=facts.epoch_ns,
            format_name=parsing.format.name,
            unsure=unsure,
        ),
    )


def inspect_stored(
    paths: Sequence[str | Path], options: ReadOptions, progress: Progress | None = None
) -> tuple[Facts, Seen, list[Finding], list[dict[str, str]]]:
    """The same of a stored trace, or of what filters leave of a foreign one; and the findings of
    its source that no longer apply.
    """
    from mirrord.traces.reading import is_stored, open_trace

    with open_trace(paths, options=options, progress=progress) as trace:
        seen, facts = survey(trace.batches()), trace.facts
        stored = len(paths) == 1 and is_stored(paths[0])
        # (A filtered trace is a new one, without the findings of its import.)
        before = TraceFile(paths[0]).stored.get("findings", []) if stored else trace.findings
    odd = findings(seen, {}, epoch_ns=facts.epoch_ns, format_name=facts.source_format)
    still = {each.name for each in odd}
    return facts, seen, odd, [each for each in before if each["name"] not in still]


def first_records(
    path: str | Path, options: ReadOptions, count: int
) -> tuple[Facts, list[dict[str, int | str]]]:
    """The first records as plain values; a foreign source is read in its own order, only so far."""
    from mirrord.traces.reading import is_stored, open_trace

    if is_stored(path):
        with open_trace(path, options=options) as trace:
            rows = _rows(trace.batches(rows=max(count, 1024)), lambda: trace.facts.volumes, count)
            return trace.facts, rows
    parsing = Parsing([path], options)
    rows = _rows(parsing.batches(), lambda: parsing.volumes, count)
    if parsing.format is None or not rows:
        raise _no_records(parsing)
    return Facts(parsing.name, parsing.format.name, tuple(parsing.volumes)), rows


def _rows(
    batches: Iterator[Batch], volumes: Callable[[], Sequence[str]], count: int
) -> list[dict[str, int | str]]:
    rows: list[dict[str, int | str]] = []
    for batch in batches:
        for at in range(min(len(batch), count - len(rows))):
            rows.append(
                {
                    "time_ns": int(batch.time_ns[at]),
                    "volume": volumes()[int(batch.volume[at])],
                    "op": Op(int(batch.op[at])).name.lower(),
                    "offset": int(batch.offset[at]),
                    "length": int(batch.length[at]),
                    "latency_ns": int(batch.latency_ns[at]),
                }
            )
        if len(rows) >= count:
            break
    return rows
