"""What an update of a btrfs volume transfers, read from its stream."""

from __future__ import annotations

import struct
from typing import NamedTuple

from mirrord.drivers.contract import Driver

_WRITE, _ENCODED_WRITE, _END = 15, 25, 21
_PATH, _OFFSET, _DATA = 15, 18, 19


class Sent(NamedTuple):
    """blocks: of 4 KiB of files that come with data. data_bytes: those. stream_bytes: all of it,
    with names, owners, modes and times.
    """

    blocks: int
    data_bytes: int
    stream_bytes: int


def sent(driver: Driver, base: str, incremental: str) -> Sent:
    """Make the stream again, which is deterministic, and look at it."""
    stream = b""
    with driver.send(base, incremental) as sending:
        while chunk := sending.read():
            stream += bytes(chunk)
    version, at = struct.unpack_from("<I", stream, 13)[0], 17
    blocks: set[tuple[bytes, int]] = set()
    data_bytes = 0
    while at < len(stream):
        length, kind = struct.unpack_from("<IH", stream, at)
        if kind == _WRITE:
            found = _attributes(stream[at + 10 : at + 10 + length], version)
            offset, data = struct.unpack("<Q", found[_OFFSET])[0], found[_DATA]
            data_bytes += len(data)
            last = -(-(offset + len(data)) // 4096)
            blocks.update((found[_PATH], block) for block in range(offset // 4096, last))
        assert kind != _ENCODED_WRITE
        at += 10 + length
    return Sent(len(blocks), data_bytes, len(stream))


def _attributes(payload: bytes, version: int) -> dict[int, bytes]:
    found, at = {}, 0
    while at < len(payload):
        (kind,) = struct.unpack_from("<H", payload, at)
        if kind == _DATA and version >= 2:
            found[kind] = payload[at + 2 :]
            break
        (length,) = struct.unpack_from("<H", payload, at + 2)
        found[kind] = payload[at + 4 : at + 4 + length]
        at += 4 + length
    return found
