"""One pass over a trace: counts, spans, and the evidence for findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirrord.system.native import TraceSurvey
from mirrord.traces import batches as make
from mirrord.traces.model import Batch, Op


@dataclass(frozen=True)
class Seen:
    """Statistics of a trace. Times: nanoseconds; sizes: bytes.

    records, sizes: by name of operation. touched: 4 KiB blocks touched by writes when 0, 512 …
    3584 bytes are added to each offset. round_s, round_ms: records whose time is a multiple of
    that. gaps: how soon the followed blocks were rewritten, of `followed_writes` writes to these
    blocks (a sample when there are many blocks): within 1 ms, 10 ms, 0.1 s, 1 s, 10 s, later.
    peak_bytes: most written in one second. later: records later than the previous one: all, by less
    than 1 µs, by less than 1 ms.
    """

    records: dict[str, int]
    sizes: dict[str, int]
    first_ns: int
    last_ns: int
    end_bytes: int
    backward: int
    backward_max_ns: int
    empty: int
    longest: int
    unaligned: int
    touched: list[int]
    round_s: int
    round_ms: int
    round_us: int
    followed_writes: int
    gaps: list[int]
    twin_reads: int
    peak_bytes: int
    later: list[int]

    @property
    def count(self) -> int:
        """All records."""
        return sum(self.records.values())

    @property
    def writes(self) -> int:
        """Number of writes."""
        return self.records["write"]

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last record."""
        return max(0, self.last_ns - self.first_ns) / 1e9


class Surveyor:
    """Collects the statistics of batches."""

    def __init__(self) -> None:
        self._native = TraceSurvey()

    def see(self, batch: Batch) -> None:
        """Count a batch; batches may come in any order."""
        if len(batch):
            self._native.feed(make.to_native(batch))

    def result(self) -> Seen:
        """The statistics so far."""
        found = self._native.result()
        names = [op.name.lower() for op in Op]
        some = sum(found["records"]) > 0
        return Seen(
            records=dict(zip(names, found["records"], strict=True)),
            sizes=dict(zip(names, found["bytes"], strict=True)),
            first_ns=found["first"] if some else 0,
            last_ns=found["last"] if some else 0,
            end_bytes=found["end"],
            backward=found["backward"],
            backward_max_ns=found["backward_max"],
            empty=found["empty"],
            longest=found["longest"],
            unaligned=found["unaligned"],
            touched=list(found["touched"]),
            round_s=found["round"][0],
            round_ms=found["round"][1],
            round_us=found["round"][2],
            followed_writes=found["followed_writes"],
            gaps=list(found["gaps"]),
            twin_reads=found["twin_reads"],
            peak_bytes=found["peak_bytes"],
            later=list(found["later"]),
        )


def survey(batches: Iterable[Batch]) -> Seen:
    """The survey of all batches."""
    surveyor = Surveyor()
    for batch in batches:
        surveyor.see(batch)
    return surveyor.result()


def best_shift(seen: Seen) -> int:
    """Bytes to add to offsets so that writes touch the fewest 4 KiB blocks; 0 if it hardly helps.

    Fewer than 1 % of the blocks saved is chance, not a shifted grid.
    """
    if not seen.touched or not seen.touched[0]:
        return 0
    best = min(range(len(seen.touched)), key=lambda index: seen.touched[index])
    saved = 1 - seen.touched[best] / seen.touched[0]
    return 512 * best if saved >= 0.01 else 0
