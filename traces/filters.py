"""What handles a source's oddities: another grid, leaving out what was recorded twice, a volume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from mirrord.core.errors import NotFound, UsageError
from mirrord.system.native import TraceDedup
from mirrord.traces import batches as make
from mirrord.traces.model import Batch, Op

_SECOND_NS = 10**9


def moved(batches: Iterable[Batch], shift_bytes: int) -> Iterator[Batch]:
    """With `shift_bytes` added to each offset but those of flushes (README note a of a trace).

    A partition that began at an odd sector puts every block of the file system across two of ours;
    on a grid moved along, each is one again. `UsageError` when an offset would be below 0.
    """
    for batch in batches:
        offset = np.where(batch.op == Op.FLUSH, batch.offset, batch.offset + shift_bytes)
        if len(batch) and int(offset.min()) < 0:
            raise UsageError(
                f"a shift of {shift_bytes} bytes puts records before the volume's beginning"
            )
        yield Batch(batch.time_ns, batch.volume, batch.op, offset, batch.length, batch.latency_ns)


def deduplicated(batches: Iterable[Batch], window_s: float) -> Iterator[Batch]:
    """Without block writes that come within `window_s` after the one before of the same block.

    For traces that were recorded at two layers at once, where most requests occur twice. Batches
    must be in the order of time. What is left of a write may be several records.
    """
    dedup = TraceDedup(round(window_s * _SECOND_NS))
    for batch in batches:
        yield make.from_native(dedup.feed(make.to_native(batch)))


def of_volume(batch: Batch, index: int) -> Batch:
    """The records of one volume, which then is volume 0."""
    kept = make.pick(batch, batch.volume == index)
    return Batch(
        kept.time_ns,
        np.zeros(len(kept), np.uint32),
        kept.op,
        kept.offset,
        kept.length,
        kept.latency_ns,
    )


def between(batches: Iterable[Batch], begin_ns: int, end_ns: int) -> Iterator[Batch]:
    """Records with begin <= time < end, of batches in the order of time."""
    for batch in batches:
        first, last = np.searchsorted(batch.time_ns, [begin_ns, end_ns], side="left")
        if last > first:
            yield make.pick(batch, slice(int(first), int(last)))
        if last < len(batch):
            return


def volume_index(volumes: tuple[str, ...] | list[str], name: str, where: str) -> int:
    """The index of a volume's name; `NotFound` when the trace has none of that name."""
    if name not in volumes:
        raise NotFound(
            f"there is no volume '{name}' in this trace",
            where=where,
            hint=f"It has: {', '.join(volumes[:20])}.",
        )
    return list(volumes).index(name)
