"""Verifies an image along its trees: every block against the pointer to it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from mirrord.core.errors import Damaged
from mirrord.drivers.block.content import differing_leaves, pointer_runs
from mirrord.drivers.block.format import HOLE, Root
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.block.tree import differences
from mirrord.system.waiting import Waiting


def verify_added(store: BlockStore, base: Root | None, root: Root, waiting: Waiting) -> int:
    """Read and verify every block that is in `root` and not in `base`; returns their number.

    Bounded memory; the time is that of reading the blocks. `Damaged` names the first bad one.
    This is how a destination verifies that the received data is what was announced: the root came
    with the snapshot's identity, and its checksums cover everything else.
    """
    total = 0
    for leaves, (index_old, index_new) in enumerate(_leaf_pairs(store, base, root), start=1):
        total += _verify_leaf(store, index_old, index_new)
        _check_total(store, root, total + leaves, waiting)
    was = (base.data, base.height) if base is not None else (HOLE, root.height)
    now = (root.data, root.height)
    for _, _, _, new in differences(store, was, now, 1):
        total += bool(new.address)
        _check_total(store, root, total, waiting)
    for segment in root.segments:
        old = base.segment(segment.segment) if base is not None else None
        before = (old.root, old.height) if old is not None else (HOLE, segment.height)
        for level, _, _, new in differences(store, before, (segment.root, segment.height)):
            if new.address:
                total += 1
                _check_total(store, root, total, waiting)
                if level == 0:
                    store.node(*new)
    return total


def _check_total(store: BlockStore, root: Root, total: int, waiting: Waiting) -> None:
    """Each block has one pointer. A crafted tree that reuses its nodes could refer to more blocks
    than can be read in reasonable time.
    """
    waiting.look()
    if total > root.allocated:
        raise Damaged(
            "its trees refer to more blocks than it has",
            where=store.where,
            why=f"{root.allocated} are in use",
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
