"""The replay: for each update interval, what an asynchronous mirror transfers (section 4).

The kernel (native/core/src/replay) keeps one number per block that was ever written: the time of
the write. It counts for all grids at once, in independent parts by volume and block range. This
module runs them in threads; `mirrord.analysis.cluster` runs the same parts on other machines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from mirrord.analysis.ahead import read_ahead
from mirrord.analysis.allocator import physical_blocks_written
from mirrord.analysis.grids import DEFAULT, NS, UPDATES_MAX, Grid
from mirrord.analysis.lagging import LagRunner
from mirrord.analysis.results import Column, GridResult, Replay, Writes
from mirrord.core.errors import Damaged, UsageError
from mirrord.core.units import format_duration
from mirrord.system.native import Replayer
from mirrord.traces.model import BLOCK, Batch, Facts

#: Default free share of a volume.
FREE_SPACE = 0.2
#: The columns that a replay needs: readers may omit the others.
COLUMNS = ("time_ns", "volume", "op", "offset", "length")
#: Called regularly with the number of records replayed so far.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """Which parts of a replay run here: `here` of them from `first` on, of `of` in total."""

    first: int = 0
    here: int = 1
    of: int = 1


@dataclass(frozen=True, slots=True)
class Rows:
    """The counts of intervals, one entry per part, volume and interval that is not empty.

    end: of the last block that was ever written, in blocks.
    """

    volume: Column
    interval: Column
    written: Column
    in_place: Column
    active: Column
    live: Column
    end: Column


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a trace; `ends`: of each volume the end of the accessed range, bytes; busiest:
    the most bytes written within a second; links: bytes per second for each bound asked for.
    """

    first_ns: int
    last_ns: int
    records: int
    writes: int
    trims: int
    bytes_written: int
    bin_ns: int
    busiest: int
    links: Mapping[float, float]
    bins: Column
    ends: Column
    #: Of each grid: intervals with writes, and the bytes written in them.
    interval_bytes: tuple[tuple[Column, Column], ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of some parts of a replay; `combine` adds them. Plain data, to be sent.

    instants: the updates of each grid planned by a lag target. totals: only of the first part.
    """

    rows: tuple[Rows, ...]
    written: int
    unique: int
    live: int
    instants: tuple[tuple[int, ...] | None, ...]
    totals: Totals | None


def replay(
    batches: Iterable[Batch],
    facts: Facts,
    grids: Sequence[Grid] = DEFAULT,
    *,
    bounds_s: Sequence[float] = (),
    free_space: float = FREE_SPACE,
    block: int = BLOCK,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Replay a trace whose records are ordered by time into the three volumes.

    bounds_s: of semi-synchronous mirrors, seconds, above 0: the links that they need are computed.
    free_space: share of a no-overwrite volume that is free at the beginning, 0 to below 1.
    block: bytes, a power of two from 512 to 1 MiB. A volume ends at the last address in the trace.
    threads: for counting, in addition to the one that reads. `UsageError` for values out of range,
    `Damaged` when records are out of order or have impossible ranges.
    """
    check_options(free_space, block)
    threads = default_threads() if threads is None else max(1, threads)
    parts = Parts(0, threads, threads)
    counts = count(batches, grids, parts, bounds_s=bounds_s, block=block, progress=progress)
    return combine([counts], facts, grids, free_space=free_space, block=block)


def default_threads() -> int:
    """Threads for counting: one per processor except the one that reads, at least 1, at most 4.

    Each processes all records, so more of them gain little.
    """
    return max(1, min(4, len(os.sched_getaffinity(0)) - 1))


def check_options(free_space: float, block: int) -> None:
    """`UsageError` for values out of range."""
    if not 0 <= free_space < 1:
        raise UsageError(
            f"a free space of {free_space:g} is out of range",
            hint="Give a share from 0 to below 1, for example 0.2.",
        )
    if block & (block - 1) or not 512 <= block <= 1 << 20:
        raise UsageError(
            f"blocks of {block} bytes are not supported",
            hint="Give a power of two from 512 to 1048576; the paper uses 4096.",
        )


def count(
    batches: Iterable[Batch],
    grids: Sequence[Grid],
    parts: Parts,
    *,
    bounds_s: Sequence[float] = (),
    block: int = BLOCK,
    progress: Progress | None = None,
) -> Counts:
    """Replay some parts; each sees all records and counts its own blocks. Errors as `replay`.

    A lag target needs the complete trace: it is planned before that is divided into parts.
    """
    kernel = Replayer(
        block.bit_length() - 1,
        [_cuts(grid) for grid in grids],
        [max(1, round(bound_s * NS)) for bound_s in bounds_s],
        parts.first,
        parts.here,
        parts.of,
    )
    lags: dict[int, LagRunner] = {}
    records = 0
    with closing(read_ahead(batches)) as coming:
        for batch in coming:
            if not len(batch):
                continue
            if not records:
                first_ns = int(batch.time_ns[0])
                lags = {k: LagRunner(g.lag, first_ns) for k, g in enumerate(grids) if g.lag}
            _feed_between(kernel, batch, lags, block)
            records += len(batch)
            if progress is not None:
                progress(records)
    if not records:
        raise Damaged("there are no records in this trace", hint="See `mirrord trace info`.")
    return _counts(kernel, grids, bounds_s, lags)


def _cuts(grid: Grid) -> int | memoryview:
    if grid.seconds is not None:
        return round(grid.seconds * NS)
    return np.array(grid.boundaries or (), np.int64).data


def _feed_between(kernel: Replayer, batch: Batch, lags: dict[int, LagRunner], block: int) -> None:
    """Feed a batch, with an update whenever a lag target requires one."""
    start = 0
    while lags:
        which = min(lags, key=lambda k: lags[k].next_ns)
        at_ns = lags[which].next_ns
        if at_ns > batch.time_ns[-1]:
            break
        end = start + int(np.searchsorted(batch.time_ns[start:], at_ns))
        _feed(kernel, batch, slice(start, end))
        start = end
        _, _, active = kernel.cut(which, at_ns)
        lags[which].update(active * block)
    _feed(kernel, batch, slice(start, len(batch)))


def _feed(kernel: Replayer, batch: Batch, rows: slice) -> None:
    if rows.start == rows.stop:
        return
    columns = [np.ascontiguousarray(getattr(batch, name)[rows]).data for name in COLUMNS]
    try:
        kernel.feed(*columns)
    except ValueError as fault:
        raise damaged(*fault.args) from None


def damaged(kind: str, record: int = 0, one: int = 0, other: int = 0) -> Damaged:
    """The error for a fault of the trace."""
    where = f"record {record + 1:,}"
    if kind == "order":
        return Damaged(
            "the records are not ordered by time",
            where=where,
            why=f"it is {format_duration((other - one) / NS)} earlier than the previous one",
            hint="Import the trace first: `mirrord trace import` sorts the records.",
        )
    if kind == "range":
        return Damaged(
            "a record has an impossible range",
            where=where,
            why=f"it begins at byte {one} and is {other} bytes long",
            hint="The units may be wrong: see `mirrord trace info`.",
        )
    if kind == "volume":
        return Damaged(
            "a record refers to a volume that the trace does not have",
            where=where,
            why=f"its number is {one}",
            hint="Import the trace again from its source.",
        )
    if kind == "intervals":
        return Damaged("there are too many update intervals", where=where)
    return Damaged("the records cannot be replayed", why=kind)


def _counts(
    kernel: Replayer, grids: Sequence[Grid], bounds_s: Sequence[float], lags: dict[int, LagRunner]
) -> Counts:
    packed_grids, volumes = kernel.finish()
    rows = tuple(Rows(*(_column(column) for column in columns)) for columns in packed_grids)
    instants = [tuple(lags[k].instants) if k in lags else None for k in range(len(grids))]
    written, unique, live = (int(_column(column).sum()) for column in volumes[1:])
    return Counts(rows, written, unique, live, tuple(instants), _totals(kernel, bounds_s))


def _totals(kernel: Replayer, bounds_s: Sequence[float]) -> Totals | None:
    found = kernel.totals()
    if found is None:
        return None
    numbers, links, bins, ends, grids = found
    of_grids = tuple((_column(interval), _column(size)) for interval, size in grids)
    columns = _column(bins), _column(ends)
    return Totals(*numbers, dict(zip(bounds_s, links, strict=True)), *columns, of_grids)


def _column(packed: bytes) -> Column:
    return np.frombuffer(packed, "<i8").astype(np.int64, copy=False)


def combine(
    counts: Sequence[Counts],
    facts: Facts,
    grids: Sequence[Grid],
    *,
    free_space: float = FREE_SPACE,
    block: int = BLOCK,
) -> Replay:
    """Add the counts of all parts. The order of the parts makes no difference."""
    [totals] = [each.totals for each in counts if each.totals is not None]
    blocks = _volume_blocks(totals, facts, block)
    results = []
    for k, grid in enumerate(grids):
        rows = _added([each.rows[k] for each in counts])
        instants = next((each.instants[k] for each in counts if each.instants[k]), None)
        results.append(_grid_result(grid, k, rows, totals, instants, blocks, free_space, block))
    written = sum(each.written for each in counts)
    unique = sum(each.unique for each in counts)
    return Replay(
        name=facts.name,
        volumes=facts.volumes,
        epoch_ns=facts.date_ns,
        first_ns=totals.first_ns,
        last_ns=totals.last_ns,
        records=totals.records,
        writes=totals.writes,
        trims=totals.trims,
        block=block,
        free_space=free_space,
        blocks_written=written,
        bytes_written=totals.bytes_written,
        unique_blocks=unique,
        # Of the blocks written, those not trimmed since are live.
        written_deleted=written - unique - sum(each.live for each in counts),
        grids=tuple(results),
        writes_series=Writes(
            totals.first_ns,
            totals.bin_ns,
            totals.bins,
            totals.busiest,
            totals.links,
        ),
    )


def _volume_blocks(totals: Totals, facts: Facts, block: int) -> list[int]:
    """Blocks of each volume, up to the last address in the trace."""
    unused = len(facts.volumes) - len(totals.ends)
    return [-(-end // block) for end in (*totals.ends.tolist(), *[0] * unused)]


def _added(rows: Sequence[Rows]) -> Rows:
    """One entry per volume and interval, ascending."""
    joined = [np.concatenate([getattr(each, name) for each in rows]) for name in Rows.__slots__]
    volume, interval, *counted, end = joined
    order = np.lexsort((interval, volume))
    volume, interval = volume[order], interval[order]
    first = np.ones(len(volume), bool)
    first[1:] = (np.diff(volume) != 0) | (np.diff(interval) != 0)
    at = np.flatnonzero(first)
    if len(at):
        counted = [np.add.reduceat(column[order], at) for column in counted]
        end = np.maximum.reduceat(end[order], at)
    return Rows(*(volume[at], interval[at], *counted, end))


def _grid_result(
    grid: Grid,
    number: int,
    rows: Rows,
    totals: Totals,
    instants: tuple[int, ...] | None,
    volume_blocks: Sequence[int],
    free_space: float,
    block: int,
) -> GridResult:
    start_ns, end_ns, before = _intervals(grid, totals, instants)
    updates = len(start_ns)
    columns = {"written": rows.written, "in_place": rows.in_place, "active": rows.active}
    columns["physical"] = np.zeros_like(rows.written)
    columns["whole"] = np.zeros_like(rows.written)
    for volume in np.unique(rows.volume).tolist():
        its = slice(*np.searchsorted(rows.volume, [volume, volume + 1]).tolist())
        columns["physical"][its] = physical_blocks_written(
            rows.written[its], rows.active[its], rows.live[its], volume_blocks[volume], free_space
        )
        # A part without a row in an interval has reported its end before.
        ends = np.maximum.accumulate(rows.end[its])
        columns["whole"][its] = np.where(rows.written[its] > 0, ends, 0)
    dense = {}
    for name, column in columns.items():
        dense[name] = np.zeros(updates, np.int64)
        np.add.at(dense[name], rows.interval - before, column)
    interval, size = totals.interval_bytes[number]
    written_bytes = np.zeros(updates, np.int64)
    written_bytes[interval - before] = size
    return GridResult(
        grid,
        block,
        start_ns,
        end_ns,
        dense["written"],
        written_bytes,
        dense["in_place"],
        dense["active"],
        dense["physical"],
        dense["whole"],
    )


def _intervals(
    grid: Grid, totals: Totals, instants: tuple[int, ...] | None
) -> tuple[Column, Column, int]:
    """Starts and ends of a grid's intervals, and how many instants are not after its start."""
    first_ns, last_ns = totals.first_ns, totals.last_ns
    if grid.seconds is not None:
        period_ns = round(grid.seconds * NS)
        updates = (last_ns - first_ns) // period_ns + 1
        if updates > UPDATES_MAX:
            raise UsageError(
                f"'{grid.label}' divides this trace into {updates:,} intervals",
                why=f"the maximum is {UPDATES_MAX:,}",
                hint="Give a longer interval.",
            )
        starts = first_ns + period_ns * np.arange(updates, dtype=np.int64)
        return starts, starts + period_ns, 0
    all_instants = np.array(grid.boundaries if instants is None else instants, np.int64)
    before = int(np.searchsorted(all_instants, first_ns, "right"))
    inside = all_instants[before : np.searchsorted(all_instants, last_ns, "right")]
    starts = np.concatenate(([first_ns], inside))
    return starts, np.concatenate((inside, [last_ns + 1])), before
