"""Reading content: from an image's tree to bytes, each block checked against its pointer."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from mirrord.core.errors import Damaged
from mirrord.drivers.block.format import BLOCK_BYTES, FANOUT, HOLE, Pointer, Root
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.block.tree import RadixTree, differences
from mirrord.system.native import pointer_runs
from mirrord.system.waiting import Waiting

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


def verify_added(
    store: BlockStore, base: Root | None, root: Root, waiting: Waiting, received_bytes: int
) -> int:
    """Read and verify every block that is in `root` and not in `base`; returns their number.

    received_bytes: of the stream, which has all of these blocks. Bounded memory; the time is that
    of reading the blocks. `Damaged` names the first bad one.
    This is how a destination verifies that the received data is what was announced: the root came
    with the snapshot's identity, and its checksums cover everything else.
    """
    total = 0
    blocks_max = min(root.allocated, received_bytes // BLOCK_BYTES)
    for leaves, (index_old, index_new) in enumerate(_leaf_pairs(store, base, root), start=1):
        total += _verify_leaf(store, index_old, index_new)
        _check_total(store, total + leaves, blocks_max, waiting)
    was = (base.data, base.height) if base is not None else (HOLE, root.height)
    now = (root.data, root.height)
    for _, _, _, new in differences(store, was, now, 1):
        total += bool(new.address)
        _check_total(store, total, blocks_max, waiting)
    for segment in root.segments:
        old = base.segment(segment.segment) if base is not None else None
        before = (old.root, old.height) if old is not None else (HOLE, segment.height)
        for level, _, _, new in differences(store, before, (segment.root, segment.height)):
            if new.address:
                total += 1
                _check_total(store, total, blocks_max, waiting)
                if level == 0:
                    store.node(*new)
    return total


def _check_total(store: BlockStore, total: int, blocks_max: int, waiting: Waiting) -> None:
    """Each block has one pointer. A crafted tree that reuses its nodes could refer to more blocks
    than can be read in reasonable time.
    """
    waiting.look()
    if total > blocks_max:
        raise Damaged(
            "its trees refer to more blocks than it has",
            where=store.where,
            why=f"{blocks_max} were received",
        )


def _leaf_pairs(
    store: BlockStore, base: Root | None, root: Root
) -> Iterator[tuple[bytes | None, bytes]]:
    for _, before, after in differing_leaves(store, base, root):
        if after.address:
            yield (store.node(*before) if before.address else None), store.node(*after)


def _verify_leaf(store: BlockStore, old: bytes | None, new: bytes) -> int:
    words = array("Q", new)
    addresses = words[0::2]
    if old is not None:
        before = array("Q", old)[0::2]
        # A block that both have was verified when it was received.
        addresses = array("Q", (a if a != b else 0 for a, b in zip(addresses, before, strict=True)))
    total = 0
    for begin, end in pointer_runs(addresses):
        if addresses[begin]:
            store.read_verified(addresses[begin], words[2 * begin + 1 : 2 * end : 2].tobytes())
            total += end - begin
    return total
