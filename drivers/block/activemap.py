"""Active maps: one bit for each block, for the live image and for each snapshot.

As in the paper (FAST'02, 3.1) a map is stored like any other content: map blocks of 32,768 bits
are kept in a radix tree, per segment, and are copied on write; a snapshot's map is the live map at
that time, shared until it changes. A map also covers its own blocks and nodes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from mirrord.core.errors import Damaged, InvariantError, IoFailed
from mirrord.core.model import DATA_MISSING
from mirrord.drivers.block.format import (
    BLOCK_BYTES,
    CHUNK_BITS,
    HOLE,
    ZERO_BLOCK,
    Pointer,
    Root,
    SegmentMap,
    address_of,
    data_file_name,
    number_of,
    segment_of,
)
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.block.tree import RadixTree, differences
from mirrord.system.native import bitmap_runs

#: A run of blocks: address of the first, and how many.
Run = tuple[int, int]


class MapView:
    """The active map of a frozen root, read chunk by chunk."""

    def __init__(self, store: BlockStore, root: Root) -> None:
        self.root = root
        self.trees = {one.segment: RadixTree(store, one.root, one.height) for one in root.segments}

    def pointer(self, segment: int, chunk: int) -> tuple[int, int]:
        """The pointer to a map block: equal pointers mean equal bits."""
        tree = self.trees.get(segment)
        return tree.pointer(0, chunk) if tree is not None else HOLE

    def bits(self, segment: int, chunk: int) -> int:
        """A map block as one integer; bit n is block `chunk * 32768 + n`."""
        tree = self.trees.get(segment)
        block = tree.node(0, chunk) if tree is not None else None
        return int.from_bytes(block, "little") if block is not None else 0


def cut_files(directory: Path, root: Root) -> Iterator[str]:
    """Notes on data files of an image that are missing, or end before its last block."""
    for one in root.segments:
        path = directory / data_file_name(one.segment)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = -1
        # A file may end before `high`: what the source had freed by then was never sent.
        if size < one.high * BLOCK_BYTES and _is_used(directory, root, one, size // BLOCK_BYTES):
            what = "is missing" if size < 0 else "has been truncated"
            yield (
                f"{DATA_MISSING}: the file {path} {what}; "
                f"'mirrord volume check {shlex.quote(str(directory))}' lists the lost blocks."
            )


def _is_used(directory: Path, root: Root, segment: SegmentMap, number: int) -> bool:
    """Whether an image has blocks in a segment from that number on."""
    first = max(0, number)
    chunks = range(first // CHUNK_BITS, -(-segment.high // CHUNK_BITS))
    with closing(BlockStore(directory, writable=False)) as store:
        view = MapView(store, root)
        try:
            return any(
                view.bits(segment.segment, chunk) >> max(0, first - chunk * CHUNK_BITS)
                for chunk in chunks
            )
        except Damaged:
            return True  # its map is among what is lost
        except IoFailed:
            return False  # a reader of the data gets the error


def held_bits(views: Iterable[MapView], segment: int, chunk: int) -> int:
    """The summary of some frozen roots for one map block."""
    bits, seen = 0, {0}
    for view in views:
        address, _ = view.pointer(segment, chunk)
        if address not in seen:
            seen.add(address)
            bits |= view.bits(segment, chunk)
    return bits


class LiveMap(MapView):
    """The active map of the live image, with its changes in memory. root: what it began as."""

    def __init__(self, store: BlockStore, root: Root) -> None:
        super().__init__(store, root)
        self._store = store
        self.allocated = {one.segment: one.allocated for one in root.segments}
        self.high = {one.segment: one.high for one in root.segments}

    def set_run(self, address: int, count: int) -> None:
        """Mark free blocks as in use."""
        segment = segment_of(address)
        if segment not in self.trees:
            self.trees[segment] = RadixTree(self._store, HOLE, 0)
            self.allocated[segment] = self.high[segment] = 0
        tree = self.trees[segment]
        end = number_of(address) + count
        while end > CHUNK_BITS << 8 * tree.height:
            tree.grow()
        self._flip(address, count, to=True)
        self.allocated[segment] += count
        self.high[segment] = max(self.high[segment], end)

    def clear_run(self, address: int, count: int) -> None:
        """Mark blocks in use as free."""
        self._flip(address, count, to=False)
        self.allocated[segment_of(address)] -= count

    def maps(self) -> tuple[SegmentMap, ...]:
        """The segment maps for a root; correct once all changes are written."""
        return tuple(
            SegmentMap(segment, tree.root, tree.height, self.allocated[segment], self.high[segment])
            for segment, tree in sorted(self.trees.items())
        )

    def drop_segment(self, segment: int) -> None:
        """Remove a segment without blocks; frees the blocks of its map."""
        tree = self.trees[segment]
        stale = [address for address in tree.replaced.values() if address]
        # Walking from the changed nodes finds only the unchanged blocks.
        for level, index in list(tree.changed):
            if level:
                for slot in range(256):
                    key = (level - 1, index << 8 | slot)
                    if key not in tree.changed:
                        address, checksum = tree.pointer(*key)
                        if address:
                            child = RadixTree(self._store, Pointer(address, checksum), level - 1)
                            stale.extend(child.addresses())
        if not tree.changed:
            stale.extend(tree.addresses())
        for address in stale:
            self.clear_run(address, 1)
        del self.trees[segment], self.allocated[segment], self.high[segment]

    def _flip(self, address: int, count: int, *, to: bool) -> None:
        segment, number = segment_of(address), number_of(address)
        tree = self.trees[segment]
        while count:
            chunk, bit = divmod(number, CHUNK_BITS)
            taken = min(count, CHUNK_BITS - bit)
            block = tree.change(0, chunk)
            first, last = bit >> 3, (bit + taken + 7) >> 3
            window = int.from_bytes(block[first:last], "little")
            mask = ((1 << taken) - 1) << (bit & 7)
            if window & mask != (0 if to else mask):  # (No assert: it holds with `-O`, too.)
                raise InvariantError("a block was allocated or freed twice")
            block[first:last] = (window ^ mask).to_bytes(last - first, "little")
            number, count = number + taken, count - taken


def differing_chunks(
    store: BlockStore, old: Root | None, new: Root
) -> Iterator[tuple[int, int, Pointer, Pointer]]:
    """Where two active maps differ: (segment, chunk, old pointer, new pointer), ascending."""
    segments = {one.segment for one in new.segments}
    if old is not None:
        segments.update(one.segment for one in old.segments)
    for segment in sorted(segments):
        was = old.segment(segment) if old is not None else None
        now = new.segment(segment)
        for level, chunk, before, after in differences(store, _tree_of(was), _tree_of(now)):
            if level == 0:
                yield segment, chunk, before, after


def added_runs(store: BlockStore, base: Root | None, incremental: Root) -> Iterator[Run]:
    """The runs of blocks in use in `incremental` only, in ascending address order."""
    return merged(
        run
        for segment, chunk, before, after in differing_chunks(store, base, incremental)
        for run in runs_of(segment, chunk, _bits(store, after) & ~_bits(store, before))
    )


def runs_of(segment: int, chunk: int, bits: int) -> list[Run]:
    """The runs of set bits of one map block."""
    base = address_of(segment, chunk * CHUNK_BITS)
    return [(base + first, n) for first, n in bitmap_runs(bits.to_bytes(BLOCK_BYTES, "little"))]


def merged(runs: Iterable[Run]) -> Iterator[Run]:
    """Merge runs of which each begins where the one before it ends."""
    first, count = 0, 0
    for address, length in runs:
        if count and address == first + count:
            count += length
        else:
            if count:
                yield first, count
            first, count = address, length
    if count:
        yield first, count


def _tree_of(one: SegmentMap | None) -> tuple[Pointer, int]:
    return (one.root, one.height) if one is not None else (HOLE, 0)


def _bits(store: BlockStore, pointer: Pointer) -> int:
    block = store.node(*pointer) if pointer.address else ZERO_BLOCK
    return int.from_bytes(block, "little")
