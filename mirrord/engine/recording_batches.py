"""Convert allocated and freed runs to the records of a trace."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mirrord.core.model import Changes
from mirrord.traces.model import NO_LATENCY, Batch, Op

#: Volumes of a recorded trace, by index: runs with addresses of the volume, and runs of objects.
ADDRESSED, BY_OBJECT = 0, 1
#: Objects are placed in the trace's address space in pieces of this size.
PIECE_BYTES = 1 << 20
_OFFSET_MAX = (1 << 63) - 1

#: Rows of (object, offset, length).
_Runs = npt.NDArray[np.uint64]


class AddressBook:
    """Addresses for pieces of objects (files, segments) in one address space, in the order in which
    they are first written. What was never written has no address, and its free is not recorded.
    """

    def __init__(self) -> None:
        self._objects: dict[int, dict[int, int]] = {}
        self._end = 0

    def placed(self, number: int, offset: int, length: int) -> Iterator[tuple[int, int]]:
        """(address, length) of the pieces of a run that is written."""
        pieces = self._objects.setdefault(number, {})
        end = offset + length
        while offset < end:
            piece, within = divmod(offset, PIECE_BYTES)
            place = pieces.get(piece)
            if place is None:
                place = pieces[piece] = self._end
                self._end += PIECE_BYTES
            taken = min(end - offset, PIECE_BYTES - within)
            yield place + within, taken
            offset += taken

    def known(self, number: int, offset: int, length: int) -> Iterator[tuple[int, int]]:
        """(address, length) of the parts of a freed run that have an address."""
        pieces = self._objects.get(number, {})
        end = offset + length
        first, last = offset // PIECE_BYTES, -(-end // PIECE_BYTES)
        wanted = range(first, last) if last - first <= len(pieces) else sorted(pieces)
        for piece in wanted:
            place = pieces.get(piece)
            begin, over = max(offset, piece * PIECE_BYTES), min(end, (piece + 1) * PIECE_BYTES)
            if place is not None and begin < over:
                yield place + begin - piece * PIECE_BYTES, over - begin

    def forget(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """(address, length) of everything that these objects had; they are deleted."""
        few = end - first <= len(self._objects)
        numbers = range(first, end) if few else sorted(self._objects)
        for number in numbers:
            if first <= number < end:
                for place in self._objects.pop(number, {}).values():
                    yield place, PIECE_BYTES


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
    return np.frombuffer(packed, "<u8").reshape(-1, 3)


def _addressed(runs: _Runs) -> npt.NDArray[np.int64]:
    places: npt.NDArray[np.int64] = runs[runs[:, 0] == 0][:, 1:].astype(np.int64)
    return places


def _columns(places: Iterator[tuple[int, int]]) -> npt.NDArray[np.int64]:
    return np.array(list(places), np.int64).reshape(-1, 2)


def _of_objects(runs: _Runs) -> Iterator[tuple[int, int, int]]:
    for number, offset, length in runs[runs[:, 0] != 0].tolist():
        yield number, offset, min(length, _OFFSET_MAX - offset)


def _freed_places(changes: Changes, freed: _Runs, book: AddressBook) -> Iterator[tuple[int, int]]:
    for first, end in changes.gone:
        yield from book.forget(first, end)
    for number, offset, length in _of_objects(freed):
        yield from book.known(number, offset, length)


def _new_places(allocated: _Runs, book: AddressBook) -> Iterator[tuple[int, int]]:
    for number, offset, length in _of_objects(allocated):
        yield from book.placed(number, offset, length)
