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
#: How often a thread that waits looks whether it shall end.
_LOOK_S = 0.02


class Proxy:
    """Passes connections to `port` on to a target. What it does to them is set by its methods, at
    any time; `up` is what the client says.
    """

    def __init__(self, target: tuple[str, int], *, address: str = "127.0.0.1") -> None:
        self.target = target
        self._listening = socket.create_server((address, 0))
        self.port: int = self._listening.getsockname()[1]
        self._guard = threading.Lock()
        self._pairs: list[_Pair] = []
        self._closed = False
        self._passing = threading.Event()
        self._passing.set()
        self._cut_at: dict[str, list[int]] = {UP: [], DOWN: []}
        self._slow_at: dict[str, tuple[int, float]] = {}
        self._flip_at: dict[str, int] = {}
        self._rate: float = 0.0
        self._delay_s = 0.0
        self._refusing = False
        #: Bytes that went each way, over all connections, and how many connections there were.
        self.passed = {UP: 0, DOWN: 0}
        self.connections = 0
        #: How often something was done to a connection.
        self.cuts = self.flips = 0
        #: When connections were refused.
        self.refused_s: list[float] = []
        threading.Thread(target=self._accept, daemon=True).start()

    # What it does

    def cut(self) -> None:
        """Reset all connections that there are now."""
        with self._guard:
            pairs, self._pairs = self._pairs, []
            self.cuts += bool(pairs)
        for pair in pairs:
            pair.dead.set()

    def cut_at(self, offset: int, way: str = UP) -> None:
        """Reset all connections once `offset` more bytes went that way: exactly so many arrive."""
        with self._guard:
            self._cut_at[way] = sorted([*self._cut_at[way], self.passed[way] + offset])

    def slow_at(self, total: int, bytes_s: float, way: str = UP) -> None:
        """Once `total` bytes went that way since the beginning, the connections that there are
        then carry only so many a second: who is to do something to them then comes in time.
        """
        with self._guard:
            self._slow_at[way] = total, bytes_s

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
        """End `stall`, `limit`, `slow_at`, `delay` and `refuse`."""
        self._rate, self._delay_s, self._refusing = 0.0, 0.0, False
        with self._guard:
            self._slow_at.clear()
            for pair in self._pairs:
                pair.rate = 0.0
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
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # a close alone does not wake `accept`
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
                self.refused_s.append(time.monotonic())
                _reset(client)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target, timeout=60)
        except OSError:
            _reset(client)
            return
        pair = _Pair(client, server)
        with self._guard:
            self._pairs.append(pair)
            self.connections += 1
        threading.Thread(target=self._pass, args=(pair, server, client, DOWN), daemon=True).start()
        self._pass(pair, client, server, UP)

    def _pass(self, pair: _Pair, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while data := self._take(pair, source):
                if self._delay_s:
                    time.sleep(self._delay_s)
                if rate := pair.rate or self._rate:
                    time.sleep(len(data) / rate)
                self._await_passing(pair)
                data, last = self._spoilt(data, way)
                pair.put(target, data)
                if last:
                    time.sleep(0.05)  # a reset would overtake what it shall come behind
                    self.cut()
                    return
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pair.dead.set()
        finally:
            pair.leave()

    def _take(self, pair: _Pair, source: socket.socket) -> bytes:
        while True:
            self._await_passing(pair)
            try:
                rate = pair.rate or self._rate
                return source.recv(_PART_BYTES if not rate else max(1, int(rate / 20)))
            except TimeoutError:
                continue

    def _await_passing(self, pair: _Pair) -> None:
        while not self._passing.wait(_LOOK_S):
            pair.check()
        pair.check()

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
            if way in self._slow_at and self.passed[way] >= self._slow_at[way][0]:
                _, rate = self._slow_at.pop(way)
                for pair in self._pairs:
                    pair.rate = rate
            return data, last


class _Pair:
    """Both connections of one client. Closed by the last of two threads that use them: a number
    of a descriptor must not come to somebody else while they do.
    """

    def __init__(self, *ends: socket.socket) -> None:
        self.dead = threading.Event()
        #: Bytes a second, by `slow_at`; 0 for what all have.
        self.rate = 0.0
        self._ends = ends
        self._users = 2
        self._guard = threading.Lock()
        for end in ends:
            end.settimeout(_LOOK_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)

    def check(self) -> None:
        if self.dead.is_set():
            raise ConnectionResetError

    def put(self, target: socket.socket, data: bytes) -> None:
        while data:
            self.check()
            with contextlib.suppress(TimeoutError):
                data = data[target.send(data) :]

    def leave(self) -> None:
        with self._guard:
            self._users -= 1
            if self._users:
                return
        for end in self._ends:
            _reset(end) if self.dead.is_set() else end.close()


def _reset(end: socket.socket) -> None:
    """Close it with RST."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


@contextmanager
def proxy(target: tuple[str, int]) -> Iterator[Proxy]:
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()
