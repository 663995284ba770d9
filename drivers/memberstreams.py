"""The stream of a volume that consists of several members: their streams, one after the other.

    magic                       16 bytes
    length, manifest            u32, JSON: which members follow, in their order
    length, piece … 0           for each member that is to be sent: its stream in pieces
    ff ff ff ff                 the end

Numbers are little-endian. A member's stream is checked by the driver, like any other.
"""

from __future__ import annotations

import abc
import json
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from mirrord.core.errors import PartLost, TransferFailed
from mirrord.core.model import ReceiveRequest, Staging
from mirrord.core.units import format_few
from mirrord.drivers import refusals
from mirrord.drivers.streams import Receiver, SendStream

MAGIC = b"mirrord tree 1\r\n"
_LENGTH = struct.Struct("<I")
_MEMBER_END = _LENGTH.pack(0)
_END = 0xFFFFFFFF
_MANIFEST_BYTES_MAX = 1 << 20
_PIECE_BYTES_MAX = 16 << 20
#: How many members a volume can have: on ZFS each is a process until all are committed.
MEMBERS_MAX = 400
#: In a checkpoint: a member is complete; its base no longer exists, so it needs a full stream.
DONE, FULL = "done", "full"


class Member(NamedTuple):
    """path: in the tree, "" for the root. name: of its snapshot (ZFS), or its lineage (btrfs).
    base: guid of the base of its stream, None: a full stream. done: the other end already has it.
    """

    path: str
    guid: str
    name: str
    base: str | None
    done: bool = False


class Manifest(NamedTuple):
    """A tree's snapshot: `members`, parents before children, the root first."""

    members: tuple[Member, ...]

    def text(self) -> str:
        """As it is sent and stored."""
        return json.dumps({"v": 1, "members": [list(one) for one in self.members]})


def parse(text: str, *, is_guid: Callable[[str], bool], is_path: Callable[[str], bool]) -> Manifest:
    """The manifest; `ValueError` when it is malformed. is_path: whether the driver accepts a path
    (of a member that is not the root).
    """
    try:
        found: Any = json.loads(text)
        rows: Any = found["members"] if found["v"] == 1 else None
        members = tuple(_member(is_guid, *row) for row in rows)
    except (TypeError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its list of members cannot be read: {error}") from error
    if not members or len(members) > MEMBERS_MAX or members[0].path:
        raise ValueError("its list of members does not begin with the root, or is too long")
    seen: set[str] = set()
    for one in members:
        if one.path in seen or (seen and not is_path(one.path)):
            raise ValueError(f"{one.path[:100]!r} is not a valid path of a member")
        seen.add(one.path)
    if len({one.guid for one in members}) != len(members):
        raise ValueError("two members have the same guid")
    return Manifest(members)


def _member(
    is_guid: Callable[[str], bool], path: Any, guid: Any, name: Any, base: Any, done: Any
) -> Member:
    texts = isinstance(path, str) and isinstance(name, str) and isinstance(done, bool)
    guids = [guid] if base is None else [guid, base]
    if not texts or not all(isinstance(one, str) and is_guid(one) for one in guids):
        raise ValueError("a member in its list is malformed")
    return Member(path, guid, name, base, done)


class TreeSendStream(SendStream):
    """The streams of the members, each started when the previous one has ended.

    piece_bytes: the size of all pieces of a member but its last, so that the stream is the same
    each time; 0: as they come.
    """

    def __init__(
        self, manifest: Manifest, begin: Callable[[Member], SendStream], *, piece_bytes: int = 0
    ) -> None:
        super().__init__()
        self._frames = self._made(manifest, begin, piece_bytes)

    def read(self) -> bytes | memoryview:
        """See `SendStream.read`."""
        return next(self._frames, b"")

    def _made(
        self, manifest: Manifest, begin: Callable[[Member], SendStream], piece_bytes: int
    ) -> Generator[bytes | memoryview, None, None]:
        text = manifest.text().encode()
        yield from (MAGIC, _LENGTH.pack(len(text)), text)
        for member in manifest.members:
            if member.done:
                continue
            with begin(member) as stream:
                stream.waiting = self.waiting
                for piece in _pieces(stream, piece_bytes):
                    yield from (_LENGTH.pack(len(piece)), piece)
            yield _MEMBER_END
        yield _LENGTH.pack(_END)

    def close(self) -> None:
        """See `SendStream.close`."""
        self._frames.close()


def _pieces(stream: SendStream, size: int) -> Iterator[bytes | memoryview]:
    buffer = bytearray()
    while chunk := stream.read():
        if not size:
            yield chunk
            continue
        buffer += chunk
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)


class Parts(NamedTuple):
    """The parts of a chunk: manifest first, then pieces of members, None for a member's end."""

    manifest: str | None
    pieces: list[memoryview | None]


