"""Frames: the unit of the protocol between two mirrords, made and read without I/O.

A frame is a header of 20 bytes and a body (docs/wire.md):

    magic "mR" | version 1 | type 1 | stream 4 | length 4 | checksum 8      (little-endian)

checksum: XXH3-64 of the body, exclusive-or XXH3-64 of the first 12 bytes of the header. Every
length is checked before anything is stored: a peer cannot make us hold more than it may send.
"""

from __future__ import annotations

import enum
import struct
import threading
from typing import Any, NamedTuple

import msgpack

from mirrord.core.errors import ProtocolError, Unsupported
from mirrord.system.native import block_checksums, msgpack_weight

MAGIC = b"mR"
#: Of the frame format; a change of what the frames say is a matter of HELLO.
FORMAT = 1
HEADER = struct.Struct("<2sBBIIQ")
_HEAD = struct.Struct("<2sBBII")
#: The longest body: a data frame of CHUNK_BYTES with what compression may add to it.
BODY_BYTES_MAX = (1 << 20) + (64 << 10)
#: Control bodies larger than a frame are cut into PART frames: at most this much of them, over
#: all streams.
CONTROL_BYTES_MAX = 256 << 20
#: What a client may ask for is small, however large the answers are.
CALL_BYTES_MAX = 1 << 20
#: The raw bytes of one data frame at the most.
CHUNK_BYTES = 512 << 10
#: What is held of a peer's parts counts so much at least: there is more to it than its bytes.
PART_BYTES_LEAST = 512
#: Arrays and maps within each other, in any value.
DEPTH_MAX = 32


class Type(enum.IntEnum):
    """What a frame is."""

    HELLO = 1  # who speaks, and which versions
    CALL = 2  # ask for a method
    RETURN = 3  # its value
    ERROR = 4  # or its failure
    DATA = 5  # a numbered piece of a stream
    END = 6  # the stream is whole: pieces, bytes, digest
    CREDIT = 7  # so many bytes more may be sent
    BEAT = 8  # nothing but life
    CANCEL = 9  # nobody wants the rest
    GOODBYE = 10  # the session ends, and why
    PART = 11  # the next part of a control body that goes on in another frame of its stream
    OPENED = 12  # what was called has begun: data may flow


