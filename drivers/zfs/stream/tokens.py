"""Resume tokens (`receive_resume_token`): where the receiving end wants the stream resumed.

A token comes from the other end, which may be of another version, damaged or hostile: it is decoded
here and compared with the requested transfer before it is passed to `zfs send -t`. Its form is
`VERSION-CHECKSUM-LENGTH-PAYLOAD`, all hexadecimal but the version; the payload is a compressed list
of names and values (an OpenZFS nvlist).
"""

from __future__ import annotations

import struct
import sys
import zlib
from typing import NamedTuple, Self

_VERSION = "1"
_TOKEN_CHARS_MAX = 64 << 10
_PACKED_BYTES_MAX = 1 << 20
_ITEM_BYTES_MIN = 24
_BOOLEAN, _UINT64, _STRING = 1, 8, 9


class Token(NamedTuple):
    """Where a receive was interrupted.

    toguid, fromguid: of the snapshot that is being received and of its base; fromguid 0: a full
        stream.
    toname: the snapshot's name at the sender.
    object, offset: the place in the dataset from which the stream continues.
    bytes: of the stream that were received: an estimate by OpenZFS, for progress only.
    raw: sent by `zfs send -w`, as the next stream must be.
    """

    toguid: int
    toname: str
    object: int
    offset: int
    fromguid: int = 0
    bytes: int = 0
    raw: bool = False

    @classmethod
    def of(cls, values: dict[str, int | str | bool]) -> Self:
        """From the names and values in a token; ValueError when one is missing."""

        def number(name: str, otherwise: int | None = None) -> int:
            value = values.get(name, otherwise)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"it has no number '{name}'")
            return value

        name = values.get("toname")
        if not isinstance(name, str) or "@" not in name:
            raise ValueError("it names no snapshot")
        return cls(
            toguid=number("toguid"),
            fromguid=number("fromguid", 0),
            toname=name,
            object=number("object"),
            offset=number("offset"),
            bytes=number("bytes", 0),
            raw="rawok" in values,
        )


def decode(token: str) -> Token:
    """The content of a token; ValueError (why) when it is damaged or of another version.

    The checksum does not protect against forgery: the content must be compared with what is known
    about the transfer.
    """
    if len(token) > _TOKEN_CHARS_MAX or not token.isascii():
        raise ValueError("it is not a resume token")
    parts = token.split("-")
    if len(parts) != 4:
        raise ValueError("it is not a resume token")
    if parts[0] != _VERSION:
        raise ValueError(f"it has the unknown version '{parts[0][:20]}'")
    try:
        checksum, length = int(parts[1], 16), int(parts[2], 16)
        compressed = bytes.fromhex(parts[3])
    except ValueError:
        raise ValueError("it is not hexadecimal") from None
    if _checksum(compressed) != checksum:
        raise ValueError("its checksum is wrong")
    if length > _PACKED_BYTES_MAX:
        raise ValueError(f"its stated length of {length} bytes is too large")
    unpacking = zlib.decompressobj()
    try:
        packed = unpacking.decompress(compressed, length + 1)
    except zlib.error:
        raise ValueError("it cannot be decompressed") from None
    if len(packed) != length or not unpacking.eof:
        raise ValueError("its length is not the stated one")
    return Token.of(_values(packed))


def encode(token: Token) -> str:
    """A token for the place in a plain full stream (without -L, -c, -e, -w)."""
    items = b"".join(
        _packed(name, _UINT64, struct.pack("=Q", value))
        for name, value in (
            ("object", token.object),
            ("offset", token.offset),
            ("bytes", token.bytes),
            ("toguid", token.toguid),
        )
    )
    items += _packed("toname", _STRING, token.toname.encode() + b"\0")
    order = 1 if sys.byteorder == "little" else 0
    packed = struct.pack("=BBHii", 0, order, 0, 0, 1) + items + bytes(4)
    compressed = zlib.compress(packed)
    return f"{_VERSION}-{_checksum(compressed):x}-{len(packed):x}-{compressed.hex()}"


def _packed(name: str, kind: int, value: bytes) -> bytes:
    word = name.encode() + b"\0"
    head = struct.pack("=hhii", len(word), 0, 1, kind) + word + bytes(-len(word) % 8)
    item = head + value + bytes(-len(value) % 8)
    return struct.pack("=i", len(item) + 4) + item


def _checksum(data: bytes) -> int:
    """The first word of Fletcher-4 over complete 32-bit words; remaining bytes do not count."""
    whole = len(data) & ~3
    words: tuple[int, ...] = struct.unpack(f"<{whole // 4}I", data[:whole])
    return sum(words) & (1 << 64) - 1


def _values(packed: bytes) -> dict[str, int | str | bool]:
    """The names and values of a packed nvlist; values of other types are ignored.

    It has the form that the sender has in memory: encoding and byte order (a byte each), version
    and flags, then items with a length, the name's length, a count, a type, name and value (padded
    to 8).
    """
    if packed[:1] != b"\0":
        raise ValueError("its content has an unknown encoding")
    order = "<" if packed[1:2] == b"\1" else ">"
    values: dict[str, int | str | bool] = {}
    at = 12
    try:
        while True:
            (size,) = struct.unpack_from(order + "i", packed, at)
            if size == 0:
                return values
            if size < _ITEM_BYTES_MIN or at + size > len(packed):
                raise ValueError("the length of an item is not valid")
            name, value = _item(packed[at : at + size], order)
            if value is not None:
                values[name] = value
            at += size
    except (struct.error, UnicodeDecodeError):
        raise ValueError("its content is malformed") from None


def _item(item: bytes, order: str) -> tuple[str, int | str | bool | None]:
    name_length, _, kind = struct.unpack_from(order + "4xh2xii", item)
    if name_length < 1:
        raise ValueError("an item has no name")
    name = item[16 : 16 + name_length].rstrip(b"\0").decode()
    at = 16 + (name_length + 7) // 8 * 8
    if kind == _BOOLEAN:
        return name, True
    if kind == _UINT64:
        return name, int(struct.unpack_from(order + "Q", item, at)[0])
    if kind == _STRING:
        return name, item[at:].split(b"\0", 1)[0].decode()
    return name, None
