"""An end of a live mirror that sends what it likes, in sound frames."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from tests.live.lab import VOLUME

WRITE, ZERO, COPY, FLUSH, SETTLE, COMMIT, VERIFY, STREAM, MERGED = range(1, 10)
HELLO, BEGIN, BEGUN, ACK, PING, SETTLED, COMMITTED, FETCH, DATA = range(16, 25)
MAP_REQUEST, MAP, REFUSE, VERIFIED, STREAMED = range(25, 30)
RESUME, PUSH, PULL, RESYNC, INITIAL, CONTINUE = range(1, 7)
PRIMARY, SECONDARY, FENCED = 1, 2, 3
EMPTY, CONSISTENT, RESYNCING = 0, 1, 2
HEADER = 64


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frame(
    kind: int,
    epoch: int = 1,
    *,
    sequence: int = 0,
    offset: int = 0,
    length: int = 0,
    released: int = 0,
    payload: bytes = b"",
    flags: int = 0,
) -> bytes:
    head = struct.pack("<4sBBHQQ", b"MLF1", kind, flags, 1, epoch, sequence)
    head += struct.pack("<QQII", 0, offset, length, len(payload))
    head += struct.pack("<QI", released, crc32c(payload))
    return head + struct.pack("<I", crc32c(head)) + payload


def hello(
    role: int,
    size: int = 8 << 20,
    *,
    epoch: int = 1,
    phase: int = CONSISTENT,
    generation: int = 1,
    sessions: tuple[int, int] = (0, 0),
    diverged: int = 0,
) -> bytes:
    body = bytes.fromhex(VOLUME) + struct.pack(
        "<QIQBBQ", size, 4096, epoch, role, phase, generation
    )
    body += struct.pack("<BBQBQQ", 0, diverged, 0, 7, *sessions)
    return frame(HELLO, epoch, payload=body)


def begin(kind: int, value: int = 0, *, epoch: int = 1, first: int = 1, session: int = 1) -> bytes:
    body = struct.pack("<BQ", kind, value)
    return frame(BEGIN, epoch, sequence=first, offset=session, payload=body)


class Peer:
    """A connection of the link."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.settimeout(20)

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def _read(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            piece = self.socket.recv(length - len(found))
            if not piece:
                raise ConnectionResetError("the end closed the connection")
            found += piece
        return found

    def receive(self) -> tuple[int, bytes, bytes]:
        """Class, header and payload of the next frame."""
        head = self._read(HEADER)
        return head[4], head, self._read(struct.unpack_from("<I", head, 44)[0])

    def await_frame(self, kind: int) -> bytes:
        """The payload of the next frame of this class."""
        while True:
            found, _, payload = self.receive()
            if found == kind:
                return payload


@contextlib.contextmanager
def connected(port: int) -> Iterator[Peer]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        yield Peer(connection)


class Replica:
    """Where a primary connects to."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)
        self.port = int(self.listener.getsockname()[1])

    @contextlib.contextmanager
    def accepted(self) -> Iterator[Peer]:
        connection, _ = self.listener.accept()
        with connection:
            yield Peer(connection)
