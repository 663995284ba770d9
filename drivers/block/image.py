"""The live image: the content that is being changed, and how a new root is written.

Data is written to free blocks at once; nodes and maps change in memory. `write_out` then gives
every changed node a new block, from the leaves up. The active map is last: allocating its own
blocks changes it, so the set of map nodes to be rewritten is completed first (each is allocated
once, and that changes few others because allocation is contiguous), and only then written.
Nothing on disk refers to any of it until the root record is replaced.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, groupby

from mirrord.drivers.block.activemap import LiveMap, MapView, Run, merged, runs_of
from mirrord.drivers.block.allocator import Allocator
from mirrord.drivers.block.format import (
    BLOCK_BYTES,
    FANOUT,
    POINTER_BYTES,
    ZERO_BLOCK,
    ZERO_SUM,
    Root,
)
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.block.tree import RadixTree
from mirrord.system.native import block_checksums

#: Number of changed nodes in memory above which they should be written out: 64 MiB.
CHANGED_NODES_MAX = 16384
#: Freed runs shorter than this (64 KiB) are not returned to the file system individually.
_PUNCH_BLOCKS_MIN = 16
_PUNCH_LOOKUPS_MAX = 20_000


class LiveImage:
    """The current live content of a volume; `root` is the result of the last write-out."""

    def __init__(
        self, store: BlockStore, root: Root, segment: int, *, chunk: int = 0, grown: int = 0
    ) -> None:
        self.store = store
        self.root = root
        self.map = LiveMap(store, root)
        self.allocator = Allocator(self.map, segment, chunk=chunk, grown=grown)
        self.tree = RadixTree(store, root.data, root.height)
        self.changed = False

    def write_blocks(self, first: int, data: memoryview) -> None:
        """Replace complete blocks of content. Blocks of zeroes become holes."""
        sums = block_checksums(data, BLOCK_BYTES)
        for start, count, zero in _zero_runs(data, sums):
            if zero:
                self.free_blocks(first + start, count)
                continue
            self.changed = True
            at = start
            for address, taken in self.allocator.allocate(count):
                piece = data[at * BLOCK_BYTES : (at + taken) * BLOCK_BYTES]
                self.store.write("BLOCK:WRITE:DATA", address, piece)
                words = array("Q", bytes(taken * POINTER_BYTES))
                words[0::2] = array("Q", range(address, address + taken))
                words[1::2] = array("Q", sums[at * 8 : (at + taken) * 8])
                self._point(first + at, words.tobytes())
                at += taken

    def free_blocks(self, first: int, count: int) -> None:
        """Turn complete blocks of content into a hole."""
        while count:
            hole = self.tree.hole_reach(first)
            if hole:
                taken = min(count, hole)
            else:
                taken = min(count, FANOUT - first % FANOUT)
                if any(self.tree.pointers(first, taken)):
                    self.changed = True
                    self._point(first, bytes(taken * POINTER_BYTES))
            first, count = first + taken, count - taken

    def write_out(self) -> Root:
        """Write all changes to free blocks, durably, and return the new root."""
        if not self.changed:
            return self.root
        self._write_tree()
        for segment, allocated in list(self.map.allocated.items()):
            if allocated == 0 and segment != self.allocator.segment:
                self.map.drop_segment(segment)
        self._write_maps(self._place_maps())
        self.store.sync("BLOCK:FLUSH:SYNC")
        self.root = Root(self.root.size_bytes, self.tree.root, self.map.maps())
        self.changed = False
        return self.root

    def returnable(self, before: Root, after: Root, chunks: Iterable[tuple[int, int]]) -> list[Run]:
        """Runs of blocks that `before` used, and that neither `after` nor a frozen root uses.

        Searches `chunks` only; best effort, bounded in time, ignores short runs.
        """
        old, new = MapView(self.store, before), MapView(self.store, after)
        found: list[Run] = []
        budget = _PUNCH_LOOKUPS_MAX
        for segment, chunk in chunks:
            budget -= len(self.allocator.views) + 1
            if budget < 0:
                break
            bits = old.bits(segment, chunk) & ~new.bits(segment, chunk)
            if bits:
                bits &= ~self.allocator.held_bits(segment, chunk)
                runs = runs_of(segment, chunk, bits)
                found.extend(run for run in runs if run[1] >= _PUNCH_BLOCKS_MIN)
        return found

    def _point(self, first: int, pointers: bytes) -> None:
        """Store packed pointers to content blocks from `first` on; frees the old blocks."""
        at, end = 0, len(pointers)
        while at < end:
            slot = first % FANOUT * POINTER_BYTES
            size = min(end - at, BLOCK_BYTES - slot)
            leaf = self.tree.change(1, first // FANOUT)
            old = array("Q", bytes(leaf[slot : slot + size]))[0::2]
            leaf[slot : slot + size] = pointers[at : at + size]
            if any(old):
                for address, count in _address_runs(old):
                    self.map.clear_run(address, count)
            at, first = at + size, first + size // POINTER_BYTES

    def _write_tree(self) -> None:
        tree = self.tree
        for address, count in _address_runs(sorted(tree.replaced.values())):
            self.map.clear_run(address, count)
        for level in range(1, tree.height + 1):
            kept = tree.prune_level(level)
            addresses = _flat(self.allocator.allocate(len(kept)))
            tree.write_level("BLOCK:FLUSH:NODES", level, kept, addresses)
        tree.replaced.clear()

    def _place_maps(self) -> dict[tuple[int, int, int], int]:
        """Allocate a block for each changed map block and node, until no more of them change."""
        placed: dict[tuple[int, int, int], int] = {}
        while True:
            todo = sorted(
                (segment, level, index)
                for segment, tree in self.map.trees.items()
                for level, index in tree.changed
                if (segment, level, index) not in placed
            )
            if not todo:
                return placed
            for segment, level, index in todo:
                old = self.map.trees[segment].replaced[(level, index)]
                if old:
                    self.map.clear_run(old, 1)
            placed.update(zip(todo, _flat(self.allocator.allocate(len(todo))), strict=True))

    def _write_maps(self, placed: dict[tuple[int, int, int], int]) -> None:
        for segment, tree in self.map.trees.items():
            for level in range(tree.height + 1):
                indices = tree.changed_at(level)
                addresses = [placed[(segment, level, index)] for index in indices]
                tree.write_level("BLOCK:FLUSH:MAPS", level, indices, addresses)
            tree.replaced.clear()


def _flat(runs: list[Run]) -> list[int]:
    return list(chain.from_iterable(range(first, first + count) for first, count in runs))


def _address_runs(addresses: Iterable[int]) -> Iterator[Run]:
    """Runs of consecutive addresses in the order given; zeroes (holes) are left out."""
    return merged((address, 1) for address in addresses if address)


def _zero_runs(data: memoryview, sums: bytes) -> Iterator[tuple[int, int, bool]]:
    """Split blocks into runs of data and runs of zeroes: (first, count, zero)."""
    total = len(sums) // 8
    if ZERO_SUM not in sums:
        yield 0, total, False
        return
    zeroes = (
        sums[block * 8 : block * 8 + 8] == ZERO_SUM
        and bytes(data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]) == ZERO_BLOCK
        for block in range(total)
    )
    begin = 0
    for zero, run in groupby(zeroes):
        count = len(list(run))
        yield begin, count, zero
        begin += count
