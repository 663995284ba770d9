"""The options for reading a source: its format, its units, and how to handle its anomalies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from mirrord.core.errors import UsageError

TIME_UNITS = {"s": 10**9, "ms": 10**6, "us": 1000, "100ns": 100, "ns": 1}
SIZE_UNITS = {"sector": 512, "b": 1, "byte": 1, "bytes": 1, "block": 4096, "4k": 4096, "k": 1024}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a source; None means the format's default.

    time_unit: of `TIME_UNITS`. addr_unit, size_unit: of `SIZE_UNITS`, or a number of bytes.
    write_flag: the value of the operation's column that marks a write.
    columns: of a CSV, as "time=0,op=3,offset=4,length=5,volume=1+2" (from 0, or header names).
    only: of blktrace and blkparse: Q queued, C completed, D issued …
    align_shift: bytes to add to each offset; "auto": so that writes touch the fewest blocks.
    dedup_s: drop block writes within so many seconds after the previous write of the block.
    volume: read only this one. partial: drop a last record that is truncated.
    skip_bad: skip malformed records. scratch: folder for temporary files.
    """

    format: str | None = None
    time_unit: str | None = None
    addr_unit: str | None = None
    size_unit: str | None = None
    write_flag: str | None = None
    columns: str | None = None
    only: str | None = None
    align_shift: int | Literal["auto"] = 0
    dedup_s: float = 0.0
    volume: str | None = None
    partial: bool = False
    skip_bad: bool = False
    scratch: str | None = None

    @property
    def filters(self) -> bool:
        """Whether a filter is set: only a part of a trace is read, or its offsets are shifted."""
        return bool(self.align_shift or self.dedup_s or self.volume)

    def given(self) -> dict[str, str]:
        """Options that differ from the default, as text for the notes of a trace."""
        default = ReadOptions()
        return {
            each.name: str(getattr(self, each.name))
            for each in fields(self)
            if getattr(self, each.name) != getattr(default, each.name) and each.name != "scratch"
        }


def time_unit_ns(unit: str | None, default: str) -> int:
    """Nanoseconds of a unit of time. `UsageError` for an unknown unit."""
    found = TIME_UNITS.get((unit or default).lower())
    if found is None:
        raise UsageError(
            f"'{unit}' is not a unit of time", hint=f"Units are: {', '.join(TIME_UNITS)}."
        )
    return found


def unit_bytes(unit: str | None, default: str) -> int:
    """Bytes of a unit of addresses or sizes. `UsageError` for an unknown unit."""
    text = (unit or default).lower()
    if text.isdigit() and 0 < int(text) <= 1 << 30:
        return int(text)
    found = SIZE_UNITS.get(text)
    if found is None:
        raise UsageError(
            f"'{unit}' is not a unit of size",
            hint=f"Units are: {', '.join(SIZE_UNITS)}, or a number of bytes.",
        )
    return found
