"""The tree of a volume's snapshot, from the content that `zfs send` reads.

So no device has to be made visible and no clone is created: nothing in the pool changes. ZFS
verifies each block by its checksum; at one that cannot be read the stream ends, and another one is
begun behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from contextlib import closing

from mirrord.core.errors import MirrordError
from mirrord.core.verification import BLOCK_BYTES, VerifyRequest
from mirrord.drivers.snapshottrees import VolumeTrees
from mirrord.drivers.zfs.stream import tokens
from mirrord.drivers.zfs.stream.send import Sending, ZfsSendStream
from mirrord.drivers.zfs.stream.tokens import Token
from mirrord.system.waiting import Waiting

#: The object of a volume that holds its content.
_CONTENT = 1
#: How often a stream is begun again behind unreadable blocks; then the rest counts as unreadable.
_AGAIN_MAX = 100
_HEADER_BYTES = 312
_BEGIN, _OBJECT, _WRITE, _SPILL = 0, 1, 3, 7
#: What `zfs send` says of EIO, and of a checksum or a compressed block that is wrong.
_UNREADABLE = ("Input/output error", "insufficient replicas")


class ZvolTree(VolumeTrees):
    """Computes the tree of a snapshot: see `snapshottrees.VolumeTrees`."""

    def __init__(
        self, sending: Sending, size: int, request: VerifyRequest, waiting: Waiting
    ) -> None:
        super().__init__(request, size)
        self._sending, self._waiting = sending, waiting
        self._blocks = self._found()
        #: The next block that is not a hole.
        self._next: tuple[int, bytearray | None] | None = (-1, None)

    def close(self) -> None:
        """End `zfs send`."""
        self._blocks.close()

    def _take(self, number: int) -> None:
        while self._next is not None and self._next[0] < number:
            self._next = next(self._blocks, None)
        if self._next is None or self._next[0] > number:
            self._tree.add(bytes(min(BLOCK_BYTES, self._size - number * BLOCK_BYTES)))
        elif self._next[1] is None:
            self._unreadable += 1
            self._tree.add_unreadable()
        else:
            self._tree.add(self._next[1])

    def _found(self) -> Generator[tuple[int, bytearray | None]]:
        """The blocks of the tree that are not holes, ascending; None: it cannot be read."""
        first, count = 0, -(-self._size // BLOCK_BYTES)
        for _ in range(_AGAIN_MAX):
            bad = yield from self._readable(first, count)
            if bad >= count:
                return
            first = self._behind(bad, count)
            yield from ((number, None) for number in range(bad, first))
        yield from ((number, None) for number in range(first, count))

    def _readable(
        self, first: int, count: int
    ) -> Generator[tuple[int, bytearray | None], None, int]:
        """Those from `first` on; returns the number of the unreadable one that ends them."""
        number, block, end = first, bytearray(), first * BLOCK_BYTES
        try:
            for offset, data in self._writes(end):
                if offset // BLOCK_BYTES != number and block:
                    yield number, block
                    block = bytearray()
                number, at = divmod(offset, BLOCK_BYTES)
                block = block or bytearray(min(BLOCK_BYTES, self._size - offset + at))
                block[at : at + len(data)] = data
                end = offset + len(data)
                self._read_blocks += 1
                self._read_bytes += len(data)
        except _Unreadable:
            if block and end >= number * BLOCK_BYTES + len(block):
                yield number, block
            return end // BLOCK_BYTES
        if block:
            yield number, block
        return count

    def _behind(self, bad: int, count: int) -> int:
        """From which block on something can be read again. What lies between may also be holes: a
        stream does not tell them before it has come to the next data.
        """
        step, works = 1, min(bad + 1, count)
        while works < count and not self._has_data(works):
            bad, step = works, 2 * step
            works = min(bad + step, count)
        while works - bad > 1:
            middle = (bad + works) // 2
            if self._has_data(middle):
                works = middle
            else:
                bad = middle
        return works

    def _has_data(self, first: int) -> bool:
        """Whether a stream from there on gives data, or ends, before an unreadable block."""
        try:
            with closing(self._writes(first * BLOCK_BYTES)) as found:
                next(found, None)
        except _Unreadable:
            return False
        return True

    def _writes(self, start: int) -> Generator[tuple[int, memoryview]]:
        """The content from that offset on: (offset, data), ascending."""
        token = Token(
            toguid=int(self._sending.guid),
            toname=self._sending.incremental,
            object=_CONTENT,
            offset=start,
        )
        where = self._sending.incremental
        with ZfsSendStream(self._sending, where, tokens.encode(token) if start else None) as stream:
            stream.waiting = self._waiting
            records = _Records(stream)
            while header := records.take(_HEADER_BYTES):
                kind, length = struct.unpack_from("=II", header)
                number, offset, size = struct.unpack_from("=Q8xQQ", header, 8)
                if kind == _OBJECT:
                    length = -(-struct.unpack_from("=I", header, 28)[0] // 8) * 8
                elif kind == _WRITE:
                    length = size
                elif kind == _SPILL:
                    length = struct.unpack_from("=Q", header, 16)[0]
                elif kind != _BEGIN:
                    length = 0
                data = records.take(length)
                if kind == _WRITE and number == _CONTENT:
                    yield offset, data


class _Records:
    """Cuts a stream."""

    def __init__(self, stream: ZfsSendStream) -> None:
        self._stream = stream
        self._left = memoryview(b"")

    def take(self, length: int) -> memoryview:
        """So many bytes; none at the end."""
        parts = []
        while length > len(self._left):
            parts.append(self._left)
            length -= len(self._left)
            self._left = memoryview(self._read())
            if not self._left:
                return self._left
        parts.append(self._left[:length])
        self._left = self._left[length:]
        return memoryview(b"".join(parts)) if len(parts) > 1 else parts[0]

    def _read(self) -> bytes | memoryview:
        try:
            return self._stream.read()
        except MirrordError as error:
            if any(text in error.why for text in _UNREADABLE):
                raise _Unreadable from error
            raise


class _Unreadable(Exception):
    """A block of the volume cannot be read."""
