"""The link of the demo's live mirror: a TCP relay that holds everything back for a while."""

from __future__ import annotations

import socket
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from mirrord.system import clock

_PIECE_BYTES = 1 << 16


class _Piece(NamedTuple):
    due_s: float
    data: bytes


class Relay:
    """Listens on the loopback address and connects to `target`, HOST:PORT. Its threads end with
    the process.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        #: What passes is late by so much, in each direction.
        self.delay_s = 0.0
        Thread(target=self._accept, name="relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()  # it tries again
                continue
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pieces: SimpleQueue[_Piece] = SimpleQueue()
                Thread(target=self._receive, args=(source, pieces), daemon=True).start()
                Thread(target=_send, args=(sink, pieces), daemon=True).start()

    def _receive(self, source: socket.socket, pieces: SimpleQueue[_Piece]) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                pieces.put(_Piece(clock.monotonic_s() + self.delay_s, data))
        pieces.put(_Piece(0.0, b""))


def _send(sink: socket.socket, pieces: SimpleQueue[_Piece]) -> None:
    with suppress(OSError):
        while (piece := pieces.get()).data:
            clock.sleep_s(max(0.0, piece.due_s - clock.monotonic_s()))
            sink.sendall(piece.data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
