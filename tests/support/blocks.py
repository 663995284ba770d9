"""The content of snapshots of block volumes."""

from __future__ import annotations

from mirrord.drivers.block.content import read_bytes
from mirrord.drivers.block.tree import RadixTree
from mirrord.drivers.block.volume import Volume


def read_snapshot(volume: Volume, guid: str, offset: int, length: int) -> bytes:
    """Bytes of a snapshot. `NotFound`, `Damaged`."""
    with volume.mutex:
        root = volume.entry(guid).root
        tree = RadixTree(volume.store, root.data, root.height)
        return read_bytes(volume.store, tree, offset, length)
