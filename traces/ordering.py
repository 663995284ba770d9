"""Sorting any number of records by time: an external merge sort.

Sources are nearly always in order, or only slightly out of order (several processors, several
disks): a window in memory sorts these. Records further out of order begin a new run on disk, and
at the end the runs are merged. Memory is bounded by the window and the number of merged runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from mirrord.traces import batches as make
from mirrord.traces.model import Batch, Facts
from mirrord.traces.store import GROUP_ROWS, TraceFile, TraceWriter

#: Records held for sorting: 40 bytes each, and as much again while they are sorted.
WINDOW_ROWS = 4 << 20
#: Runs that are merged at a time, each read in pieces of `_PIECE_ROWS`.
MERGE_RUNS = 32
_PIECE_ROWS = 1 << 16
#: Row groups of runs are small, as each run that is merged holds one.
_RUN_ROWS = 1 << 17


class Sorter:
    """Takes batches in any order and writes a stored trace that is ordered by time.

    target: the path of the trace. scratch: a folder for runs, removed by the caller. The stored
    times begin at 0; `first_ns` is the original time of the earliest record.
    """

    def __init__(
        self,
        target: Path,
        facts: Facts,
        scratch: Path,
        *,
        durable: bool,
        window_rows: int = WINDOW_ROWS,
    ) -> None:
        self._target, self._facts, self._scratch = target, facts, scratch
        self._durable, self._window = durable, window_rows
        self._held: list[Batch] = []
        self._rows = 0
        self._writer: TraceWriter | None = None
        self._runs: list[Path] = []
        self._zero_ns = 0
        self.first_ns = 0
        self.runs = 0

    def add(self, batch: Batch) -> None:
        """Add records."""
        if len(batch):
            self._held.append(batch)
            self._rows += len(batch)
            if self._rows >= self._window:
                self._emit(self._rows // 2)

    def _emit(self, rows: int) -> None:
        """Write the earliest `rows` of the held records: to this run, or to a new one."""
        held = make.by_time(make.join(self._held))
        first = int(held.time_ns[0])
        if self._writer is None:
            self._zero_ns = self.first_ns = first
            self._open()
        elif self._writer.last_ns is not None and first - self._zero_ns < self._writer.last_ns:
            self._end_run()
            self.first_ns = min(self.first_ns, first)
            self._open()
        assert self._writer is not None
        self._writer.write(make.shifted(make.pick(held, slice(0, rows)), -self._zero_ns))
        # A copy, as a slice would keep the memory of the complete window.
        rest = make.pick(held, slice(rows, None))
        self._held = [make.join([rest, make.empty()])] if len(rest) else []
        self._rows = len(rest)

    def _open(self) -> None:
        # The first run is the trace itself, unless there is a second one.
        path = self._target if not self.runs else self._scratch / f"run-{self.runs}"
        self._writer = TraceWriter(
            path,
            self._facts,
            durable=self._durable and not self.runs,
            group_rows=_RUN_ROWS if self.runs else GROUP_ROWS,
        )
        self.runs += 1

    def _end_run(self) -> None:
        assert self._writer is not None
        if self.runs == 1:
            self._writer.retarget(self._scratch / "run-0")
        self._writer.close()
        self._runs.append(self._writer.path)
        self._writer = None

    def finish(self) -> TraceWriter | None:
        """The writer of the trace, with all records but not the final facts: to be closed by the
        caller. None without a record. Times were shifted so that the earliest is 0.
        """
        if self._rows:
            self._emit(self._rows)
        if self._runs:
            self._end_run()
            shift = self._zero_ns - self.first_ns
            self._writer = self._merged(self._runs, self._target, shift, self._durable)
        return self._writer

    def _merged(
        self, runs: Sequence[Path], target: Path, shift_ns: int, durable: bool
    ) -> TraceWriter:
        """Merge runs, a bounded number at a time, into a writer that is still open."""
        level = 0
        while len(runs) > MERGE_RUNS:
            level += 1
            merged: list[Path] = []
            for begin in range(0, len(runs), MERGE_RUNS):
                path = self._scratch / f"merge-{level}-{begin}"
                self._merged(runs[begin : begin + MERGE_RUNS], path, 0, False).close()
                merged.append(path)
            runs = merged
        rows = GROUP_ROWS if target == self._target else _RUN_ROWS
        writer = TraceWriter(target, self._facts, durable=durable, group_rows=rows)
        try:
            sources = [TraceFile(path).batches(rows=_PIECE_ROWS) for path in runs]
            for batch in merge(sources):
                writer.write(make.shifted(batch, shift_ns))
        except BaseException:
            writer.discard()
            raise
        for path in runs:
            path.unlink()
        return writer

    def discard(self) -> None:
        """Remove the unfinished trace."""
        if self._writer is not None:
            self._writer.discard()
            self._writer = None


def merge(sources: Sequence[Iterable[Batch]]) -> Iterator[Batch]:
    """Merge several streams ordered by time into one; one batch of each is held in memory."""
    iterators = [iter(each) for each in sources]
    heads: list[Batch | None] = [_next(each) for each in iterators]
    while True:
        waiting = [head for head in heads if head is not None]
        if not waiting:
            return
        # Up to this time all records are in the heads.
        bound = min(int(head.time_ns[-1]) for head in waiting)
        parts: list[Batch] = []
        for index, head in enumerate(heads):
            if head is None:
                continue
            count = int(np.searchsorted(head.time_ns, bound, side="right"))
            if count:
                parts.append(make.pick(head, slice(0, count)))
            rest = make.pick(head, slice(count, None))
            heads[index] = rest if len(rest) else _next(iterators[index])
        yield make.by_time(make.join(parts))


def _next(source: Iterator[Batch]) -> Batch | None:
    """The next batch with records."""
    return next((batch for batch in source if len(batch)), None)
