"""Synthetic workloads with known results, for tests and what-if analysis.

Each is generated from a seed, so the same call gives the same records again, and in batches, so
that any length is possible. Records are spaced evenly in time. `share` is the known result: the
share of the block writes that is transferred at an update interval (Figure 2, 0 to 1); exact
unless documented as expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirrord.core.errors import UsageError
from mirrord.traces.batches import pick
from mirrord.traces.model import BLOCK, NO_LATENCY, Batch, Facts, Op

NS = 1_000_000_000
ROWS = 1 << 20
SECTOR = 512


class Share(NamedTuple):
    """Blocks transferred divided by block writes: in a volume that overwrites in place, and with
    the active map."""

    update_in_place: float
    active_map: float


@dataclass(frozen=True, slots=True)
class HotSpots:
    """Writes of single blocks, a few of which are written very often: Zipf's law.

    Of `blocks` blocks the k-th most popular is written with a probability of about k ** -skew; hot
    blocks are spread over the volume. volumes: how many take turns, each with its own blocks.
    """

    records: int
    blocks: int
    duration_s: float
    skew: float = 0.99
    seed: int = 1
    volumes: int = 1

    def __post_init__(self) -> None:
        _check(self.records, self.blocks, self.duration_s, self.volumes)
        if self.blocks > 1 << 31:
            raise UsageError(f"{self.blocks:,} blocks are too many: the maximum is {1 << 31:,}")
        if not 0 <= self.skew <= 3 or self.skew == 1:
            raise UsageError(
                f"a skew of {self.skew:g} is not supported", hint="Give 0 to 3, except 1."
            )

    @property
    def facts(self) -> Facts:
        """Volumes `hot-0`, `hot-1` …"""
        return _facts("hot spots", tuple(f"hot-{k}" for k in range(self.volumes)), self.seed)

    def batches(self, rows: int = ROWS) -> Iterator[Batch]:
        """All writes."""
        random = np.random.default_rng(self.seed)
        step_ns = _step_ns(self.duration_s, self.records)
        factor = _coprime(self.blocks)
        top = (self.blocks + 1.0) ** (1 - self.skew) - 1
        for first in range(0, self.records, rows):
            count = min(rows, self.records - first)
            # The inverse of a continuous distribution, truncated to integer ranks.
            ranks = (random.random(count) * top + 1) ** (1 / (1 - self.skew))
            block = np.clip(ranks.astype(np.int64), 1, self.blocks) * factor % self.blocks
            number = np.arange(first, first + count, dtype=np.int64)
            yield _records(number * step_ns, block * BLOCK, BLOCK, number % self.volumes)

    def share(self, seconds: float) -> Share:
        """Expected: the sum of each block's probability of being written. Full intervals only."""
        step_ns = _step_ns(self.duration_s, self.records)
        writes = round(seconds * NS) / step_ns / self.volumes
        top = (self.blocks + 1.0) ** (1 - self.skew) - 1
        unique = 0.0
        for first in range(1, self.blocks + 1, ROWS):
            ranks = np.arange(first, min(first + ROWS, self.blocks + 1) + 1, dtype=float)
            chance = np.diff(ranks ** (1 - self.skew)) / top
            with np.errstate(divide="ignore"):  # of a single block it is 1
                unique += float(-np.expm1(writes * np.log1p(-chance)).sum())
        share = min(unique / writes, 1.0)  # (a part of a write is as good as a whole one)
        return Share(share, share)