class Limit(NamedTuple):
    """Of a control frame's value: its bytes on the way, and the memory that its objects take."""

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
    """What one session may hold of what its peer sent: parts, values, windows of data. Used by all
    of its threads.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left = self._max = bytes_max
        self._lock = threading.Lock()

    def offered(self, count: int) -> bool:
        """Take `count` bytes, if there are so many left."""
        with self._lock:
            if count > self._left:
                return False
            self._left -= count
            return True

    def take(self, count: int) -> None:
        """As `offered`; `ProtocolError` when there are not so many."""
        if not self.offered(count):
            raise ProtocolError("the other end sends more than a session may hold")

    def give(self, count: int) -> None:
        """They are no longer held."""
        with self._lock:
            self._left += count
            assert self._left <= self._max, (self._left, self._max)

    @property
    def held(self) -> int:
        """Bytes that are taken now."""
        with self._lock:
            return self._max - self._left


class Frame(NamedTuple):
    """A frame that was read and checked."""

    type: Type
    stream: int
    body: bytes


def checksum_of(data: bytes | memoryview) -> int:
    """XXH3-64 of some bytes."""
    return int.from_bytes(block_checksums(data, len(data)), "little") if len(data) else 0


def header(kind: Type, stream: int, body: bytes | memoryview) -> bytes:
    """The header that belongs before `body`."""
    head = _HEAD.pack(MAGIC, FORMAT, kind, stream, len(body))
    checksum = checksum_of(body) ^ checksum_of(head)
    return HEADER.pack(MAGIC, FORMAT, kind, stream, len(body), checksum)


def control(kind: Type, stream: int, value: Any) -> list[bytes]:
    """The parts to write for a frame whose body is a msgpack value. `Unsupported` when it is larger
    than a frame of that type may be.
    """
    body = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")
    if len(body) > LIMITS[kind].body_bytes:
        raise Unsupported(
            "what is to be told to the other end is larger than the protocol allows",
            why=f"a {kind.name} of {len(body)} bytes of {LIMITS[kind].body_bytes}",
        )
    parts: list[bytes] = []
    view = memoryview(body)
    while len(view) > CHUNK_BYTES:
        parts += [header(Type.PART, stream, view[:CHUNK_BYTES]), bytes(view[:CHUNK_BYTES])]
        view = view[CHUNK_BYTES:]
    return [*parts, header(kind, stream, view), bytes(view)]


def weight_of(kind: Type, body: bytes) -> int:
    """The memory that the value of a control frame will take, before any of it is made.
    `ProtocolError` when it is more than its type allows, or no value.
    """
    limit = LIMITS[kind]
    if len(body) > limit.body_bytes:
        raise ProtocolError(f"a {kind.name} of {len(body)} bytes is longer than any may be")
    try:
        return msgpack_weight(body, DEPTH_MAX, limit.value_bytes)
    except ValueError as error:
        raise ProtocolError("malformed frame body", why=str(error)) from error


def value_of(body: bytes, kind: Type = Type.RETURN) -> Any:
    """The value of a control frame of that type. `ProtocolError` when it is none."""
    weight_of(kind, body)
    try:
        return msgpack.unpackb(
            body, raw=False, strict_map_key=True, unicode_errors="surrogateescape"
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError("malformed frame body", why=str(error)) from error


class FrameReader:
    """Cuts what arrives into frames; the first wrong byte is an error, and the end of it."""

    def __init__(self, *, stray_bytes_max: int = 0) -> None:
        """stray_bytes_max: bytes before the first frame that are passed over (what a login shell
        prints before the program at the other end speaks).
        """
        self._buffer = bytearray()
        self._stray_max = stray_bytes_max
        self._begun = False
        #: What stood before the first frame.
        self.stray = b""
        #: Of a frame whose body is not whole yet: its header, what is here, and how much is not.
        self._header = b""
        self._here: list[bytes] = []
        self._missing = 0
        #: Of frames in parts: what has come, by stream, and what that counts.
        self._parts: dict[int, bytearray] = {}
        self._parts_bytes: dict[int, int] = {}
        self._parts_held = 0
        self._budget = Budget(CONTROL_BYTES_MAX)
        self._parts_max = CONTROL_BYTES_MAX

    def bound(self, budget: Budget, parts_bytes_max: int) -> None:
        """From now on what is held counts against a session's budget, and all parts together
        against `parts_bytes_max`. After the greeting, which has no parts.
        """
        if self._parts:
            raise ProtocolError("the other end greets in parts")
        self._budget, self._parts_max = budget, parts_bytes_max

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now. `ProtocolError` says what is wrong with one."""
        found: list[Frame] = []
        if self._missing:
            rest = self._go_on(data, found)
            if rest is None:
                return found
            data = rest
        buffer = self._buffer
        buffer += data
        if not self._begun and not self._find_beginning():
            return found
        at = 0
        while len(buffer) - at >= HEADER.size:
            magic, version, kind, _, length, _ = HEADER.unpack_from(buffer, at)
            _check(magic, version, kind, length)
            header, begin = bytes(buffer[at : at + HEADER.size]), at + HEADER.size
            at = begin + length
            if len(buffer) < at:
                # A large body is put together once, when all of it is here.
                self._header, self._here = header, [bytes(memoryview(buffer)[begin:])]
                self._missing = at - len(buffer)
                buffer.clear()
                return found
            self._checked(header, bytes(memoryview(buffer)[begin:at]), found)
        if at:
            del buffer[:at]
        return found

    def _go_on(self, data: bytes, found: list[Frame]) -> bytes | None:
        """More of a body that has begun; what comes after it, or None while it is not whole."""
        if len(data) < self._missing:
            self._here.append(data)
            self._missing -= len(data)
            return None
        view = memoryview(data)
        body = b"".join([*self._here, view[: self._missing]])
        rest = bytes(view[self._missing :])
        self._here, self._missing = [], 0
        self._checked(self._header, body, found)
        return rest

    def _checked(self, header: bytes, body: bytes, found: list[Frame]) -> None:
        """Add the frame if it is one, and whole."""
        _, _, kind, stream, _, checksum = HEADER.unpack(header)
        if checksum != checksum_of(body) ^ checksum_of(header[: _HEAD.size]):
            raise ProtocolError("a frame's checksum does not match")
        frame = self._whole(Frame(Type(kind), stream, body))
        if frame is not None:
            found.append(frame)

    def _find_beginning(self) -> bool:
        at = self._buffer.find(MAGIC + bytes([FORMAT, Type.HELLO]))
        if at < 0:
            # Fewer bytes than a header cannot tell yet.
            if len(self._buffer) > self._stray_max + HEADER.size:
                if self._buffer.startswith(MAGIC):
                    _check(MAGIC, self._buffer[2], self._buffer[3], 0)
                self.stray = bytes(self._buffer[:200])
                raise ProtocolError("what the other end says is not mirrord's protocol")
            return False
        if at > self._stray_max:
            raise ProtocolError("what the other end says is not mirrord's protocol")
        self.stray = bytes(self._buffer[:at])
        del self._buffer[:at]
        self._begun = True
        return True

    def pending(self) -> bytes:
        """What has arrived and is no frame yet, for messages."""
        return bytes(self._buffer[:200])

    def _whole(self, frame: Frame) -> Frame | None:
        """The frame with the parts that came before it; None while more are to come."""
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
            raise ProtocolError("a frame in parts is larger than any may be")
        self._budget.take(count)
        self._parts_held += count
        self._parts_bytes[frame.stream] = self._parts_bytes.get(frame.stream, 0) + count
        self._parts.setdefault(frame.stream, bytearray()).extend(frame.body)


def _check(magic: bytes, version: int, kind: int, length: int) -> None:
    if magic != MAGIC:
        raise ProtocolError("a frame does not begin as one does")
    if version != FORMAT:
        raise ProtocolError(
            f"a frame is of format {version}, and only {FORMAT} is known here",
            hint="Install the same version of mirrord at both ends.",
        )
    if length > BODY_BYTES_MAX:
        raise ProtocolError(f"a frame of {length} bytes is longer than any may be")
    if not Type.HELLO <= kind <= Type.OPENED:
        raise ProtocolError(f"a frame is of the unknown type {kind}")
