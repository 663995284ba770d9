"""Reading content: from an image's tree to bytes, each block checked against its pointer."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from mirrord.drivers.block.format import BLOCK_BYTES, FANOUT, HOLE, Pointer, Root
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.block.tree import RadixTree, differences

#: Blocks per read: 4 MiB.
_BLOCKS_PER_READ = 1024


def read_bytes(store: BlockStore, tree: RadixTree, offset: int, length: int) -> bytes:
    """`length` bytes of content from `offset` on. `Damaged` names the damaged block."""
    first, last = offset // BLOCK_BYTES, -(-(offset + length) // BLOCK_BYTES)
    parts = []
    while first < last:
        count = min(_BLOCKS_PER_READ, last - first)
        parts.append(read_blocks(store, tree, first, count))
        first += count
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    skip = offset % BLOCK_BYTES
    return data if skip == 0 and len(data) == length else data[skip : skip + length]


def read_blocks(store: BlockStore, tree: RadixTree, first: int, count: int) -> bytes:
    """Complete blocks of content; holes read as zeroes."""
    words = tree.pointers(first, count)
    parts = []
    for begin, end in pointer_runs(words[0::2]):
        if words[2 * begin]:
            sums = words[2 * begin + 1 : 2 * end : 2].tobytes()
            parts.append(store.read_verified(words[2 * begin], sums))
        else:
            parts.append(bytes((end - begin) * BLOCK_BYTES))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def pointer_runs(addresses: array[int]) -> Iterator[tuple[int, int]]:
    """Ranges (begin, end) of consecutive addresses, and of holes."""
    begin = 0
    for place in range(1, len(addresses) + 1):
        if place < len(addresses):
            before, address = addresses[place - 1], addresses[place]
            if address == before + 1 if before else not address:
                continue
        yield begin, place
        begin = place


def data_ranges(store: BlockStore, root: Root) -> Iterator[tuple[int, int]]:
    """Ranges (first, count) of content blocks that may contain data, leaf by leaf."""
    for index, _, now in differing_leaves(store, None, root):
        words = array("Q", store.node(*now))
        for begin, end in pointer_runs(words[0::2]):
            if words[2 * begin]:
                yield index * FANOUT + begin, end - begin


def differing_leaves(
    store: BlockStore, old: Root | None, new: Root
) -> Iterator[tuple[int, Pointer, Pointer]]:
    """The leaves of the data trees that differ: (index, old pointer, new pointer), ascending."""
    was = (old.data, old.height) if old is not None else (HOLE, new.height)
    for level, index, before, after in differences(store, was, (new.data, new.height), 1):
        if level == 1:
            yield index, before, after


def changed_blocks(store: BlockStore, old: Root, new: Root) -> int:
    """How many content blocks differ between two images."""
    total = 0
    for _, before, after in differing_leaves(store, old, new):
        one, other = (
            array("Q", store.node(*pointer) if pointer.address else bytes(BLOCK_BYTES))[0::2]
            for pointer in (before, after)
        )
        total += sum(a != b for a, b in zip(one, other, strict=True))
    return total
