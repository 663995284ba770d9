"""Radix trees of blocks: copy on write, and the walk over the differences of two trees.

Level 0 is the payload: data blocks, or map blocks. Levels 1 to `height` are nodes of 256
pointers. A node that is to change is copied into memory together with its ancestors; writing it
out gives each a new address. An unchanged tree is a view of a frozen image.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from mirrord.drivers.block.format import (
    BLOCK_BYTES,
    FANOUT,
    HOLE,
    POINTER,
    POINTER_BYTES,
    ZERO_BLOCK,
    Pointer,
)
from mirrord.drivers.block.store import BlockStore
from mirrord.system.native import block_checksums

#: Nodes per write call: 1 MiB.
_NODES_PER_WRITE = 256


class RadixTree:
    """One tree; `root` and `height` are those on disk until `write_level` updates them.

    changed: nodes in memory, by (level, index).
    replaced: for each of those, the address of the block that it replaces (0: none).
    """

    def __init__(self, store: BlockStore, root: Pointer, height: int) -> None:
        self.store = store
        self.root = root
        self.height = height
        self.changed: dict[tuple[int, int], bytearray] = {}
        self.replaced: dict[tuple[int, int], int] = {}

    def pointer(self, level: int, index: int) -> Pointer | tuple[int, int]:
        """The stored pointer to a node (level 0: to a payload block)."""
        if level >= self.height:
            return self.root if index == 0 and level == self.height else HOLE
        parent = self.node(level + 1, index >> 8)
        if parent is None:
            return HOLE
        return POINTER.unpack_from(parent, (index & 255) * POINTER_BYTES)

    def node(self, level: int, index: int) -> bytes | bytearray | None:
        """The current content of a node; None: a hole. Must not be modified."""
        found = self.changed.get((level, index))
        if found is not None:
            return found
        address, checksum = self.pointer(level, index)
        return self.store.node(address, checksum) if address else None

    def change(self, level: int, index: int) -> bytearray:
        """The content of a node, for modification. `index` must be within the tree's range."""
        key = (level, index)
        found = self.changed.get(key)
        if found is not None:
            return found
        if level < self.height:
            self.change(level + 1, index >> 8)
        address, checksum = self.pointer(level, index)
        node = bytearray(self.store.node(address, checksum) if address else BLOCK_BYTES)
        self.changed[key] = node
        self.replaced[key] = address
        return node

    def grow(self) -> None:
        """Add a level at the top: multiplies the range by 256."""
        top = bytearray(BLOCK_BYTES)
        POINTER.pack_into(top, 0, *self.root)
        self.height += 1
        self.root = HOLE
        self.changed[(self.height, 0)] = top
        self.replaced[(self.height, 0)] = 0

    def pointers(self, first: int, count: int) -> array[int]:
        """The pointers to payload blocks from `first` on: address, checksum, address, …"""
        found: array[int] = array("Q")
        while count:
            slot = first % FANOUT
            taken = min(count, FANOUT - slot)
            leaf = self.node(1, first // FANOUT)
            if leaf is None:
                found.frombytes(bytes(taken * POINTER_BYTES))
            else:
                found.frombytes(leaf[slot * POINTER_BYTES : (slot + taken) * POINTER_BYTES])
            first, count = first + taken, count - taken
        return found

    def hole_reach(self, first: int) -> int:
        """How many payload blocks from `first` on are certainly a hole; 0 when its leaf exists."""
        level = 1
        if self.node(level, first // FANOUT) is not None:
            return 0
        while level < self.height and self.node(level + 1, first >> 8 * (level + 1)) is None:
            level += 1
        reach = 1 << 8 * level
        return reach - first % reach

    def changed_at(self, level: int) -> list[int]:
        """Indices of the changed nodes of a level, ascending."""
        return sorted(index for at, index in self.changed if at == level)

    def prune_level(self, level: int) -> list[int]:
        """Drop changed nodes without pointers; returns the indices of the others."""
        kept = []
        for index in self.changed_at(level):
            if self.changed[(level, index)] != ZERO_BLOCK:
                kept.append(index)
            else:
                self._point(level, index, 0, 0)
                del self.changed[(level, index)]
        return kept

    def write_level(self, op: str, level: int, indices: list[int], addresses: list[int]) -> None:
        """Write changed nodes at new addresses and update their parents. Call bottom up."""
        begin = 0
        while begin < len(indices):
            end = begin + 1
            while (
                end < len(indices)
                and addresses[end] == addresses[end - 1] + 1
                and end - begin < _NODES_PER_WRITE
            ):
                end += 1
            nodes = [bytes(self.changed.pop((level, index))) for index in indices[begin:end]]
            data = b"".join(nodes)
            sums = array("Q", block_checksums(data, BLOCK_BYTES))
            self.store.write(op, addresses[begin], data)
            for place, node in enumerate(nodes, start=begin):
                pointer = Pointer(addresses[place], sums[place - begin])
                self._point(level, indices[place], *pointer)
                self.store.remember(pointer, node)
            begin = end

    def addresses(self) -> Iterator[int]:
        """The addresses of all stored nodes and payload blocks; an unchanged tree only."""
        pending = [(self.height, self.root)] if self.root.address else []
        while pending:
            level, pointer = pending.pop()
            yield pointer.address
            if level:
                words = array("Q", self.store.node(*pointer))
                children = map(Pointer, words[0::2], words[1::2])
                pending.extend((level - 1, child) for child in children if child.address)

    def _point(self, level: int, index: int, address: int, checksum: int) -> None:
        if level == self.height:
            self.root = Pointer(address, checksum)
        else:
            parent = self.changed[(level + 1, index >> 8)]
            POINTER.pack_into(parent, (index & 255) * POINTER_BYTES, address, checksum)


def differences(
    store: BlockStore, old: tuple[Pointer, int], new: tuple[Pointer, int], stop_level: int = 0
) -> Iterator[tuple[int, int, Pointer, Pointer]]:
    """Where two trees (root, height) differ: (level, index, old pointer, new pointer).

    Every pair of differing pointers from the top down to `stop_level`, ascending by index.
    Shared subtrees are skipped unread, so the time is proportional to the change (SnapMirror,
    FAST'02, 3.2.2). The lower of two trees is treated as child 0 of the missing levels.
    """
    height = max(old[1], new[1])
    pending = [(height, 0, old[0], new[0])]
    while pending:
        level, index, was, now = pending.pop()
        if was == now and (level <= min(old[1], new[1]) or not was.address):
            continue
        yield level, index, was if level <= old[1] else HOLE, now if level <= new[1] else HOLE
        if level > stop_level:
            children = zip(
                _children(store, was, virtual=level > old[1]),
                _children(store, now, virtual=level > new[1]),
                strict=True,
            )
            found = [
                (level - 1, index << 8 | slot, one, other)
                for slot, (one, other) in enumerate(children)
                if one != other
            ]
            pending.extend(reversed(found))


def _children(store: BlockStore, pointer: Pointer, *, virtual: bool) -> list[Pointer]:
    if virtual:
        return [pointer] + [HOLE] * (FANOUT - 1)
    if not pointer.address:
        return [HOLE] * FANOUT
    words = array("Q", store.node(*pointer))
    return list(map(Pointer, words[0::2], words[1::2]))
