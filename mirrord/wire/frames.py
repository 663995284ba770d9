"""Frames: the unit of the protocol between two mirrords, made and read without I/O.

A frame is a header of 20 bytes and a body (docs/wire.md):

    magic "mR" | version 1 | type 1 | stream 4 | length 4 | checksum 8      (little-endian)

checksum: XXH3-64 of the body, XOR XXH3-64 of the first 12 bytes of the header. Every
length is checked before anything is stored: a peer cannot make us hold more than it may send.
Headers are made, and frames are split and verified, by native code (native/net/src/frames.rs).
"""

from __future__ import annotations

import enum
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgpack

from mirrord.core.errors import ProtocolError, Unsupported
from mirrord.system.native import (
    FrameFault,
    FrameSplitter,
    Routes,
    frame_header,
    msgpack_weight,
)

MAGIC = b"mR"
#: Version of the frame format; the version of the protocol is agreed on by HELLO.
FORMAT = 1
HEADER = struct.Struct("<2sBBIIQ")
#: The longest body: a data frame of CHUNK_BYTES with what compression may add to it.
BODY_BYTES_MAX = (1 << 20) + (64 << 10)
#: Control bodies larger than a frame are split into PART frames: at most this many bytes of them,
#: over all streams.
CONTROL_BYTES_MAX = 256 << 20
#: Calls are small, however large their answers are.
CALL_BYTES_MAX = 1 << 20
#: Maximum raw bytes of one data frame.
CHUNK_BYTES = 512 << 10
#: Minimum that a PART frame counts against the budget: it has overhead beyond its bytes.
PART_BYTES_LEAST = 512
#: Maximum nesting of arrays and maps in a value.
DEPTH_MAX = 32


class Type(enum.IntEnum):
    """The type of a frame."""

    HELLO = 1  # the greeting, with the supported versions
    CALL = 2  # a call of a method
    RETURN = 3  # its return value
    ERROR = 4  # or its error
    DATA = 5  # a numbered piece of a stream
    END = 6  # the end of a stream: pieces, bytes, digest
    CREDIT = 7  # how many more bytes may be sent
    BEAT = 8  # a heartbeat
    CANCEL = 9  # the call is cancelled
    GOODBYE = 10  # the session ends, and why
    PART = 11  # a part of a control body that continues in another frame of its stream
    OPENED = 12  # the call has begun: data may be sent


class Limit(NamedTuple):
    """Limits of a control frame's value: its encoded bytes, and the memory of its objects."""

    body_bytes: int
    value_bytes: int


_SMALL = Limit(64 << 10, 1 << 20)
LIMITS = {
    Type.HELLO: _SMALL,
    Type.CALL: Limit(CALL_BYTES_MAX, 8 << 20),
    Type.RETURN: Limit(CONTROL_BYTES_MAX, 2 * CONTROL_BYTES_MAX),
    Type.ERROR: Limit(1 << 20, 8 << 20),
    Type.END: _SMALL,
    Type.CREDIT: _SMALL,
    Type.CANCEL: _SMALL,
    Type.GOODBYE: _SMALL,
    Type.OPENED: _SMALL,
}


class Budget:
    """Limits the memory that one session holds for its peer: parts, values, windows of data. Used
    by all of its threads.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left = self._max = bytes_max
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Take `count` bytes; `ProtocolError` when there are not enough left."""
        with self._lock:
            if count > self._left:
                raise ProtocolError("the other end sent more than a session may hold")
            self._left -= count

    def give(self, count: int) -> None:
        """Release `count` bytes."""
        with self._lock:
            self._left += count
            assert self._left <= self._max, (self._left, self._max)


class Frame(NamedTuple):
    """A frame that was read and checked. The body of a DATA frame is not copied into `bytes`."""

    type: Type
    stream: int
    body: bytes | memoryview


#: A frame as native code returns it: type, stream, body.
RawFrame = tuple[int, int, Any]


def header(kind: Type, stream: int, *body: bytes | memoryview) -> bytes:
    """The header for a body in these parts."""
    return frame_header(kind, stream, body)


def control(kind: Type, stream: int, value: Any) -> list[bytes]:
    """The bytes to write for a frame whose body is a msgpack value. `Unsupported` when it is larger
    than a frame of that type may be.
    """
    body = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")
    if len(body) > LIMITS[kind].body_bytes:
        raise Unsupported(
            "a message to the other end is larger than the protocol allows",
            why=f"a {kind.name} of {len(body)} bytes, the limit is {LIMITS[kind].body_bytes}",
        )
    parts: list[bytes] = []
    view = memoryview(body)
    while len(view) > CHUNK_BYTES:
        parts += [header(Type.PART, stream, view[:CHUNK_BYTES]), bytes(view[:CHUNK_BYTES])]
        view = view[CHUNK_BYTES:]
    return [*parts, header(kind, stream, view), bytes(view)]


