"""Recording a live volume: what was allocated and freed, derived from snapshots at an interval.

At each multiple of the interval a snapshot is taken, as for an update of a mirror; the changes
since the previous snapshot are written to the trace, and that one is deleted. So the trace has the
allocations and deallocations that SnapMirror's traces have (FAST'02, section 4), with the exact
addresses of an update; their times are as precise as the interval, and a block that was written
twice within one interval is recorded once.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mirrord.core.errors import MirrordError
from mirrord.core.model import Snapshot
from mirrord.core.names import snapshot_name
from mirrord.drivers.contract import Driver
from mirrord.engine.recording_batches import AddressBook, records_of
from mirrord.engine.recording_journal import Journal, delete_named, volume_locked
from mirrord.system import clock
from mirrord.traces.model import Batch, Op

_SECOND_NS = 1_000_000_000
#: How often a wait reads the clock, which also runs while the machine is suspended.
_LOOK_S = 1.0


class Pace(NamedTuple):
    """interval_s: between snapshots. duration_s: until it ends by itself; None: when stopped."""

    interval_s: float
    duration_s: float | None = None


@dataclass(slots=True)
class Recorded:
    """What was recorded so far.

    began_ns: wall time of the trace's zero, the first snapshot. intervals: the number recorded.
    missed: how many were merged into the next one because a snapshot took too long. The bytes are
    sums of the lengths of records. late_s: the greatest delay of a snapshot. changed_files,
    whole_file_bytes: of all intervals, files with new content and their full sizes, which is what
    a mirror of whole files would have transferred (section 5); None unless files are examined.
    """

    began_ns: int = 0
    intervals: int = 0
    missed: int = 0
    records: int = 0
    allocated_bytes: int = 0
    freed_bytes: int = 0
    late_s: float = 0.0
    changed_files: int | None = None
    whole_file_bytes: int | None = None


@dataclass(slots=True)
class Recorder:
    """One recording. write: takes the records, in order of time. tell: called when it has begun
    and after each interval, with what was recorded so far. files: examine changed files, too.
    """

    volume: Driver
    pace: Pace
    journal: Journal
    write: Callable[[Batch], None]
    tell: Callable[[Recorded], None]
    files: bool = False
    found: Recorded = field(default_factory=Recorded)
    _book: AddressBook = field(default_factory=AddressBook)
    _sequence: int = 0
    _began_s: float = 0.0

    def run(self, stop: threading.Event) -> None:
        """Record until the duration is over or `stop` is set, which is not an error: the interval
        that was begun is recorded up to then. The snapshots that were taken are deleted afterwards.
        Raises what the driver and `write` raise.
        """
        try:
            base = self._take()
            self._began_s, self.found.began_ns = clock.boottime_s(), clock.now_ns()
            self.tell(self.found)
            slot, last, stopped = 0, self._last(), False
            while slot < last and not stopped:
                slot, base, stopped = self._step(stop, slot, last, base)
        except BaseException:
            with contextlib.suppress(MirrordError, OSError):  # the next recording does it
                self._delete_snapshots()
            raise
        self._delete_snapshots()

    def _delete_snapshots(self) -> None:
        delete_named(self.volume, self.journal.left.names)
        self.journal.left.names.clear()
        self.journal.save()

    def _last(self) -> float:
        """The number of intervals; the last may be a partial one."""
        if self.pace.duration_s is None:
            return math.inf
        return math.ceil(self.pace.duration_s / self.pace.interval_s - 1e-9)

    def _step(
        self, stop: threading.Event, slot: int, last: float, base: Snapshot
    ) -> tuple[int, Snapshot, bool]:
        """Record the interval after `slot`; returns the next slot, its snapshot, and whether it is
        the last because of `stop`.
        """
        passed_s = clock.boottime_s() - self._began_s
        # A boundary that has passed is missed, unless it has only just passed.
        due = max(slot + 1, math.ceil(passed_s / self.pace.interval_s - 0.5))
        due = int(min(due, last))
        due_s = due * self.pace.interval_s
        if self.pace.duration_s is not None:
            due_s = min(due_s, self.pace.duration_s)
        while (left_s := self._began_s + due_s - clock.boottime_s()) > 0:
            if stop.wait(min(left_s, _LOOK_S)):
                break
        stopped = stop.is_set()
        if stopped:  # a partial interval counts up to its nominal end
            passed_s = clock.boottime_s() - self._began_s
            due = max(slot + 1, math.ceil(passed_s / self.pace.interval_s))
        else:
            self.found.missed += due - slot - 1
            self.found.late_s = max(self.found.late_s, -left_s)
        if self.volume.changed_since(base.guid):
            base = self._interval(slot, due, base)
        self.found.intervals += 1
        self.tell(self.found)
        return due, base, stopped

    def _interval(self, slot: int, due: int, base: Snapshot) -> Snapshot:
        incremental = self._take()
        changes = self.volume.changes(base.guid, incremental.guid)
        span_ns = round(self.pace.interval_s * _SECOND_NS)
        batch = records_of(changes, self._book, slot * span_ns, (due - slot) * span_ns)
        self.write(batch)
        written = batch.op == Op.WRITE
        self.found.records += len(batch)
        self.found.allocated_bytes += int(batch.length[written].sum())
        self.found.freed_bytes += int(batch.length[~written].sum())
        if self.files:
            self._count_files(base, incremental)
        with volume_locked(self.volume):
            self.volume.delete_snapshot(base.guid)
        self.journal.left.names.remove(base.name)
        return incremental

    def _count_files(self, base: Snapshot, incremental: Snapshot) -> None:
        listed = self.volume.delta(base.guid, incremental.guid, files=True).changes
        sizes = [
            os.lstat(os.path.join(incremental.path, one.path)).st_size
            for one in listed or ()
            if one.data_bytes and one.change in ("added", "modified", "renamed")
        ]
        self.found.changed_files = (self.found.changed_files or 0) + len(sizes)
        self.found.whole_file_bytes = (self.found.whole_file_bytes or 0) + sum(sizes)

    def _take(self) -> Snapshot:
        self._sequence += 1
        number = f"record-{self.journal.number}"
        name = snapshot_name(number, clock.now_ns(), self._sequence)
        self.journal.left.names.append(name)
        self.journal.save()
        with volume_locked(self.volume):
            return self.volume.take_snapshot(name)
