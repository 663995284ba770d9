"""The trace model: one record is one request to a volume.

In memory a trace is a sequence of batches of columns; on disk it is Parquet with the same columns
and the facts of its source in the file's metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

# Blocks are the unit of replay, as in the paper (SnapMirror, section 4): WAFL's 4 KiB.
BLOCK = 4096
# What the latency column says when a source does not tell it.
NO_LATENCY = -1


class Op(IntEnum):
    """What a record does to its range; the value is the one stored in the column."""

    WRITE = 0
    READ = 1
    # Trim, discard, unmap, deallocate: the range holds nothing that is needed from here on.
    TRIM = 2
    FLUSH = 3


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records as columns of one length.

    time_ns: int64, nanoseconds since the trace's own zero (`Facts.epoch_ns` says when that was).
    volume: uint32, index into `Facts.volumes`.
    op: uint8, a value of `Op`.
    offset, length: int64, bytes within the volume; both 0 for a flush.
    latency_ns: int64, `NO_LATENCY` where it is not known.
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
    """What is known of a trace as a whole."""

    name: str
    # The format it was read from, as `--format` names it: "vscsi1", "msr", "blkparse" …
    source_format: str
    volumes: tuple[str, ...]
    # Unix time of the trace's zero in nanoseconds; None where the source does not say.
    epoch_ns: int | None = None
    # Further facts to keep: file name, options that were given, counts of what was left out.
    notes: dict[str, str] = field(default_factory=dict)
