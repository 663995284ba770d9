"""The disk format of a block volume: fields, sizes and pointers.

A volume is a directory:

- `data`: blocks of 4 KiB, numbered from 1 (number 0 is not used, so that 0 can mean "a hole").
  A block is never overwritten while any root refers to it (SnapMirror, FAST'02, 3.1).
- `data.<6 hex digits>`: the same, for a further *segment* of the block space.
- `root`: the fsinfo block of the paper, the only file that is replaced (rootrecord.py).
- `staging/<transfer id>/state`: the state of a receive in progress (staging.py).
- `lock`, `writer`: held during a mirror operation, and while the root record is changed.

A *pointer* is 16 bytes, little-endian: the address of a block and the XXH3-64 of its content.
Pointers are kept in radix trees of fan-out 256 whose nodes are blocks of the same volume, so that
one root pointer verifies everything that can be reached from it.

A block's *address* is `segment << 40 | number`. The paper numbers blocks 1 to N; the segments are
an extension of that. The destination writes blocks at the source's numbers. Once it is made live
("break"), both ends allocate. Each promotion opens a segment with a random id and allocates only
there. Therefore the two sides never use one number for different content, a diverged side can be
kept as a snapshot next to the other, and resync is possible in either direction. After a resync
the source opens one, too: what was kept may have blocks that the source frees later.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from mirrord.system.native import StreamChecksum, block_checksums

#: Bytes of a block, for data and for metadata.
BLOCK_BYTES = 4096
#: Pointers in a tree node.
FANOUT = 256
#: Bytes of a pointer.
POINTER_BYTES = 16
#: Blocks that one block of an active map covers.
CHUNK_BITS = BLOCK_BYTES * 8
#: The largest volume: 4 levels of 256 pointers.
SIZE_BYTES_MAX = 16 << 40
#: Segments of a volume: each promotion opens one, and each source after a resync.
SEGMENTS_MAX = 4096
#: Position of the segment in an address.
SEGMENT_SHIFT = 40
NUMBER_MASK = (1 << SEGMENT_SHIFT) - 1

POINTER = struct.Struct("<QQ")
ZERO_BLOCK = bytes(BLOCK_BYTES)
ZERO_SUM = block_checksums(ZERO_BLOCK, BLOCK_BYTES)


#: Maximum height of the tree of a segment's map, which then covers all numbers.
MAP_HEIGHT_MAX = 4


class Pointer(NamedTuple):
    """The address of a block and the checksum of its content; address 0: a hole."""

    address: int
    checksum: int


HOLE = Pointer(0, 0)


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """The active map of one segment, as stored in a root.

    root, height: of the tree of map blocks; height 0: the root is the one map block.
    allocated: bits set in it.
    high: one more than the highest block number ever used in the segment.
    """

    segment: int
    root: Pointer
    height: int
    allocated: int
    high: int


@dataclass(frozen=True, slots=True)
class Root:
    """The root of one consistent image of the volume."""

    size_bytes: int
    data: Pointer = HOLE
    segments: tuple[SegmentMap, ...] = ()

    @property
    def height(self) -> int:
        """Levels of nodes above the data blocks."""
        return data_height(self.size_bytes)

    @property
    def allocated(self) -> int:
        """Blocks in use, nodes and maps included."""
        return sum(one.allocated for one in self.segments)

    def segment(self, segment: int) -> SegmentMap | None:
        """The map of a segment, if this image has blocks there."""
        return next((one for one in self.segments if one.segment == segment), None)

    def as_list(self) -> list[Any]:
        """For the root record and the stream's header (JSON)."""
        maps = [[m.segment, *m.root, m.height, m.allocated, m.high] for m in self.segments]
        return [self.size_bytes, *self.data, maps]

    def check(self) -> None:
        """`ValueError` when its numbers cannot be those of a volume. Always checked, because
        trees are walked and files opened by these numbers.
        """
        _in_range("size", self.size_bytes, 0, SIZE_BYTES_MAX)
        if len(self.segments) > SEGMENTS_MAX:
            raise ValueError(f"it has {len(self.segments)} segments")
        before = -1
        for one in self.segments:
            _in_range("segment", one.segment, before + 1, (1 << 24) - 1)
            _in_range("height", one.height, 0, MAP_HEIGHT_MAX)
            reach = min(CHUNK_BITS << 8 * one.height, 1 << SEGMENT_SHIFT)
            _in_range("highest block", one.high, 0, reach)
            _in_range("blocks in use", one.allocated, 0, one.high)
            before = one.segment
        for address, checksum in (self.data, *(one.root for one in self.segments)):
            _in_range("address", address, 0, (1 << 64) - 1)
            _in_range("checksum", checksum, 0, (1 << 64) - 1)

    def names(self, address: int, count: int) -> bool:
        """Whether all blocks of a run can be in use in this root."""
        one = self.segment(segment_of(address))
        return one is not None and 0 < number_of(address) <= one.high - count

    @classmethod
    def from_list(cls, words: list[Any]) -> Root:
        """The inverse of `as_list`; `ValueError` or `TypeError` when malformed."""
        size_bytes, address, checksum, maps = words
        segments = tuple(
            SegmentMap(int(s), Pointer(int(a), int(c)), int(h), int(n), int(high))
            for s, a, c, h, n, high in maps
        )
        return cls(int(size_bytes), Pointer(int(address), int(checksum)), segments)


def _in_range(what: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise ValueError(f"out of range: {what} {number:#x}")


def data_height(size_bytes: int) -> int:
    """Levels of nodes that a volume of this size needs, at least 1."""
    height, reach = 1, FANOUT * BLOCK_BYTES
    while reach < size_bytes:
        height, reach = height + 1, reach * FANOUT
    return height


def address_of(segment: int, number: int) -> int:
    """The address of a block."""
    return segment << SEGMENT_SHIFT | number


def segment_of(address: int) -> int:
    """The segment of an address."""
    return address >> SEGMENT_SHIFT


def number_of(address: int) -> int:
    """The block number within its segment."""
    return address & NUMBER_MASK


def describe(address: int) -> str:
    """An address for display: `17` or, outside segment 0, `a1b2c3:17`."""
    segment = segment_of(address)
    return f"{segment:06x}:{number_of(address)}" if segment else str(address)


def data_file_name(segment: int) -> str:
    """The file that holds a segment's blocks."""
    return f"data.{segment:06x}" if segment else "data"


def checksum_text(data: bytes | memoryview) -> str:
    """XXH3-128 as 32 hex digits."""
    state = StreamChecksum()
    state.update(data)
    return state.hexdigest()


def sum_of(data: bytes | bytearray | memoryview) -> int:
    """XXH3-64 of `data`, which is not empty."""
    return int.from_bytes(block_checksums(data, len(data)), "little")
