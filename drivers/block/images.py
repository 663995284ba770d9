"""Reading one image of a volume from its beginning to its end, while others may write.

A snapshot holds its blocks. Nothing holds those of the live image once a newer one was committed:
then reading it ends with `Busy` when a block is gone, and never goes on with the newer image.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirrord.core.errors import Busy, Damaged
from mirrord.drivers.block import rootrecord
from mirrord.drivers.block.content import data_ranges, read_bytes
from mirrord.drivers.block.format import BLOCK_BYTES, Root
from mirrord.drivers.block.tree import RadixTree
from mirrord.drivers.block.volume import Volume


def root_of(volume: Volume, guid: str | None) -> Root:
    """The root of a snapshot, or of the live image as it was last committed."""
    return volume.record.live if guid is None else volume.entry(guid).root


def read_image(volume: Volume, root: Root, offset: int, length: int) -> bytes:
    """Bytes of the image with that root, all within it. `Busy`, `Damaged`."""
    with volume.mutex, _unchanged(volume, root):
        return read_bytes(
            volume.store, RadixTree(volume.store, root.data, root.height), offset, length
        )


def pieces(volume: Volume, root: Root) -> Iterator[tuple[int, bytes]]:
    """The content of an image without holes: (offset, bytes), ascending. Errors as above."""
    with _unchanged(volume, root):
        for first, count in data_ranges(volume.store, root):
            offset = first * BLOCK_BYTES
            length = min(count * BLOCK_BYTES, root.size_bytes - offset)
            yield offset, read_image(volume, root, offset, length)


@contextmanager
def _unchanged(volume: Volume, root: Root) -> Iterator[None]:
    try:
        yield
    except Damaged:
        if root in rootrecord.load(volume.path).roots.values():
            raise
        raise Busy(
            "the content changed while it was read",
            where=str(volume.path),
            hint="Read it again, or read a snapshot ('--snapshot'), which never changes.",
        ) from None
