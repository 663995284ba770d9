"""The replay done slowly and plainly: sets of blocks, and a real sweep over physical blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mirrord.traces.model import NO_LATENCY, Batch, Op


class Record(NamedTuple):
    time_ns: int
    volume: int
    op: Op
    offset: int
    length: int


class Counted(NamedTuple):
    """One update."""

    written: int
    written_bytes: int
    update_in_place: int
    active_map: int
    no_active_map: int
    whole_volumes: int


def batch_of(records: Sequence[Record]) -> Batch:
    """The records as columns."""
    columns = list(zip(*records, strict=True)) or [()] * 5
    return Batch(
        np.array(columns[0], np.int64),
        np.array(columns[1], np.uint32),
        np.array([int(op) for op in columns[2]], np.uint8),
        np.array(columns[3], np.int64),
        np.array(columns[4], np.int64),
        np.full(len(records), NO_LATENCY, np.int64),
    )


def blocks_of(record: Record, block: int) -> Iterator[int]:
    """The blocks that a record writes, or wholly trims."""
    for number in range(record.offset // block, -(-(record.offset + record.length) // block)):
        start, end = number * block, (number + 1) * block
        whole = record.offset <= start and end <= record.offset + record.length
        if record.length and (whole or record.op is Op.WRITE):
            yield number


@dataclass
class Sweep:
    """A no-overwrite volume that allocates by a cursor going round, and a mirror's base in it."""

    physical: int
    #: Where each logical block is, and which places the file system and the base hold.
    places: dict[int, int]
    used: set[int] = field(default_factory=set)
    base: set[int] = field(default_factory=set)
    dirty: set[int] = field(default_factory=set)
    #: Logical blocks for which there was no room.
    waiting: set[int] = field(default_factory=set)
    cursor: int = 0

    def __post_init__(self) -> None:
        self.used = set(self.places.values())
        self.base = set(self.used)

    def write(self, logical: int) -> None:
        self.free(logical)
        self.place(logical)

    def free(self, logical: int) -> None:
        self.waiting.discard(logical)
        self.used.discard(self.places.pop(logical, -1))

    def place(self, logical: int) -> None:
        for step in range(self.physical):
            at = (self.cursor + step) % self.physical
            if at not in self.used and at not in self.base:
                self.places[logical] = at
                self.used.add(at)
                self.dirty.add(at)
                self.cursor = at + 1
                return
        self.waiting.add(logical)

    def update(self) -> int:
        """Places written since the last update; a volume without room grows."""
        for logical in list(self.waiting):
            self.waiting.remove(logical)
            self.place(logical)
            if logical in self.waiting:
                self.physical += 1
                self.waiting.remove(logical)
                self.place(logical)
        count = len(self.dirty)
        self.dirty = set()
        self.base = set(self.used)
        return count


def intervals_of(
    times: Sequence[int], period_ns: int | None, instants: Sequence[int]
) -> tuple[list[int], int]:
    """The interval of each record, and how many there are."""
    first, last = times[0], times[-1]
    if period_ns is None:
        ends = [at for at in instants if first < at <= last]
    else:
        ends = list(range(first + period_ns, last + 1, period_ns))
    return [sum(end <= time for end in ends) for time in times], len(ends) + 1


def replay_slowly(
    records: Sequence[Record],
    period_ns: int | None,
    instants: Sequence[int],
    *,
    free_space: float,
    block: int = 4096,
) -> list[Counted]:
    """What each update transfers."""
    numbers, count = intervals_of([each.time_ns for each in records], period_ns, instants)
    sweeps = {}
    for volume in {each.volume for each in records}:
        end = max(each.offset + each.length for each in records if each.volume == volume)
        size = -(-end // block)
        free = int(size * free_space / (1 - free_space))
        sweeps[volume] = Sweep(size + free, {number: number for number in range(size)})
    ever: set[tuple[int, int]] = set()
    ends: dict[int, int] = {}
    found = []
    for interval in range(count):
        written = written_bytes = 0
        changed: set[int] = set()
        in_place: set[tuple[int, int]] = set()
        active: set[tuple[int, int]] = set()
        for record in (r for r, n in zip(records, numbers, strict=True) if n == interval):
            for number in blocks_of(record, block):
                which = (record.volume, number)
                if record.op is Op.WRITE:
                    written += 1
                    in_place.add(which)
                    active.add(which)
                    ever.add(which)
                    ends[record.volume] = max(ends.get(record.volume, 0), number + 1)
                    changed.add(record.volume)
                    sweeps[record.volume].write(number)
                elif record.op is Op.TRIM and which in ever:
                    active.discard(which)
                    sweeps[record.volume].free(number)
            written_bytes += record.length if record.op is Op.WRITE else 0
        physical = sum(sweep.update() for sweep in sweeps.values())
        whole = sum(ends[volume] for volume in changed)
        found.append(Counted(written, written_bytes, len(in_place), len(active), physical, whole))
    return found
