"""Which blocks may be written: those that no root refers to.

A block is free when it is clear in the live map, in the map of the last committed root and in
every snapshot's map: the paper's summary map (FAST'02, 3.1). It is computed for one map block
at a time, when the allocator reaches it, so that opening a volume scans nothing.

The allocator sweeps upwards from its last position and uses the free blocks that it finds. At the
end of the block space it extends it; when that has grown by a quarter, it starts again at the
beginning. So freed numbers are reused late, in long runs, and the space stays close to the size
that is needed.
"""

from __future__ import annotations

from mirrord.drivers.block.activemap import LiveMap, MapView, Run, held_bits, runs_of
from mirrord.drivers.block.format import CHUNK_BITS

#: A map block with fewer free blocks than this is skipped in a sweep.
_FREE_WORTH_WHILE = CHUNK_BITS // 8
_ALL = (1 << CHUNK_BITS) - 1


class Allocator:
    """Hands out free blocks of one segment.

    views: the frozen roots that hold blocks, by any key; maintained by the volume.
    chunk: the current map block. grown: map blocks added since the last sweep began.
    """

    def __init__(self, live: LiveMap, segment: int, *, chunk: int = 0, grown: int = 0) -> None:
        self.live = live
        self.segment = segment
        self.views: dict[str, MapView] = {}
        self.chunk = chunk
        self.grown = grown
        self._runs: list[Run] | None = None

    def allocate(self, count: int) -> list[Run]:
        """Allocate `count` free blocks; returns their runs, marked as in use in the live map."""
        given: list[Run] = []
        while count:
            if self._runs is None:
                free = runs_of(self.segment, self.chunk, self._free(self.chunk))
                self._runs = free[::-1]
            if not self._runs:
                self._advance()
                continue
            first, length = self._runs.pop()
            taken = min(length, count)
            if taken < length:
                self._runs.append((first + taken, length - taken))
            self.live.set_run(first, taken)
            given.append((first, taken))
            count -= taken
        return given

    def held_bits(self, segment: int, chunk: int) -> int:
        """The summary of the frozen roots for one map block."""
        return held_bits(self.views.values(), segment, chunk)

    def _free(self, chunk: int) -> int:
        used = self.live.bits(self.segment, chunk) | self.held_bits(self.segment, chunk)
        # Number 0 of a segment means "no block".
        return ~(used | (chunk == 0)) & _ALL

    def _advance(self) -> None:
        high = max(
            [self.live.high.get(self.segment, 0)]
            + [
                one.high
                for view in self.views.values()
                if (one := view.root.segment(self.segment)) is not None
            ]
        )
        chunks = -(-high // CHUNK_BITS)
        self._runs = None
        while True:
            self.chunk += 1
            if self.chunk >= chunks:
                if self.grown < max(2, chunks // 4):
                    self.grown += 1
                    self.chunk = chunks
                    return
                self.grown, self.chunk = 0, 0
            if self._free(self.chunk).bit_count() >= _FREE_WORTH_WHILE:
                return
