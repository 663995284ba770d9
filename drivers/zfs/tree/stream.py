"""The stream of a tree: the streams of its members, one after the other, in frames.

    magic                       16 bytes
    length, manifest            u32, JSON: which members follow, in their order
    length, piece … 0           for each member that is to be sent: its stream in pieces
    ff ff ff ff                 the end

Numbers are little-endian. A member's stream is checked like any other (stream/records.py).
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from mirrord.core.endpoint import is_dataset
from mirrord.drivers.streams import SendStream
from mirrord.drivers.zfs.dataset import names
from mirrord.drivers.zfs.stream.send import ZfsSendStream

MAGIC = b"mirrord tree 1\r\n"
#: Each received member is a process until all are committed.
MEMBERS_MAX = 400
_LENGTH = struct.Struct("<I")
_MEMBER_END = _LENGTH.pack(0)
_END = 0xFFFFFFFF
_MANIFEST_BYTES_MAX = 1 << 20
_PIECE_BYTES_MAX = 16 << 20


class Member(NamedTuple):
    """path: in the tree, "" for the root. name: of its snapshot. base: guid of the base of its
    stream, None: a full stream. done: the other end already has it.
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


def parse_manifest(text: str, root: str) -> Manifest:
    """The manifest; `ValueError` when it is malformed, or has a path that is invalid in `root`."""
    try:
        found: Any = json.loads(text)
        rows: Any = found["members"] if found["v"] == 1 else None
        members = tuple(_member(*row) for row in rows)
    except (TypeError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"its list of members cannot be read: {error}") from error
    if not members or len(members) > MEMBERS_MAX or members[0].path:
        raise ValueError("its list of members does not begin with the root, or is too long")
    above: set[str] = set()
    for one in members:
        full_name = f"{root}/{one.path}" if one.path else root
        if not is_dataset(full_name) or names.MARKER in one.path or full_name in above:
            raise ValueError(f"{one.path[:100]!r} is not a valid path of a member")
        if one.path and names.parent_of(full_name) not in above:
            raise ValueError(f"the member {one.path[:100]!r} comes before its parent")
        above.add(full_name)
    if len({one.guid for one in members}) != len(members):
        raise ValueError("two members have the same guid")
    return Manifest(members)


def _member(path: Any, guid: Any, name: Any, base: Any, done: Any) -> Member:
    texts = isinstance(path, str) and isinstance(name, str) and isinstance(done, bool)
    if not texts or not _is_guid(guid) or not (base is None or _is_guid(base)):
        raise ValueError("a member in its list is malformed")
    return Member(path, guid, name, base, done)


def _is_guid(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20


def paths(every: Iterable[str]) -> dict[str, str]:
    """The path of each member at the destination, by its path here, parents first. A member whose
    parent is newer than the snapshot gets a path below its nearest older ancestor.
    """
    found: dict[str, str] = {}
    for path in every:
        above, _, leaf = path.rpartition("/")
        while above and above not in found:
            above, _, more = above.rpartition("/")
            leaf = f"{more}.{leaf}"
        place = f"{found[above]}/{leaf}".lstrip("/") if path else ""
        while place in found.values():
            place += "_"
        found[path] = place
    return found


class TreeSendStream(SendStream):
    """The streams of the members, each started when the previous one has ended."""

    def __init__(self, manifest: Manifest, begin: Callable[[Member], ZfsSendStream]) -> None:
        super().__init__()
        self._begin = begin
        self._left = deque(one for one in manifest.members if not one.done)
        text = manifest.text().encode()
        self._ready: deque[bytes | memoryview] = deque([MAGIC, _LENGTH.pack(len(text)), text])
        self._current: ZfsSendStream | None = None
        self._ended = False

    def read(self) -> bytes | memoryview:
        """See `SendStream.read`."""
        if not self._ready:
            self._next()
        return self._ready.popleft() if self._ready else b""

    def _next(self) -> None:
        if self._current is None and self._left:
            self._current = self._begin(self._left.popleft())
            self._current.waiting = self.waiting
        if self._current is None:
            if not self._ended:
                self._ended = True
                self._ready.append(_LENGTH.pack(_END))
            return
        piece = self._current.read()
        if piece:
            self._ready.extend((_LENGTH.pack(len(piece)), piece))
            return
        self._current.close()
        self._current = None
        self._ready.append(_MEMBER_END)

    def close(self) -> None:
        """See `SendStream.close`."""
        self._left.clear()
        self._ready.clear()
        self._ended = True
        current, self._current = self._current, None
        if current is not None:
            current.close()


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
