"""Filters on traces: a shifted grid, removal of duplicates, one volume, a span of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from mirrord.core.errors import NotFound, UsageError
from mirrord.system.native import TraceDedup
from mirrord.traces import batches as make
from mirrord.traces.model import Batch, Op

_SECOND_NS = 10**9


def moved(batches: Iterable[Batch], shift_bytes: int) -> Iterator[Batch]:
    """Add `shift_bytes` to each offset except those of flushes.

    In a partition that begins at an odd sector every block of the file system covers parts of two
    blocks of the replay; shifted, it is one again. `UsageError` when an offset would be below 0.
    """
    for batch in batches:
        offset = np.where(batch.op == Op.FLUSH, batch.offset, batch.offset + shift_bytes)
        if len(batch) and int(offset.min()) < 0:
            raise UsageError(
                f"a shift of {shift_bytes} bytes puts records before the start of the volume"
            )
        yield replace(batch, offset=offset)


def deduplicated(batches: Iterable[Batch], window_s: float) -> Iterator[Batch]:
    """Drop block writes that occur within `window_s` after the previous one of the same block.

    For traces that were recorded at two layers at once, where most requests occur twice. Batches
    must be ordered by time. The rest of a write may be several records.
    """
    dedup = TraceDedup(round(window_s * _SECOND_NS))
    for batch in batches:
        yield make.from_native(dedup.feed(make.to_native(batch)))


def filtered(batches: Iterable[Batch], shift_bytes: int, window_s: float) -> Iterable[Batch]:
    """The records `moved`, then `deduplicated`; 0: not so."""
    # The grid first: repetitions are detected by block.
    if shift_bytes:
        batches = moved(batches, shift_bytes)
    return deduplicated(batches, window_s) if window_s else batches


def of_volume(batch: Batch, index: int) -> Batch:
    """The records of one volume, renumbered to volume 0."""
    kept = make.pick(batch, batch.volume == index)
    return replace(kept, volume=np.zeros(len(kept), np.uint32))


def between(batches: Iterable[Batch], begin_ns: int, end_ns: int) -> Iterator[Batch]:
    """Records with begin <= time < end; batches must be ordered by time."""
    for batch in batches:
        first, last = np.searchsorted(batch.time_ns, [begin_ns, end_ns], side="left")
        if last > first:
            yield make.pick(batch, slice(int(first), int(last)))
        if last < len(batch):
            return


def without(batches: Iterable[Batch], begin_ns: int, end_ns: int) -> Iterator[Batch]:
    """Records but those with begin <= time < end; batches must be ordered by time."""
    for batch in batches:
        first, last = np.searchsorted(batch.time_ns, [begin_ns, end_ns], side="left").tolist()
        if first == last:
            yield batch
            continue
        for rest in (slice(0, first), slice(last, None)):
            if len(batch.time_ns[rest]):
                yield make.pick(batch, rest)


def volume_index(volumes: tuple[str, ...] | list[str], name: str, where: str) -> int:
    """The index of a volume; `NotFound` when the trace has no volume of that name."""
    if name not in volumes:
        raise NotFound(
            f"there is no volume '{name}' in this trace",
            where=where,
            hint=f"Its volumes are: {', '.join(volumes[:20])}.",
        )
    return list(volumes).index(name)