@dataclass(frozen=True, slots=True)
class Sequential:
    """A volume of `blocks` blocks is written from start to end, repeatedly."""

    records: int
    blocks: int
    duration_s: float

    def __post_init__(self) -> None:
        _check(self.records, self.blocks, self.duration_s)

    @property
    def facts(self) -> Facts:
        """One volume."""
        return _facts("sequential", ("sequential",), 0)

    def batches(self, rows: int = ROWS) -> Iterator[Batch]:
        """All writes, of one block each."""
        step_ns = _step_ns(self.duration_s, self.records)
        for first in range(0, self.records, rows):
            number = np.arange(first, min(first + rows, self.records), dtype=np.int64)
            yield _records(number * step_ns, number % self.blocks * BLOCK, BLOCK)

    def share(self, seconds: float) -> Share:
        """Nothing is saved unless an interval is longer than one pass over the volume."""
        step_ns = _step_ns(self.duration_s, self.records)
        period_ns = round(seconds * NS)
        # The first record whose time is not before each interval's end.
        ends = -(-np.arange(1, self.records * step_ns // period_ns + 2) * period_ns // step_ns)
        writes = np.diff(np.minimum(ends, self.records), prepend=0)
        part = float(np.minimum(writes, self.blocks).sum()) / self.records
        return Share(part, part)


@dataclass(frozen=True, slots=True)
class LogAndDatabase:
    """A database: small appends to a log that is never written twice, and pages written again.

    Each period has `appends` of 512 bytes (a multiple of 8) to a volume `log`, and writes each of
    `pages` blocks of a volume `database` `repeats` times, in random order.
    """

    periods: int
    period_s: float = 60.0
    appends: int = 800
    pages: int = 200
    repeats: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        _check(self.records, self.pages, self.period_s, self.repeats)
        if self.appends % 8 or self.appends < 0:
            raise UsageError("the number of appends must be a multiple of 8 (full blocks)")

    @property
    def facts(self) -> Facts:
        """Two volumes."""
        return _facts("log and database", ("log", "database"), self.seed)

    @property
    def records(self) -> int:
        """Appends and page writes of all periods."""
        return self.periods * (self.appends + self.pages * self.repeats)

    def batches(self, rows: int = ROWS) -> Iterator[Batch]:
        """A period is one batch, or several."""
        random = np.random.default_rng(self.seed)
        count = self.appends + self.pages * self.repeats
        step_ns = _step_ns(self.period_s, count)
        for period in range(self.periods):
            append = np.arange(self.appends, dtype=np.int64) + period * self.appends
            page = np.tile(np.arange(self.pages, dtype=np.int64), self.repeats)
            order = random.permutation(count)
            # Appends stay in order, with page writes between them.
            is_append = order < self.appends
            offset = np.empty(count, np.int64)
            offset[is_append] = append * SECTOR
            offset[~is_append] = page[order[~is_append] - self.appends] * BLOCK
            time_ns = round(period * self.period_s * NS) + np.arange(count) * step_ns
            length = np.where(is_append, SECTOR, BLOCK)
            batch = _records(time_ns, offset, length, (~is_append).astype(np.uint32))
            yield from _split(batch, rows)

    def share(self, seconds: float) -> Share:
        """For full periods: log blocks take eight appends each, pages are sent once."""
        together = _whole_periods(seconds, self.period_s)
        log = self.periods * self.appends / 8
        database = -(-self.periods // together) * self.pages
        part = (log + database) / self.records
        return Share(part, part)


@dataclass(frozen=True, slots=True)
class Files:
    """Files are created, and deleted with a trim: `early` of each period's in the same period,
    all others in the next one. Addresses are not reused within ten periods.
    """

    periods: int
    period_s: float = 60.0
    created: int = 50
    early: int = 20
    file_blocks: int = 16

    def __post_init__(self) -> None:
        _check(self.periods, self.created, self.period_s, self.file_blocks)
        if not 0 <= self.early <= self.created:
            raise UsageError("more files are deleted early than are created")

    @property
    def facts(self) -> Facts:
        """One volume."""
        return _facts("files", ("files",), 0)

    @property
    def records(self) -> int:
        """A write for each file created, a trim for each one deleted."""
        return self.periods * 2 * self.created - (self.created - self.early)

    def batches(self, rows: int = ROWS) -> Iterator[Batch]:
        """In a period: creations, then deletions of old files, then of young ones."""
        size = self.file_blocks * BLOCK
        step_ns = _step_ns(self.period_s, 2 * self.created)
        for period in range(self.periods):
            here = period % 10 * self.created + np.arange(self.created, dtype=np.int64)
            before = (period - 1) % 10 * self.created + np.arange(self.created, dtype=np.int64)
            old = before[self.early :] if period else before[:0]
            files = np.concatenate((here, old, here[: self.early]))
            time_ns = round(period * self.period_s * NS) + np.arange(len(files)) * step_ns
            op = np.where(np.arange(len(files)) < self.created, Op.WRITE, Op.TRIM)
            yield from _split(_records(time_ns, files * size, size, 0, op), rows)

    def share(self, seconds: float) -> Share:
        """For full periods, up to ten: of each interval only the files left at its end."""
        together = _whole_periods(seconds, self.period_s)
        if together > 10:
            raise UsageError("addresses are reused after ten periods")
        left = -(-self.periods // together) * (self.created - self.early)
        return Share(1.0, left / (self.periods * self.created))


#: Each has `facts`, as a reader returns them; `records`, their number; `batches`, ordered by time
#: and of at most `rows` records; and `share`, the known result for an update interval in seconds.
Workload = HotSpots | Sequential | LogAndDatabase | Files


def _check(*positive: float) -> None:
    if not all(value > 0 for value in positive):
        raise UsageError("records, blocks and duration of a workload must be greater than 0")


def _facts(name: str, volumes: tuple[str, ...], seed: int) -> Facts:
    return Facts(name, "generated", volumes, None, {"sorted": "yes", "seed": str(seed)})


def _step_ns(duration_s: float, records: int) -> int:
    """Time between records."""
    return max(1, int(duration_s * NS) // records)


def _coprime(blocks: int) -> int:
    """A factor that permutes the block numbers, with neighbours far apart."""
    factor = int(blocks * 0.6180339887) | 1
    while gcd(factor, blocks) != 1:
        factor += 2
    return factor


def _whole_periods(seconds: float, period_s: float) -> int:
    together = round(seconds / period_s)
    if together < 1 or abs(together * period_s - seconds) > 1e-9 * seconds:
        raise UsageError(f"{seconds:g} s is not a multiple of the period of {period_s:g} s")
    return together


def _records(
    time_ns: npt.NDArray[np.int64],
    offset: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64] | int,
    volume: npt.NDArray[np.integer] | int = 0,
    op: npt.NDArray[np.integer] | int = Op.WRITE,
) -> Batch:
    count = len(time_ns)
    return Batch(
        time_ns.astype(np.int64, copy=False),
        np.broadcast_to(np.asarray(volume, np.uint32), count),
        np.broadcast_to(np.asarray(op, np.uint8), count),
        offset,
        np.broadcast_to(np.asarray(length, np.int64), count),
        np.broadcast_to(np.int64(NO_LATENCY), count),
    )


def _split(batch: Batch, rows: int) -> Iterator[Batch]:
    for first in range(0, len(batch), rows):
        yield pick(batch, slice(first, first + rows))
