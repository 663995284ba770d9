"""Batches of records: created from native columns, selected and joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrord.traces.model import NO_LATENCY, Batch

COLUMNS = ("time_ns", "volume", "op", "offset", "length", "latency_ns")
TYPES = (np.int64, np.uint32, np.uint8, np.int64, np.int64, np.int64)


def from_native(columns: Sequence[bytes]) -> Batch:
    """A batch over the columns that native code returns; they are not copied."""
    return Batch(*map(np.frombuffer, columns, TYPES))


def to_native(batch: Batch) -> list[memoryview]:
    """The columns as byte buffers, as native code takes them."""
    columns = (getattr(batch, name) for name in COLUMNS)
    return [
        np.ascontiguousarray(column, kind).view(np.uint8).data
        for column, kind in zip(columns, TYPES, strict=True)
    ]


def empty() -> Batch:
    """A batch without records."""
    return make([], [], [], [])


def make(
    time_ns: Sequence[int],
    op: Sequence[int],
    offset: Sequence[int],
    length: Sequence[int],
    volume: Sequence[int] | None = None,
) -> Batch:
    """A batch of plain numbers: of volume 0 unless given, latencies unknown."""
    count = len(time_ns)
    return Batch(
        np.asarray(time_ns, np.int64),
        np.asarray(volume or [0] * count, np.uint32),
        np.asarray(op, np.uint8),
        np.asarray(offset, np.int64),
        np.asarray(length, np.int64),
        np.full(count, NO_LATENCY, np.int64),
    )


def pick(batch: Batch, which: npt.NDArray[Any] | slice) -> Batch:
    """Select records by a mask, indices or a slice (a slice copies nothing)."""
    return Batch(*(getattr(batch, name)[which] for name in COLUMNS))


def join(batches: Sequence[Batch]) -> Batch:
    """All records of several batches, in that order."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return empty()
    return Batch(*(np.concatenate([getattr(each, name) for each in batches]) for name in COLUMNS))


def rows(batches: Iterable[Batch]) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The records one by one, each as plain numbers in the order of `COLUMNS`."""
    for batch in batches:
        for begin in range(0, len(batch), 1 << 16):
            part = pick(batch, slice(begin, begin + (1 << 16)))
            yield from zip(*(getattr(part, name).tolist() for name in COLUMNS), strict=True)


def shifted(batch: Batch, time_ns: int) -> Batch:
    """The batch with `time_ns` added to each time."""
    if time_ns == 0:
        return batch
    return replace(batch, time_ns=batch.time_ns + time_ns)


def in_order(batch: Batch) -> bool:
    """Whether times never decrease."""
    return len(batch) < 2 or bool(np.all(batch.time_ns[1:] >= batch.time_ns[:-1]))


def by_time(batch: Batch) -> Batch:
    """The batch sorted by time; records of equal time keep their order."""
    if in_order(batch):
        return batch
    return pick(batch, np.argsort(batch.time_ns, kind="stable"))
