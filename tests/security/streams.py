"""Streams for 'btrfs receive' that say what none of btrfs's own would."""

from __future__ import annotations

import struct

_SYMLINK, _MKFILE, _MKNOD, _WRITE, _CHMOD, _END = 8, 3, 5, 15, 18, 21
_INO, _MODE, _RDEV, _PATH, _LINK, _OFFSET, _DATA = 3, 5, 8, 15, 17, 18, 19


def _crc32c(data: bytes) -> int:
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


def _number(kind: int, value: int) -> bytes:
    return struct.pack("<HHQ", kind, 8, value)


def _bytes(kind: int, value: bytes) -> bytes:
    return struct.pack("<HH", kind, len(value)) + value


def _command(kind: int, *attributes: bytes) -> bytes:
    body = b"".join(attributes)
    head = struct.pack("<IHI", len(body), kind, 0)
    return struct.pack("<IHI", len(body), kind, _crc32c(head + body)) + body


def symlink(path: str, target: str) -> bytes:
    return _command(
        _SYMLINK, _bytes(_PATH, path.encode()), _number(_INO, 999), _bytes(_LINK, target.encode())
    )


def make_file(path: str) -> bytes:
    return _command(_MKFILE, _bytes(_PATH, path.encode()), _number(_INO, 999))


def write(path: str, data: bytes) -> bytes:
    words = (_bytes(_PATH, path.encode()), _number(_OFFSET, 0), _bytes(_DATA, data))
    return _command(_WRITE, *words)


def chmod(path: str, mode: int) -> bytes:
    return _command(_CHMOD, _bytes(_PATH, path.encode()), _number(_MODE, mode))


def make_node(path: str, mode: int, device: int) -> bytes:
    words = (_bytes(_PATH, path.encode()), _number(_INO, 999), _number(_RDEV, device))
    return _command(_MKNOD, *words, _number(_MODE, mode))


def with_commands(stream: bytes, commands: bytes) -> bytes:
    """A true stream of version 1 that does something more before its end."""
    end = _command(_END)
    assert stream.endswith(end)
    return stream[: -len(end)] + commands + end
