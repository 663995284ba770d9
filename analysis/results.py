"""The results of a replay: per update and in total, in blocks and in bytes.

The three volumes (SnapMirror, sections 4.1 and 4.2, Figures 2 and 3):
- update_in_place: a block-level mirror of a volume that overwrites in place sends each block that
  was written in the interval, once.
- active_map: SnapMirror; a no-overwrite volume, of whose newly written blocks only those are sent
  that are still in the active map at the update.
- no_active_map: the same volume mirrored without the active map: each physical block that was
  written in the interval is sent (see `mirrord.analysis.allocator`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mirrord.analysis.grids import Grid

Column = npt.NDArray[np.int64]

VOLUMES = ("update_in_place", "active_map", "no_active_map")


@dataclass(frozen=True, slots=True)
class GridResult:
    """The updates of one grid; all columns have one entry per update, also without writes.

    start_ns, end_ns: trace time. With fixed intervals the last update's end is the nominal one;
    otherwise it is just after the last record. Blocks of the replay's size; written and
    written_bytes: what a synchronous mirror sends in the interval, in blocks and in exact bytes.
    whole_volumes: each volume with a write is sent completely, up to its last block: as dump or
    rsync -W do if the volumes of a trace are files (section 5).
    """

    grid: Grid
    block: int
    start_ns: Column
    end_ns: Column
    written: Column
    written_bytes: Column
    update_in_place: Column
    active_map: Column
    no_active_map: Column
    whole_volumes: Column

    @property
    def label(self) -> str:
        """The name of these intervals."""
        return self.grid.label

    @property
    def seconds(self) -> float | None:
        """Their length, if it is fixed."""
        return self.grid.seconds

    def blocks(self, volume: str) -> Column:
        """Blocks that each update transfers; volume: one of `VOLUMES`."""
        column: Column = getattr(self, volume)
        return column


@dataclass(frozen=True, slots=True)
class Writes:
    """Bytes written over time: `bytes[i]` from `start_ns + i * bin_ns` on, for `bin_ns`.

    Bins are one second; two, four … in traces that would have more than four million bins.
    busiest: the most bytes written within a second, whenever it begins; 0: not known. links: the
    slowest on which no write arrives later than a bound, bytes per second by seconds; of the bounds
    for which the replay was asked.
    """

    start_ns: int
    bin_ns: int
    bytes: Column
    busiest: int = 0
    links: Mapping[float, float] = field(default_factory=dict)

    @property
    def end_ns(self) -> int:
        """The end of the last bin."""
        return self.start_ns + self.bin_ns * len(self.bytes)


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace replayed into the three volumes.

    blocks_written: block writes, as in Table 1: what a synchronous block-level mirror sends.
    unique_blocks: different blocks written. written_deleted: block writes that were overwritten or
    deleted by the end of the trace (Table 1). first_ns, last_ns: of any record, trace time.
    """

    name: str
    volumes: tuple[str, ...]
    epoch_ns: int | None
    first_ns: int
    last_ns: int
    records: int
    writes: int
    trims: int
    block: int
    free_space: float
    blocks_written: int
    bytes_written: int
    unique_blocks: int
    written_deleted: int
    grids: tuple[GridResult, ...]
    writes_series: Writes

    @property
    def written_deleted_percent(self) -> float:
        """Table 1's last column."""
        return 100.0 * self.written_deleted / self.blocks_written if self.blocks_written else 0.0
