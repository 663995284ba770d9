"""From runs of objects to records: against a model that keeps every block of every object."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from mirrord.core.errors import ProtocolError
from mirrord.core.model import Changes
from mirrord.engine.recording_batches import PIECE_BYTES, AddressBook, records_of
from mirrord.traces.model import Batch, Op

BLOCK = 4096
TO_ITS_END = (1 << 63) - 1


def packed(runs: list[tuple[int, int, int]]) -> bytes:
    return b"".join(struct.pack("<QQQ", *run) for run in runs)


def ranges(batch: Batch, op: Op, volume: int) -> list[tuple[int, int]]:
    chosen = (batch.op == op) & (batch.volume == volume)
    return list(zip(batch.offset[chosen].tolist(), batch.length[chosen].tolist(), strict=True))


def blocks(runs: list[tuple[int, int]]) -> list[int]:
    return [b for at, n in runs for b in range(at // BLOCK, -(-(at + n) // BLOCK))]


def test_addresses_of_the_volume_stay_as_they_are() -> None:
    changes = Changes(packed([(0, 8192, 5000), (0, 1 << 44, 4096)]), packed([(0, 0, 4096)]))
    batch = records_of(changes, AddressBook(), 1000, 300)
    assert ranges(batch, Op.WRITE, 0) == [(8192, 5000), (1 << 44, 4096)]
    assert ranges(batch, Op.TRIM, 0) == [(0, 4096)]
    assert batch.time_ns.tolist() == [1000, 1100, 1200]


def test_no_change_makes_no_record() -> None:
    assert len(records_of(Changes(b"", b""), AddressBook(), 0, 10**9)) == 0


def test_many_records_of_a_long_interval_stay_within_it() -> None:
    runs = np.zeros((2_000_000, 3), np.uint64)
    runs[:, 1] = np.arange(2_000_000, dtype=np.uint64) * 8192
    runs[:, 2] = BLOCK
    span = 7 * 86400 * 10**9
    batch = records_of(Changes(runs.astype("<u8").tobytes(), b""), AddressBook(), span, span)
    assert batch.time_ns[0] == span and batch.time_ns[-1] < 2 * span
    assert np.all(np.diff(batch.time_ns) >= 0)


@pytest.mark.parametrize("seed", range(60))
def test_objects_get_places_of_their_own(seed: int) -> None:
    """What is in use by the records is what is in use by the model, block for block, through
    writes, frees up to the end of an object, and objects that go and whose numbers come back.
    """
    made = random.Random(seed)
    book, model, places = AddressBook(), set[tuple[int, int]](), set[int]()
    for step in range(25):
        freed, gone, allocated = _step(made, model)
        changes = Changes(packed(allocated), packed(freed), tuple(gone))
        batch = records_of(changes, book, step * 100, 100)
        assert (
            len(batch) == 0
            or step * 100 <= batch.time_ns[0] <= batch.time_ns[-1] < step * 100 + 100
        )
        places -= set(blocks(ranges(batch, Op.TRIM, 1)))
        written = blocks(ranges(batch, Op.WRITE, 1))
        assert len(written) == len(set(written))
        places |= set(written)
        assert len(places) == len(model)
    assert max(places, default=0) < 40 * 25 * PIECE_BYTES // BLOCK


def test_the_lengths_that_another_host_reports_size_nothing() -> None:
    """A run of 2 EiB, frees that cover everything again and again, and ranges of deleted objects
    without an end take no longer than their number.
    """
    book, long = AddressBook(), 1 << 61
    batch = records_of(Changes(packed([(1, 5, long), (1, long, 9)]), b""), book, 0, 10)
    assert ranges(batch, Op.WRITE, 1) == [(5, long), (long + 5, 4)]
    many = [(number, 0, BLOCK) for number in range(2, 5000)]
    records_of(Changes(packed(many), b""), book, 10, 10)
    freed = packed([(1, step, TO_ITS_END) for step in range(100_000)])
    gone = tuple((2, 1 << 63) for _ in range(100_000))
    batch = records_of(Changes(b"", freed, gone), book, 20, 10)
    assert len(batch) == 1 + 4998
    with pytest.raises(ProtocolError, match="do not fit"):
        records_of(Changes(packed([(9, 0, TO_ITS_END)]), b""), book, 30, 10)


@pytest.mark.parametrize("runs", [b"x" * 25, packed([(1, 1 << 63, 4096)])])
def test_a_malformed_list_of_runs_is_refused(runs: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        records_of(Changes(runs, b""), AddressBook(), 0, 10)


Step = tuple[list[tuple[int, int, int]], list[tuple[int, int]], list[tuple[int, int, int]]]


def _step(made: random.Random, model: set[tuple[int, int]]) -> Step:
    """Changes of an interval: what is freed first, then what is written; the model follows."""
    per_piece = PIECE_BYTES // BLOCK
    freed, gone, allocated = [], [], []
    for _ in range(made.randrange(4)):
        number, first = made.randrange(1, 6), made.randrange(4 * per_piece)
        count = made.choice([1, 50, per_piece, None])
        length = TO_ITS_END if count is None else count * BLOCK
        freed.append((number, first * BLOCK, length))
        last = first + count if count is not None else 1 << 62
        model -= {one for one in model if one[0] == number and first <= one[1] < last}
    if made.random() < 0.3:
        first = made.randrange(1, 6)
        gone.append((first, made.choice([first + 1, first + 2, 1 << 40])))
        model -= {one for one in model if gone[-1][0] <= one[0] < gone[-1][1]}
    for number in made.sample(range(1, 6), made.randrange(4)):
        first, count = made.randrange(4 * per_piece), made.choice([1, 3, 300, 700])
        allocated.append((number, first * BLOCK, count * BLOCK))
        model |= {(number, block) for block in range(first, first + count)}
    return freed, gone, allocated
