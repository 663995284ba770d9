"""The stream of memory volumes: frames of block records, cheap to make and checked like a real one.

A frame has a header (magic, items, bytes of payload, CRC of both) and its payload:

- `HEAD`: text is JSON: base, guid, digest of the whole content. First.
- `RUNS`: records of block and version (0: the block is gone), by ascending block, each filled up to
  the volume's `stride`. What the link accounts for such a record is the size of a block.
- `DONE`: records in this stream and a CRC over all headers. Last.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import NamedTuple

from mirrord.core.errors import TransferFailed
from mirrord.drivers.refusals import stream_damaged
from mirrord.drivers.streams import SendStream
from tests.sim.link import Link

_HEADER = struct.Struct("<4sIII")
_RECORD = struct.Struct("<QQ")
_DONE = struct.Struct("<QQ")
RECORD_BYTES = _RECORD.size

Change = tuple[int, int]


class Geometry(NamedTuple):
    """Sizes: of a block as it is accounted, of its record in the stream, records in a frame."""

    block_bytes: int = 4096
    stride: int = RECORD_BYTES
    frame_blocks: int = 64


class Head(NamedTuple):
    """What a stream says of itself."""

    base: str | None
    guid: str
    digest: int


def frame(magic: bytes, items: int, payload: bytes) -> bytes:
    """A frame with its header."""
    plain = _HEADER.pack(magic, items, len(payload), 0)
    return (
        _HEADER.pack(magic, items, len(payload), zlib.crc32(payload, zlib.crc32(plain))) + payload
    )


class MemorySendStream(SendStream):
    """Cuts sorted changes into frames. Each read gives one, with head and end where they belong."""

    def __init__(
        self, where: str, geometry: Geometry, head: Head, changes: list[Change], link: Link | None
    ) -> None:
        self._where = where
        self._geometry = geometry
        self._head = head
        self._changes = changes
        self._link = link
        self._at = 0
        self._chain = 0
        self._state = "begin"

    def read(self) -> bytes:
        """The next frames, after the time that the link takes for them."""
        if self._state == "closed":
            raise TransferFailed("the stream was closed", where=self._where)
        if self._state == "ended":
            return b""
        parts = []
        if self._state == "begin":
            parts.append(self._chained(frame(b"HEAD", 0, json.dumps(self._head).encode())))
            self._state = "runs"
        taken = self._changes[self._at : self._at + self._geometry.frame_blocks]
        self._at += len(taken)
        if taken:
            filler = bytes(self._geometry.stride - RECORD_BYTES)
            payload = b"".join([_RECORD.pack(*change) + filler for change in taken])
            parts.append(self._chained(frame(b"RUNS", len(taken), payload)))
        if self._at >= len(self._changes):
            parts.append(frame(b"DONE", 0, _DONE.pack(len(self._changes), self._chain)))
            self._state = "ended"
        chunk = b"".join(parts)
        if self._link is None:
            return chunk
        return self._link.carry(chunk, len(taken) * self._geometry.block_bytes + 64)

    def close(self) -> None:
        """Nothing is held."""
        self._state = "closed"

    def _chained(self, whole: bytes) -> bytes:
        self._chain = zlib.crc32(whole[: _HEADER.size], self._chain)
        return whole


class Parser:
    """Takes a stream in pieces of any size and gives its changes, frame by checked frame."""

    def __init__(self, where: str, geometry: Geometry) -> None:
        self.head: Head | None = None
        self.done = False
        self._where = where
        self._stride = geometry.stride
        self._rest = b""
        self._count = 0
        self._chain = 0

    def feed(self, chunk: bytes | memoryview) -> list[list[Change]]:
        """The changes of each frame that is whole now. Raises `Damaged`."""
        self._rest += bytes(chunk)
        found = []
        while len(self._rest) >= _HEADER.size:
            magic, items, length, checksum = _HEADER.unpack_from(self._rest)
            end = _HEADER.size + length
            if magic not in (b"HEAD", b"RUNS", b"DONE") or self.done:
                raise stream_damaged(self._where, "a frame is malformed")
            if len(self._rest) < end:
                break
            whole, self._rest = self._rest[:end], self._rest[end:]
            plain = _HEADER.pack(magic, items, length, 0)
            if zlib.crc32(whole[_HEADER.size :], zlib.crc32(plain)) != checksum:
                raise stream_damaged(self._where, "a checksum is wrong")
            found.append(self._frame(magic, items, whole))
        return found

    def check_whole(self) -> None:
        """Raise `Damaged` unless the end was seen, and nothing behind it."""
        if not self.done or self._rest:
            raise stream_damaged(self._where, "it ends in the middle")

    def _frame(self, magic: bytes, items: int, whole: bytes) -> list[Change]:
        if magic == b"DONE":
            self.done = True
            if _DONE.unpack_from(whole, _HEADER.size) != (self._count, self._chain):
                raise stream_damaged(self._where, "frames are missing")
            return []
        self._chain = zlib.crc32(whole[: _HEADER.size], self._chain)
        if magic == b"HEAD":
            self.head = Head(*json.loads(whole[_HEADER.size :]))
            return []
        if self.head is None or len(whole) != _HEADER.size + items * self._stride:
            raise stream_damaged(self._where, "a frame is malformed")
        self._count += items
        offsets = range(_HEADER.size, len(whole), self._stride)
        return [_RECORD.unpack_from(whole, offset) for offset in offsets]
