"""A TCP proxy that does to a connection what networks do: cuts, stalls, limits, delays, spoils."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

UP, DOWN = "up", "down"
_PART_BYTES = 16 << 10
#: What the kernel may hold for a proxy that reads nothing: little, so that a stall is felt.
_BUFFER_BYTES = 128 << 10


class Proxy:
    """Passes connections to `port` on to a target. What it does to them is set by its methods, at
    any time; `up` is what the client says.
    """

    def __init__(self, target: tuple[str, int], *, address: str = "127.0.0.1") -> None:
        self.target = target
        self._listening = socket.create_server((address, 0))
        self.port: int = self._listening.getsockname()[1]
        self._guard = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        self._passing = threading.Event()
        self._passing.set()
        self._cut_at: dict[str, list[int]] = {UP: [], DOWN: []}
        self._flip_at: dict[str, int] = {}
        self._rate: float = 0.0
        self._delay_s = 0.0
        self._refusing = False
        #: Bytes that went each way, over all connections, and how many connections there were.
        self.passed = {UP: 0, DOWN: 0}
        self.connections = 0
        #: How often something was done to a connection.
        self.cuts = self.flips = 0
        threading.Thread(target=self._accept, daemon=True).start()

    # What it does

    def cut(self) -> None:
        """Reset all connections that there are now."""
        with self._guard:
            pairs, self._pairs = self._pairs, []
            self.cuts += bool(pairs)
        for pair in pairs:
            for end in pair:
                _reset(end)

    def cut_at(self, offset: int, way: str = UP) -> None:
        """Reset all connections once `offset` more bytes went that way: exactly so many arrive."""
        with self._guard:
            self._cut_at[way] = sorted([*self._cut_at[way], self.passed[way] + offset])

    def flip_at(self, offset: int, way: str = UP) -> None:
        """Turn one bit of the byte that is `offset` ahead."""
        with self._guard:
            self._flip_at[way] = self.passed[way] + offset

    def refuse(self, refusing: bool = True) -> None:
        """Hang up on new connections: the host restarts."""
        self._refusing = refusing

    def stall(self) -> None:
        """Pass nothing on, and read nothing: a line that is cut without a word. New connections
        are taken and not answered.
        """
        self._passing.clear()

    def go_on(self) -> None:
        """End `stall`, `limit`, `delay` and `refuse`."""
        self._rate, self._delay_s, self._refusing = 0.0, 0.0, False
        self._passing.set()

    def limit(self, bytes_s: float) -> None:
        """So many bytes a second each way, of each connection."""
        self._rate = bytes_s

    def delay(self, seconds: float) -> None:
        """Hold each part back for so long, each way."""
        self._delay_s = seconds

    def close(self) -> None:
        """End it and its connections."""
        self._closed = True
        self._listening.close()
        self.cut()
        self._passing.set()

    # How

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._closed or self._refusing:
                _reset(client)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        with self._guard:
            self._pairs.append((client, server))
            self.connections += 1
        threading.Thread(target=self._pass, args=(server, client, DOWN), daemon=True).start()
        self._pass(client, server, UP)

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while True:
                self._passing.wait()
                data = source.recv(_PART_BYTES if not self._rate else max(1, int(self._rate / 20)))
                if not data:
                    break
                if self._delay_s:
                    time.sleep(self._delay_s)
                if self._rate:
                    time.sleep(len(data) / self._rate)
                self._passing.wait()
                data, last = self._spoilt(data, way)
                target.sendall(data)
                if last:
                    time.sleep(0.05)  # a reset would overtake what it shall come behind
                    self.cut()
                    return
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, target):
                _reset(end)

    def _spoilt(self, data: bytes, way: str) -> tuple[bytes, bool]:
        """The bytes as they go on, and whether the connection ends behind them."""
        with self._guard:
            at = self.passed[way]
            last = False
            if self._cut_at[way] and at + len(data) >= self._cut_at[way][0]:
                data, last = data[: self._cut_at[way].pop(0) - at], True
            flip_at = self._flip_at.get(way)
            if flip_at is not None and at <= flip_at < at + len(data):
                spoilt = bytearray(data)
                spoilt[flip_at - at] ^= 0x10
                data = bytes(spoilt)
                del self._flip_at[way]
                self.flips += 1
            self.passed[way] += len(data)
            return data, last


def _reset(end: socket.socket) -> None:
    """Close it with RST, whoever waits in it."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        # A close alone leaves a thread waiting in recv, and the kernel's socket open with it.
        end.shutdown(socket.SHUT_RD)
    end.close()


@contextmanager
def proxy(target: tuple[str, int]) -> Iterator[Proxy]:
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()
