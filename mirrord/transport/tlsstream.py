"""A byte stream over TLS 1.3, in both directions at once.

The cryptography is rustls (native/net/src/tls.rs), which also sends to the socket and receives
frames from it. One thread may read while another writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from mirrord.system.native import FrameSplitter, TlsSession
from mirrord.transport.base import ByteStream

#: Read at once before the first frame.
_READ_BYTES = 16 << 10


class TlsStream(ByteStream):
    """See `ByteStream`; over a connected socket whose handshake is complete.

    A connection that ends without the peer's close_notify raises `OSError`: an attacker may have
    cut it.
    """

    def __init__(self, connection: socket.socket, tls: TlsSession, peer: str) -> None:
        """peer: its name in messages. The stream owns the socket from now on."""
        self.peer = peer
        #: SHA-256 of the peer's certificate (DER), in hexadecimal; "" if it presented none.
        shown = tls.peer_certificate()
        self.fingerprint = hashlib.sha256(shown).hexdigest() if shown else ""
        self._socket = connection
        self._tls = tls
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        #: Guards the two below: the descriptor must not be closed, and its number reused for
        #: another file, while a thread is in a system call with it.
        self._using = threading.Lock()
        self._users = 0
        self._closed = False

    def read(self, most: int) -> bytes:
        """See `ByteStream`."""
        with self._reading, self._use():
            while (found := self._tls.read(most)) is None:
                received = self._socket.recv(_READ_BYTES)
                if not received:
                    raise ConnectionAbortedError("the connection was closed without close_notify")
                self._tls.feed(received)
            return found

    def read_frames(self, splitter: FrameSplitter) -> tuple[int, Sequence[tuple[int, int, Any]]]:
        """See `ByteStream`. Returns for each frame, and every half second while one arrives."""
        with self._reading, self._use():
            return self._tls.receive(self._socket.fileno(), splitter)

    def write(self, *parts: bytes | memoryview) -> None:
        """See `ByteStream`."""
        with self._writing, self._use():
            self._tls.send(self._socket.fileno(), parts)

    @contextlib.contextmanager
    def native(self) -> Iterator[tuple[TlsSession, int]]:
        """See `ByteStream`."""
        with self._use():
            yield self._tls, self._socket.fileno()

    def close(self) -> None:
        """See `ByteStream`. Sends close_notify if that does not block."""
        with self._using:
            if self._closed:
                return
            self._closed = True
            self._users += 1
        if self._writing.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._socket.send(self._tls.goodbye(), socket.MSG_DONTWAIT)
            finally:
                self._writing.release()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes threads that wait for it
        self._leave()

    @contextlib.contextmanager
    def _use(self) -> Iterator[None]:
        with self._using:
            if self._closed:
                raise ConnectionAbortedError("the stream was closed")
            self._users += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._using:
            self._users -= 1
            last = self._closed and self._users == 0
        if last:
            self._socket.close()
