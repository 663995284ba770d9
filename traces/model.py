"""The trace model: one record is one request to a volume.

In memory a trace is a sequence of batches of columns; on disk it is Parquet with the same columns
and facts about its source in the file's metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

# Blocks are the unit of replay, as in the paper (SnapMirror, section 4): WAFL's 4 KiB.
BLOCK = 4096
# Value of the latency column when the source does not record it.
NO_LATENCY = -1
#: The note of a slice that says of which trace it is a part.
SLICE_OF = "slice_of"


class Op(IntEnum):
    """What a record does to its range; the value is the one stored in the column."""

    WRITE = 0
    READ = 1
    # Trim, discard, unmap, deallocate: the contents of the range are no longer needed.
    TRIM = 2
    FLUSH = 3


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records as columns of one length.

    time_ns: int64, nanoseconds since the trace's own zero (whose time is `Facts.epoch_ns`).
    volume: uint32, index into `Facts.volumes`.
    op: uint8, a value of `Op`.
    offset, length: int64, bytes within the volume; both 0 for a flush.
    latency_ns: int64, `NO_LATENCY` if unknown.
    """

    time_ns: npt.NDArray[np.int64]
    volume: npt.NDArray[np.uint32]
    op: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    latency_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class Facts:
    """The metadata of a trace."""

    name: str
    # The format it was read from, as `--format` names it: "vscsi1", "msr", "blkparse" …
    source_format: str
    volumes: tuple[str, ...]
    # Unix time of the trace's zero in nanoseconds; None if the source has no date.
    epoch_ns: int | None = None
    # Further metadata: file name, given options, counts of what was left out.
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def date_ns(self) -> int | None:
        """`epoch_ns` if that is a date, from 1824 to 2116: by a wrong unit of time it is none."""
        is_date = self.epoch_ns is not None and abs(self.epoch_ns) <= 1 << 62
        return self.epoch_ns if is_date else None