def weight_of(kind: Type, body: bytes | memoryview) -> int:
    """The memory that the value of a control frame will take, computed without decoding it.
    `ProtocolError` when it exceeds the limit of its type, or is malformed.
    """
    limit = LIMITS[kind]
    if len(body) > limit.body_bytes:
        raise ProtocolError(f"a {kind.name} of {len(body)} bytes exceeds the limit")
    try:
        return msgpack_weight(body, DEPTH_MAX, limit.value_bytes)
    except ValueError as error:
        raise ProtocolError("malformed frame body", why=str(error)) from error


def value_of(body: bytes | memoryview, kind: Type = Type.RETURN) -> Any:
    """The value of a control frame of that type. `ProtocolError` when it is malformed."""
    weight_of(kind, body)
    try:
        return msgpack.unpackb(
            body, raw=False, strict_map_key=True, unicode_errors="surrogateescape"
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError("malformed frame body", why=str(error)) from error


@contextmanager
def faults() -> Iterator[None]:
    """`ProtocolError` for what native code finds wrong."""
    try:
        yield
    except FrameFault as error:
        what, hint = error.args
        raise ProtocolError(what, hint=hint) from None


class FrameReader:
    """Splits received bytes into frames. After the first error it must not be used again."""

    def __init__(self, *, stray_bytes_max: int = 0) -> None:
        """stray_bytes_max: how many bytes before the first frame are skipped (what a login shell
        prints before the remote program starts).
        """
        #: What was received before the beginning was found.
        self._buffer = bytearray()
        self._stray_max = stray_bytes_max
        #: Whether the first frame has begun.
        self.begun = False
        self._splitter = FrameSplitter()
        #: What was received before the first frame.
        self.stray = b""
        #: Frames in parts, by stream: the received bytes, and what they count against the budget.
        self._parts: dict[int, bytearray] = {}
        self._parts_bytes: dict[int, int] = {}
        self._parts_held = 0
        self._budget = Budget(CONTROL_BYTES_MAX)
        self._parts_max = CONTROL_BYTES_MAX

    def bound(self, budget: Budget, parts_bytes_max: int, routes: Routes | None = None) -> None:
        """From now on charge parts to a session's budget, limit all parts together to
        `parts_bytes_max`, and pass data and credit to their streams. Called after the greeting,
        which has no parts.
        """
        if self._parts:
            raise ProtocolError("the greeting of the other end is split into parts")
        self._budget, self._parts_max = budget, parts_bytes_max
        if routes is not None:
            routes.serve(self._splitter)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. `ProtocolError` when one is malformed."""
        if not self.begun:
            self._buffer += data
            if not self._find_beginning():
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        with faults():
            raw = self._splitter.feed(data)
        return self._whole(raw)

    @property
    def routed(self) -> int:
        """How many frames native code has taken, which are not returned."""
        return self._splitter.routed

    def take(
        self, receive: Callable[[FrameSplitter], tuple[int, Sequence[RawFrame]]]
    ) -> tuple[int, list[Frame]]:
        """Let `receive` pass bytes to the splitter, after the beginning; how many, and the frames.

        `ProtocolError` when one is malformed.
        """
        with faults():
            count, raw = receive(self._splitter)
        return count, self._whole(raw)

    def _whole(self, raw: Sequence[RawFrame]) -> list[Frame]:
        """The frames that are complete with these."""
        found = []
        for kind, stream, body in raw:
            whole = memoryview(body) if kind == Type.DATA else bytes(body)
            frame = self._completed(Frame(Type(kind), stream, whole))
            if frame is not None:
                found.append(frame)
        return found

    def _find_beginning(self) -> bool:
        at = self._buffer.find(MAGIC + bytes([FORMAT, Type.HELLO]))
        if at < 0:
            # Fewer bytes than a header are not enough to decide.
            if len(self._buffer) > self._stray_max + HEADER.size:
                if self._buffer.startswith(MAGIC):
                    with faults():
                        self._splitter.feed(self._buffer)
                self.stray = bytes(self._buffer[:200])
                raise ProtocolError("the other end does not use mirrord's protocol")
            return False
        if at > self._stray_max:
            raise ProtocolError("the other end does not use mirrord's protocol")
        self.stray = bytes(self._buffer[:at])
        del self._buffer[:at]
        self.begun = True
        return True

    def pending(self) -> bytes:
        """Received bytes that are not a frame yet, for messages."""
        return bytes(self._buffer[:200]) or bytes(self._splitter.pending())

    def _completed(self, frame: Frame) -> Frame | None:
        """The frame joined with its previous parts; None for a part."""
        if frame.type is Type.PART:
            self._take_part(frame)
            return None
        before = self._parts.pop(frame.stream, None) if self._parts else None
        if before is None:
            return frame
        held = self._parts_bytes.pop(frame.stream)
        self._parts_held -= held
        self._budget.give(held)
        return frame._replace(body=bytes(before) + frame.body)

    def _take_part(self, frame: Frame) -> None:
        count = max(len(frame.body), PART_BYTES_LEAST)
        if self._parts_held + count > self._parts_max:
            raise ProtocolError("a frame in parts exceeds the limit")
        self._budget.take(count)
        self._parts_held += count
        self._parts_bytes[frame.stream] = self._parts_bytes.get(frame.stream, 0) + count
        self._parts.setdefault(frame.stream, bytearray()).extend(frame.body)
