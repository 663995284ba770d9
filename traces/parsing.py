"""Parses the bytes of sources into batches: chooses the format, and turns faults into errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirrord.core.errors import Damaged, UsageError
from mirrord.system.native import TraceFault, TraceParser
from mirrord.traces import batches as make
from mirrord.traces.formats.base import Format, Sample
from mirrord.traces.model import Batch
from mirrord.traces.options import ReadOptions
from mirrord.traces.sniff import choose, recognize
from mirrord.traces.sources import SAMPLE_BYTES, Source, opened

#: Reports progress: the source's name, bytes read, total bytes (None: unknown), records.
Progress = Callable[[str, int, int | None, int], None]

#: What the parsers report for a time that cannot be right.
_FAR = "years away from the first one"
_SIBLING = re.compile(r"(.*\.blktrace\.)\d+((?:\.gz|\.zst)?)")
_ENDINGS = (
    ".live",
    ".zst",
    ".gz",
    ".txt",
    ".csv",
    ".parquet",
    ".load",
    ".srt",
    ".vscsi",
    ".log",
    ".trace",
    ".iolog",
    ".blkparse",
)


@dataclass
class Parsing:
    """One or more sources of one format, parsed as one trace.

    `batches` may be run once. Known only after that: `volumes`, `counts`, `records`, `zero_ns`
    (the first record's time in the source's own count) and `epoch_ns` (its Unix time, or None).
    """

    paths: Sequence[str | Path]
    options: ReadOptions
    progress: Progress | None = None
    format: Format | None = None
    records: int = 0
    _cut: int = 0
    _parser: TraceParser | None = field(default=None, repr=False)
    _sample: Sample = field(default_factory=lambda: Sample(b""), repr=False)

    def __post_init__(self) -> None:
        if len(self.paths) == 1:
            self.paths = siblings(Path(self.paths[0]))

    @property
    def name(self) -> str:
        """A name for the trace: the first source's, without its suffixes."""
        return plain_name(str(self.paths[0]))

    def batches(self) -> Iterator[Batch]:
        """All records in source order, times relative to the first one. `Damaged`, `Refused`."""
        for path in self.paths:
            with opened(path, partial=self.options.partial) as source:
                yield from self._of_source(source)

    def _of_source(self, source: Source) -> Iterator[Batch]:
        sample = Sample(source.sample, whole=len(source.sample) < SAMPLE_BYTES)
        chosen = choose(sample, self.options, source.name)
        if self._parser is None:
            self.format, self._sample = chosen, sample
            self._parser = chosen.parser(sample, self.options)
        elif chosen is not self.format and self.format is not None:
            raise UsageError(
                f"the format is {chosen.name}, but that of the previous sources is "
                f"{self.format.name}",
                where=source.name,
                hint="Import each format separately, then use 'mirrord trace merge'.",
            )
        try:
            for piece in source.pieces():
                # (The sample is parsed in steps, so that a wrong format is detected early.)
                yield self._counted(make.from_native(self._parser.feed(piece)))
                if self.progress is not None:
                    self.progress(source.name, source.place, source.size, self.records)
            yield self._counted(make.from_native(self._parser.finish(self.options.partial)))
            self._cut += source.cut
        except TraceFault as fault:
            raise self._error(fault, source.name, sample) from None

    def _counted(self, batch: Batch) -> Batch:
        self.records += len(batch)
        return batch

    def _error(self, fault: TraceFault, where: str, sample: Sample) -> Damaged:
        """The error for a fault: what is wrong, in which line, and what to do."""
        kind, what, place, excerpt = fault.args
        assert self.format is not None
        unit = "line" if sample.lines else "record"
        shown = f"{what} (in '{excerpt}')" if excerpt else str(what)
        if kind == "truncated":
            return Damaged(
                f"the source ends in the middle of {unit} {place}",
                where=where,
                why=shown,
                hint=f"To read all but this {unit}, use --partial.",
            )
        other = recognize(sample)
        if self.options.format is not None and other is not None and other is not self.format:
            hint = f"The content looks like {other.name}: omit --format."
        elif _FAR in what:
            hint = "The unit of the times may be smaller: use --time-unit ms, us or ns."
        else:
            hint = "Check --format. To skip and count malformed records, use --skip-bad."
        return Damaged(
            f"{unit} {place} is not a record of the format {self.format.name}",
            where=where,
            why=shown,
            hint=hint,
        )

    @property
    def volumes(self) -> list[str]:
        """Names of the volumes."""
        return self._parser.volumes if self._parser is not None else []

    @property
    def counts(self) -> dict[str, int]:
        """What was left out or is unusual, as counted by the parser."""
        found = self._parser.counts if self._parser is not None else {}
        return found | ({"ends of compressed data missing": self._cut} if self._cut else {})

    @property
    def zero_ns(self) -> int:
        """The first record's time in the source's own count, nanoseconds."""
        return (self._parser.zero or 0) if self._parser is not None else 0

    @property
    def epoch_ns(self) -> int | None:
        """Unix time of the first record, nanoseconds."""
        if self._parser is None or self.format is None or self._parser.zero is None:
            return None
        start = self.format.epoch_ns(self._sample, self._parser)
        return None if start is None else start + self._parser.zero


def siblings(path: Path) -> list[str | Path]:
    """The files of one recording: blktrace writes one per processor, `sda.blktrace.0` …"""
    found = _SIBLING.fullmatch(path.name)
    if found is None:
        return [path]
    one = re.compile(re.escape(found[1]) + r"(\d+)" + re.escape(found[2]))
    beside = [each for each in path.parent.glob("*") if one.fullmatch(each.name)]
    ordered = sorted(beside, key=lambda each: int(one.fullmatch(each.name)[1]))  # type: ignore[index]
    return list(ordered) or [path]


def plain_name(path: str) -> str:
    """`linux-mysql` of `/there/linux-mysql.load.zst`."""
    name = Path(path).name if path != "-" else "trace"
    while name.endswith(_ENDINGS):
        name = name[: name.rindex(".")]
    return re.sub(r"\.blktrace\.\d+$", "", name) or "trace"
