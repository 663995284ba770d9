"""A byte stream over TLS 1.3, in both directions at once.

The cryptography is rustls, without I/O (native/python/src/tls.rs); this module does the socket
I/O. One thread may read while another writes, and the session is not locked during socket I/O.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator

from mirrord.system.native import TlsSession
from mirrord.transport.base import ByteStream

#: Read from the socket at once, and encrypted at once before it is sent: small enough to stay in
#: the processor's cache between the steps.
_PIECE_BYTES = 256 << 10


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
        self._received = bytearray(_PIECE_BYTES)

    def read(self, most: int) -> bytes:
        """See `ByteStream`."""
        with self._reading, self._use():
            while (found := self._tls.read(most)) is None:
                count = self._socket.recv_into(self._received)
                if not count:
                    raise ConnectionAbortedError("the connection was closed without close_notify")
                self._tls.feed(memoryview(self._received)[:count])
            return found

    def write(self, *parts: bytes | memoryview) -> None:
        """See `ByteStream`."""
        with self._writing, self._use():
            for group in _pieces(parts):
                self._socket.sendall(self._tls.seal(group))

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


def _pieces(parts: tuple[bytes | memoryview, ...]) -> Iterator[list[bytes | memoryview]]:
    """The same bytes, in groups of `_PIECE_BYTES`."""
    group: list[bytes | memoryview] = []
    room = _PIECE_BYTES
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view) >= room:
            yield [*group, view[:room]]
            view, group, room = view[room:], [], _PIECE_BYTES
        if view:
            group.append(view)
            room -= len(view)
    if group:
        yield group
