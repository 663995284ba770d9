"""Clients of the demo's live mirror, by NBD: writes are numbered, so that an image tells which of
them it has.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from mirrord.core.errors import IoFailed
from mirrord.system import clock, sockets

BLOCK_BYTES = 4096
_TIMEOUT_S = 60.0
#: Between an answer and the next write.
_PAUSE_S = 0.005
_STAMP = struct.Struct("<QQ")
_READ, _WRITE = 0, 1
# Of the protocol: magic numbers, the option that opens an export, and a client's flags.
_OPTION_MAGIC = b"IHAVEOPT"
_OPTION_GO, _ACK = 7, 1
_CLIENT_FLAGS = 0b11  # fixed newstyle, no zeroes
_REQUEST_MAGIC, _REPLY_MAGIC = 0x25609513, 0x67446698


class Connection:
    """A connection to the NBD server at a unix socket, with one request at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = sockets.connected(path, timeout_s=_TIMEOUT_S)
        self._received(18)
        self._socket.sendall(struct.pack(">I", _CLIENT_FLAGS))
        self._socket.sendall(struct.pack(">8sIIIH", _OPTION_MAGIC, _OPTION_GO, 6, 0, 0))
        kind = None
        while kind != _ACK:
            _, _, kind, length = struct.unpack(">QIII", self._received(20))
            self._received(length)
            if kind >> 31:
                raise IoFailed("the demo's NBD client was refused", why=f"reply {kind:#x}")

    def write(self, offset: int, data: bytes) -> None:
        """Return when the write is acknowledged."""
        self._request(_WRITE, offset, len(data), data)

    def read(self, offset: int, length: int) -> bytes:
        """What is there."""
        self._request(_READ, offset, length)
        return self._received(length)

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    def _request(self, kind: int, offset: int, length: int, data: bytes = b"") -> None:
        head = struct.pack(">IHHQQI", _REQUEST_MAGIC, 0, kind, 0, offset, length)
        self._socket.sendall(head + data)
        magic, code, _ = struct.unpack(">IIQ", self._received(16))
        if magic != _REPLY_MAGIC or code:
            raise IoFailed("a request of the demo's NBD client failed", why=f"error {code}")

    def _received(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            piece = self._socket.recv(length - len(found))
            if not piece:
                raise ConnectionResetError("the NBD server closed the connection")
            found += piece
        return found


def _stamped(block: int, number: int) -> bytes:
    return _STAMP.pack(block, number) * (BLOCK_BYTES // _STAMP.size)


class Rate(NamedTuple):
    """Of the writes that were acknowledged in a period. latency_s: of one, on average."""

    writes_per_s: float
    latency_s: float


class Comparison(NamedTuple):
    """blocks: how many have an acknowledged write. lost: how many of them do not hold the last one,
    or a later one that was under way.
    """

    blocks: int
    lost: int


class Writers:
    """Clients that overwrite blocks of their own again and again, until they are disconnected."""

    def __init__(self, socket: Path, *, clients: int, blocks: int) -> None:
        """blocks: of each client."""
        self._socket, self._clients, self._blocks = socket, clients, blocks
        #: By block, the number of the last write that was sent, and acknowledged.
        self._sent: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._latencies_s: deque[float] = deque()
        self._since_s = clock.monotonic_s()
        self._ending = Event()
        #: Why a client has ended, or "".
        self.problem = ""
        #: Acknowledged writes, until the last call of `rate`.
        self.acknowledged = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """They write meanwhile."""
        threads = [
            Thread(target=self._write, args=(client,), daemon=True)
            for client in range(self._clients)
        ]
        self._since_s = clock.monotonic_s()
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join(_TIMEOUT_S)

    def rate(self) -> Rate:
        """Since the last call."""
        now_s = clock.monotonic_s()
        passed_s, self._since_s = now_s - self._since_s, now_s
        count = len(self._latencies_s)
        total_s = sum(self._latencies_s.popleft() for _ in range(count))
        self.acknowledged += count
        return Rate(count / passed_s, total_s / max(1, count))

    def compare(self, socket: Path) -> Comparison:
        """What was acknowledged with what the NBD server at `socket` has."""
        lost = 0
        with closing(Connection(socket)) as connection:
            for block, number in self._acknowledged.items():
                data = connection.read(block * BLOCK_BYTES, BLOCK_BYTES)
                found = _STAMP.unpack_from(data)[1]
                is_held = number <= found <= self._sent[block] and data == _stamped(block, found)
                lost += not is_held
        return Comparison(len(self._acknowledged), lost)

    def _write(self, client: int) -> None:
        number = 0
        try:
            with closing(Connection(self._socket)) as connection:
                while not self._ending.wait(_PAUSE_S):
                    block = number % self._blocks * self._clients + client
                    number += 1
                    self._sent[block] = number
                    began_s = clock.monotonic_s()
                    connection.write(block * BLOCK_BYTES, _stamped(block, number))
                    self._acknowledged[block] = number
                    self._latencies_s.append(clock.monotonic_s() - began_s)
        except (OSError, IoFailed) as error:
            self.problem = str(error)
