"""Convert allocated and freed runs to the records of a trace."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirrord.core.errors import ProtocolError
from mirrord.core.model import Changes
from mirrord.traces.model import NO_LATENCY, Batch, Op

#: Volumes of a recorded trace, by index: runs with addresses of the volume, and runs of objects.
ADDRESSED, BY_OBJECT = 0, 1
#: Objects are placed in the trace's address space in multiples of this size.
PIECE_BYTES = 1 << 20
_OFFSET_MAX = (1 << 63) - 1

#: Rows of (object, offset, length).
_Runs = npt.NDArray[np.uint64]


class _Span(NamedTuple):
    """Pieces [first, end) of an object, whose addresses begin at `place`."""

    first: int
    end: int
    place: int


class AddressBook:
    """Addresses for pieces of objects (files, segments) in one address space, in the order in which
    they are first written. What was never written has no address, and its free is not recorded.

    Runs come from another host, perhaps: work and memory depend on their number only, not on their
    lengths.
    """

    def __init__(self) -> None:
        #: The spans of each object, in order.
        self._objects: dict[int, list[_Span]] = {}
        self._end = 0

    def placed(self, number: int, offset: int, length: int) -> Iterator[tuple[int, int]]:
        """(address, length) of the parts of a run that is written. `ProtocolError` when there are
        no more addresses.
        """
        spans = self._objects.setdefault(number, [])
        end = offset + length
        while offset < end:
            piece = offset // PIECE_BYTES
            at = bisect_right(spans, piece, key=lambda span: span.first)
            span = spans[at - 1] if at and piece < spans[at - 1].end else None
            if span is None:
                last = -(-end // PIECE_BYTES)
                last = min(last, spans[at].first) if at < len(spans) else last
                span = _Span(piece, last, self._end)
                self._end += (last - piece) * PIECE_BYTES
                if self._end > _OFFSET_MAX:
                    raise ProtocolError("the changed files do not fit into the trace")
                spans.insert(at, span)
            taken = min(end, span.end * PIECE_BYTES) - offset
            yield span.place + offset - span.first * PIECE_BYTES, taken
            offset += taken

    def known(self, number: int, offset: int, length: int) -> Iterator[tuple[int, int]]:
        """(address, length) of the parts of a freed run that have an address."""
        spans, end = self._objects.get(number, []), offset + length
        at = bisect_right(spans, offset // PIECE_BYTES, key=lambda span: span.end)
        while at < len(spans) and spans[at].first * PIECE_BYTES < end:
            span, at = spans[at], at + 1
            begin = max(offset, span.first * PIECE_BYTES)
            over = min(end, span.end * PIECE_BYTES) - begin
            yield span.place + begin - span.first * PIECE_BYTES, over

    def forget(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """(address, length) of everything that objects [first, end) had; they are deleted."""
        numbers, at = sorted(self._objects), 0
        for first, end in sorted(ranges):
            at = bisect_left(numbers, first, at)
            while at < len(numbers) and numbers[at] < end:
                for span in self._objects.pop(numbers[at]):
                    yield span.place, (span.end - span.first) * PIECE_BYTES
                at += 1


def records_of(changes: Changes, book: AddressBook, first_ns: int, span_ns: int) -> Batch:
    """The records of one interval: what was freed as TRIM, then what was allocated as WRITE.

    The time of each within the interval is not known: they are spread over it evenly, the first
    at `first_ns`, all before `first_ns + span_ns` (nanoseconds since the trace's zero).
    """
    freed, allocated = _runs(changes.freed), _runs(changes.allocated)
    parts = [
        (Op.TRIM, ADDRESSED, _addressed(freed)),
        (Op.TRIM, BY_OBJECT, _columns(_freed_places(changes, freed, book))),
        (Op.WRITE, ADDRESSED, _addressed(allocated)),
        (Op.WRITE, BY_OBJECT, _columns(_new_places(allocated, book))),
    ]
    counts = [len(columns) for _op, _volume, columns in parts]
    total = sum(counts)
    where = np.concatenate([columns for _op, _volume, columns in parts])
    return Batch(
        time_ns=first_ns + (np.arange(total) * (span_ns / max(total, 1))).astype(np.int64),
        volume=np.repeat(np.array([part[1] for part in parts], np.uint32), counts),
        op=np.repeat(np.array([part[0] for part in parts], np.uint8), counts),
        offset=where[:, 0].copy(),
        length=where[:, 1].copy(),
        latency_ns=np.full(total, NO_LATENCY, np.int64),
    )


def _runs(packed: bytes) -> _Runs:
    runs = np.frombuffer(packed, "<u8") if len(packed) % 24 == 0 else None
    if runs is None or np.any(runs > _OFFSET_MAX):
        raise ProtocolError("malformed list of changed blocks from the other end")
    return runs.reshape(-1, 3)


def _addressed(runs: _Runs) -> npt.NDArray[np.int64]:
    places: npt.NDArray[np.int64] = runs[runs[:, 0] == 0][:, 1:].astype(np.int64)
    return places


def _columns(places: Iterator[tuple[int, int]]) -> npt.NDArray[np.int64]:
    return np.array(list(places), np.int64).reshape(-1, 2)


def _of_objects(runs: _Runs) -> Iterator[tuple[int, int, int]]:
    """In order, each byte once."""
    known, covered = 0, 0
    for number, offset, length in sorted(runs[runs[:, 0] != 0].tolist()):
        begin = max(offset, covered) if number == known else offset
        end = min(offset + length, _OFFSET_MAX)
        if begin < end:
            yield number, begin, end - begin
            known, covered = number, end


def _freed_places(changes: Changes, freed: _Runs, book: AddressBook) -> Iterator[tuple[int, int]]:
    yield from book.forget(changes.gone)
    for number, offset, length in _of_objects(freed):
        yield from book.known(number, offset, length)


def _new_places(allocated: _Runs, book: AddressBook) -> Iterator[tuple[int, int]]:
    for number, offset, length in _of_objects(allocated):
        yield from book.placed(number, offset, length)