class TreeParser:
    """Parses the stream in chunks of any size. `ended`: all of it has arrived."""

    def __init__(self) -> None:
        self.ended = False
        self._head = bytearray()
        self._wanted = len(MAGIC) + _LENGTH.size
        self._known = False
        self._piece_left = 0

    def feed(self, chunk: bytes | memoryview) -> Parts:
        """The parts of the next chunk; `ValueError` (why) when it is malformed."""
        view, manifest, pieces = memoryview(chunk), None, list[memoryview | None]()
        while view:
            if self.ended:
                raise ValueError("it has data after its end")
            if self._piece_left:
                piece, view = view[: self._piece_left], view[self._piece_left :]
                self._piece_left -= len(piece)
                pieces.append(piece)
                continue
            missing = self._wanted - len(self._head)
            self._head += view[:missing]
            view = view[missing:]
            if len(self._head) < self._wanted:
                break
            if self._known:
                self._frame(pieces)
            else:
                manifest = self._beginning() or manifest
        return Parts(manifest, pieces)

    def _frame(self, pieces: list[memoryview | None]) -> None:
        [length] = _LENGTH.unpack(self._head)
        self._head.clear()
        if length == _END:
            self.ended = True
        elif length == 0:
            pieces.append(None)
        elif length > _PIECE_BYTES_MAX:
            raise ValueError(f"a piece of it has {length} bytes")
        else:
            self._piece_left = length

    def _beginning(self) -> str | None:
        start = len(MAGIC) + _LENGTH.size
        if bytes(self._head[: len(MAGIC)]) != MAGIC:
            raise ValueError("it is not the stream of a tree")
        [length] = _LENGTH.unpack(self._head[len(MAGIC) : start])
        if not 0 < length <= _MANIFEST_BYTES_MAX:
            raise ValueError(f"its list of members has {length} bytes")
        if len(self._head) < start + length:
            self._wanted = start + length
            return None
        text = bytes(self._head[start:]).decode()
        self._head.clear()
        self._wanted, self._known = _LENGTH.size, True
        return text


class TreeReceiver(Receiver):
    """Receives the members one after the other, each by a receiver that the driver opens."""

    def __init__(self, request: ReceiveRequest, where: str) -> None:
        super().__init__()
        self._request, self._where = request, where
        self._parser = TreeParser()
        self._left: deque[Member] | None = None
        self._current: Receiver | None = None
        self._received_bytes = 0
        self._staging: Staging | None = None
        self._closed = False

    @abc.abstractmethod
    def _parse(self, text: str) -> Manifest:
        """The list of members; `ValueError`."""

    @abc.abstractmethod
    def _begin(self, manifest: Manifest) -> list[str]:
        """Record the transfer. Returns the paths of members whose base is lost; `ValueError`."""

    @abc.abstractmethod
    def _open(self, member: Member) -> Receiver:
        """The receiver of a member."""

    def _complete(self, member: Member) -> None:
        """A member was received."""

    @abc.abstractmethod
    def _staged(self) -> Staging:
        """The staging, now that all members were received."""

    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        if self._closed or self._staging is not None:
            raise TransferFailed("the receiver is closed", where=self._where)
        try:
            found = self._parser.feed(chunk)
            if found.manifest is not None:
                self._left = self._members(self._parse(found.manifest))
        except ValueError as error:
            raise refusals.stream_damaged(self._where, str(error)) from error
        for piece in found.pieces:
            left, receiver = self._next()
            if piece is not None:
                receiver.write(piece)
                self._received_bytes += len(piece)
                continue
            receiver.finish()
            receiver.close()
            self._current = None
            self._complete(left.popleft())

    def _members(self, manifest: Manifest) -> deque[Member]:
        lost = self._begin(manifest)
        if lost:
            error = PartLost(
                f"the destination lost {format_few(lost)}: a full transfer is needed",
                where=self._where,
            )
            error.data["shortened"] = True
            raise error
        return deque(one for one in manifest.members if not one.done)

    def _next(self) -> tuple[deque[Member], Receiver]:
        """The members that are left, and the receiver of the first of them."""
        if not self._left:
            raise refusals.stream_damaged(self._where, "it has more parts than members")
        if self._current is None:
            self._current = self._open(self._left[0])
            self._current.waiting = self.waiting
        return self._left, self._current

    def finish(self) -> Staging:
        """See `Receiver.finish`."""
        if self._staging is None:
            if not self._parser.ended or self._left is None or self._left:
                raise refusals.stream_damaged(self._where, "it is incomplete")
            self._staging = self._staged()
        return self._staging

    def close(self) -> None:
        """See `Receiver.close`."""
        self._closed = True
        current, self._current = self._current, None
        if current is not None:
            current.close()
