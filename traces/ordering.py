"""Putting records in the order of time, however many there are: an external merge sort.

Sources are nearly always in order, or go back only a little (several processors, several disks):
a window in memory puts that right in passing. What goes back further begins a new run on disk, and
in the end the runs are merged. Memory is bounded by the window and by how many runs are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from mirrord.traces import batches as make
from mirrord.traces.model import Batch, Facts
from mirrord.traces.store import GROUP_ROWS, TraceFile, TraceWriter

#: Records that are held to be put in order: 40 bytes each, and as much again while they are.
WINDOW_ROWS = 4 << 20
#: Runs that are merged at once, each read in pieces of `_PIECE_ROWS`.
MERGE_RUNS = 32
_PIECE_ROWS = 1 << 16
#: Row groups of runs are small, as each run that is merged holds one.
_RUN_ROWS = 1 << 17


class Sorter:
    """Takes batches in any order and leaves a stored trace in the order of time.

    target: where the trace will be. scratch: a folder for runs, cleaned by who gave it. The stored
    times begin at 0; `first_ns` is what the earliest record's time was.
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
        """Take records."""
        if len(batch):
            self._held.append(batch)
            self._rows += len(batch)
            if self._rows >= self._window:
                self._emit(self._rows // 2)

    def _emit(self, rows: int) -> None:
        """Write the earliest `rows` of what is held: to this run, or to a new one."""
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
        # A copy, or the slice would keep all of the window alive.
        rest = make.pick(held, slice(rows, None))
        self._held = [make.join([rest, make.empty()])] if len(rest) else []
        self._rows = len(rest)

    def _open(self) -> None:
        # The first run is the trace itself, unless there is a second.
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
        """What writes the trace, with all in it but the last facts: to be closed. None: no record.

        Times were shifted so that the earliest is 0.
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
        """Merge runs, a bounded number at once, into a writer that is still open."""
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
        """Leave nothing behind."""
        if self._writer is not None:
            self._writer.discard()
            self._writer = None


def merge(sources: Sequence[Iterable[Batch]]) -> Iterator[Batch]:
    """One stream in the order of time out of several that are; one batch of each is held."""
    iterators = [iter(each) for each in sources]
    heads: list[Batch | None] = [_next(each) for each in iterators]
    while True:
        waiting = [head for head in heads if head is not None]
        if not waiting:
            return
        # Up to here nothing can come any more but what is at hand.
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
    """The next batch that has records."""
    return next((batch for batch in source if len(batch)), None)
