"""Import: sources of any known format become one stored trace, ordered by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from mirrord.core.errors import Damaged, IoFailed, NotFound, Refused
from mirrord.traces import filters
from mirrord.traces.batches import rows
from mirrord.traces.model import Batch, Facts, Op
from mirrord.traces.options import ReadOptions
from mirrord.traces.ordering import WINDOW_ROWS, Sorter
from mirrord.traces.parsing import Parsing, Progress
from mirrord.traces.store import READ_ROWS, TraceFile, TraceWriter, scratch_folder, trace_errors
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
    with scratch_folder(options.scratch or target.parent, ".mirrord-trace-") as scratch:
        parsing = Parsing(sources, options, progress)
        # Filters need sorted records: they are applied in a second pass.
        filtered = bool(options.align_shift or options.dedup_s)
        sorter = Sorter(
            Path(scratch, "sorted") if filtered else target,
            Facts("", "", ()),
            Path(scratch),
            durable=durable and not filtered,
            window_rows=window_rows,
        )
        seen, writer = _read(parsing, sorter)
        facts, odd = _described(parsing, seen, sorter.first_ns, name)
        shift = best_shift(seen) if options.align_shift == "auto" else options.align_shift
        if shift:
            facts.notes["align_shift_bytes"] = str(shift)
        more = {"seen": asdict(seen), "findings": [asdict(each) for each in odd]}
        writer.facts, writer.more = facts, dict(more)
        writer.close()
        if filtered:
            sorted_ones = TraceFile(writer.path).batches()
            with TraceWriter(target, facts, durable=durable) as writer:
                writer.more = dict(more)
                for batch in filters.filtered(sorted_ones, shift, options.dedup_s):
                    writer.write(batch)
        return Imported(facts, writer.records, seen, odd, shift)


def _read(parsing: Parsing, sorter: Sorter) -> tuple[Seen, TraceWriter]:
    """Parse and sort; the writer of the sorted trace is to be closed."""
    surveyor, volume = Surveyor(), parsing.options.volume
    try:
        for batch in parsing.batches():
            if volume is not None:
                names = parsing.volumes
                index = names.index(volume) if volume in names else len(names)
                batch = filters.of_volume(batch, index)
            surveyor.see(batch)
            sorter.add(batch)
        if volume is not None:  # there may be no volume of that name
            filters.volume_index(parsing.volumes, volume, str(parsing.paths[0]))
        writer = sorter.finish()
    except BaseException:
        sorter.discard()
        raise
    if writer is None:
        raise _no_records(parsing)
    return surveyor.result(), writer


def _described(
    parsing: Parsing, seen: Seen, first_ns: int, name: str | None
) -> tuple[Facts, list[Finding]]:
    """The facts to be stored, and the findings."""
    facts, odd = _inspected(parsing, seen, first_ns)
    options = parsing.options
    notes = {
        "sorted": "yes",
        "source": ", ".join(str(path) for path in parsing.paths)[:1000],
        "source_zero_ns": str(parsing.zero_ns + first_ns),
    }
    notes |= {f"option_{key}": value for key, value in options.given().items()}
    volumes = facts.volumes if options.volume is None else (options.volume,)
    name = name or facts.name
    return replace(facts, name=name, volumes=volumes, notes=notes | facts.notes), odd


def _inspected(parsing: Parsing, seen: Seen, first_ns: int) -> tuple[Facts, list[Finding]]:
    """The facts of a source that was parsed, and the findings."""
    assert parsing.format is not None
    options, epoch = parsing.options, parsing.epoch_ns
    facts = Facts(
        parsing.name,
        parsing.format.name,
        tuple(parsing.volumes),
        None if epoch is None else epoch + first_ns,
        {text.replace(" ", "_"): str(count) for text, count in parsing.counts.items()},
    )
    # Units are guessed where no option sets them.
    given = options.format or options.addr_unit or options.time_unit or options.size_unit
    odd = findings(
        seen,
        parsing.counts,
        epoch_ns=facts.epoch_ns,
        format_name=facts.source_format,
        unsure=parsing.format.unsure and not given,
    )
    return facts, odd


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
    facts, odd = _inspected(parsing, seen, seen.first_ns)
    return facts, seen, odd


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
        before = TraceFile(paths[0]).findings if stored else trace.findings
    odd = findings(seen, {}, epoch_ns=facts.epoch_ns, format_name=facts.source_format)
    still = {each.name for each in odd}
    return facts, seen, odd, [each for each in before if each["name"] not in still]


def first_records(
    path: str | Path, options: ReadOptions, count: int
) -> tuple[Facts, list[dict[str, int | str]]]:
    """The first records as plain values; a foreign source is read in its own order, only so far,
    unless filters apply.
    """
    from mirrord.traces.reading import is_stored, open_trace

    if is_stored(path) or options.filters:
        with open_trace(path, options=options) as trace:
            batches = trace.batches(rows=min(max(count, 1024), READ_ROWS))
            return trace.facts, _rows(batches, lambda: trace.facts.volumes, count)
    parsing = Parsing([path], options)
    found = _rows(parsing.batches(), lambda: parsing.volumes, count)
    if parsing.format is None or not found:
        raise _no_records(parsing)
    return Facts(parsing.name, parsing.format.name, tuple(parsing.volumes)), found


def _rows(
    batches: Iterator[Batch], volumes: Callable[[], Sequence[str]], count: int
) -> list[dict[str, int | str]]:
    first = islice(rows(batches), min(count, 1 << 62))
    try:
        return [
            {
                "time_ns": time,
                "volume": volumes()[volume],
                "op": Op(op).name.lower(),
                "offset": offset,
                "length": length,
                "latency_ns": latency,
            }
            for time, volume, op, offset, length, latency in first
        ]
    except (ValueError, IndexError):
        raise Damaged(
            "a record has a volume or an operation that the trace does not have",
            hint="Import the trace again from its source.",
        ) from None
