"""The updates and writes of a trace, from which cost, risk and reports are computed.

All times are nanoseconds since the trace's own zero, whose Unix time is `Workload.epoch_ns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirrord.analysis.grids import NS, epoch_of
from mirrord.analysis.results import VOLUMES as KINDS
from mirrord.analysis.results import Replay, Writes
from mirrord.core.errors import Refused
from mirrord.core.units import format_duration
from mirrord.traces.model import BLOCK, Facts

#: Formats whose volumes are files: fio's logs name them.
_FILE_FORMATS = ("fio2", "fio3")

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def no_writes(name: str) -> Refused:
    """The error for a trace without writes."""
    return Refused(
        "there are no writes in this trace",
        where=name,
        why="a mirror transfers only what is written",
        hint="'mirrord trace info' shows what it contains; "
        "its options set which records count as writes.",
    )


@dataclass(frozen=True)
class Updates:
    """The updates of one schedule over a trace, in order.

    label: the schedule in words: "15 min", "cron 0 2 * * *". seconds: its fixed interval, None
    if it has none. start_ns, end_ns: what update k covers; at end_ns its snapshot is taken.
    blocks: of each of `KINDS`, the blocks (of `block` bytes) that update k transfers.
    """

    label: str
    seconds: float | None
    start_ns: Longs
    end_ns: Longs
    blocks: Mapping[str, Longs]
    block: int = BLOCK
    #: Blocks that each update of a whole-file mirror sends, if the volumes are files; else None.
    whole_files: Longs | None = None

    def __len__(self) -> int:
        return len(self.end_ns)

    def sizes(self, kind: str) -> Longs:
        """Bytes that each update transfers from a volume of this kind."""
        return self.blocks[kind] * self.block

    @property
    def words(self) -> str:
        """When it updates: "every 15 min", or the schedule as given."""
        return self.label if self.seconds is None else f"every {self.label}"

    @property
    def period_s(self) -> float:
        """The interval; without one, the longest gap between two updates; seconds."""
        if self.seconds is not None:
            return self.seconds
        return float((self.end_ns - self.start_ns).max(initial=0)) / NS


@dataclass(frozen=True)
class Workload:
    """A replayed trace.

    epoch_ns: Unix time of the trace's zero, None if its source has no date.
    blocks_written: blocks that a synchronous mirror transfers. unique_blocks: different ones.
    freed: share (0 to 1) of the blocks written that were overwritten or deleted by the end.
    """

    name: str
    first_ns: int
    last_ns: int
    epoch_ns: int | None
    blocks_written: int
    bytes_written: int
    unique_blocks: int
    freed: float
    updates: tuple[Updates, ...]
    writes: Writes
    #: The same for calendars: a trace without a date is assumed to begin on a Monday, 00:00 UTC.
    calendar_ns: int = 0
    #: Anomalies of the trace that make its numbers doubtful, with the option that handles each.
    warnings: tuple[str, ...] = ()
    #: The same trace without its busiest minute, and that minute (trace time); None: not replayed.
    quieter: Workload | None = None
    busiest_ns: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.blocks_written:
            raise no_writes(self.name)

    @property
    def span_s(self) -> float:
        """From the first record to the last, seconds."""
        return (self.last_ns - self.first_ns) / NS

    @property
    def written_rate(self) -> float:
        """Bytes written per second, on average."""
        return self.bytes_written / self.counted_s

    @property
    def counted_s(self) -> float:
        """The time over which rates are computed: the span, but at least one bin; seconds."""
        return max(self.span_s, self.writes.bin_ns / NS)

    def percent(self, updates: Updates, kind: str) -> float:
        """Blocks transferred as percent of what a synchronous mirror sends (Figures 2 and 3)."""
        return 100 * int(updates.blocks[kind].sum()) / self.blocks_written

    def covers(self, updates: Updates) -> bool:
        """Whether the trace lasts for at least one full interval (within 1 %).

        For an interval longer than the trace only one update at its end would be counted.
        """
        return updates.seconds is None or self.span_s >= 0.99 * updates.seconds

    def shown(self) -> list[Updates]:
        """The schedules for which the trace is long enough."""
        return [each for each in self.updates if self.covers(each)]


def from_replay(replay: Replay, facts: Facts) -> Workload:
    """What the reports need from a replay; `Refused` when the trace has no writes.

    A recorded trace does not contain what is overwritten within the interval of its recording (note
    `resolution_s`): shorter update intervals are left out, as their results would be too good.
    """
    resolution_s = float(facts.notes.get("resolution_s", 0))
    odd = [
        each.label
        for each in replay.grids
        if resolution_s and (each.seconds is None or each.seconds % resolution_s)
    ]
    warnings = (
        f"it was recorded every {format_duration(resolution_s)}: data overwritten in between are "
        f"not seen, and intervals that are not a multiple of it ({', '.join(odd)}) are not exact.",
    )
    updates = tuple(
        Updates(
            each.label,
            each.seconds,
            each.start_ns,
            each.end_ns,
            {kind: each.blocks(kind) for kind in KINDS},
            each.block,
            each.whole_volumes if facts.source_format in _FILE_FORMATS else None,
        )
        for each in replay.grids
        if each.seconds is None or each.seconds >= resolution_s
    )
    return Workload(
        name=replay.name,
        first_ns=replay.first_ns,
        last_ns=replay.last_ns,
        epoch_ns=replay.epoch_ns,
        calendar_ns=epoch_of(facts, replay.first_ns),
        blocks_written=replay.blocks_written,
        bytes_written=replay.bytes_written,
        unique_blocks=replay.unique_blocks,
        freed=replay.written_deleted_percent / 100,
        updates=updates,
        writes=replay.writes_series,
        warnings=warnings if odd else (),
    )
