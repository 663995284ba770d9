"""A byte stream over TLS 1.3, in both directions at once.

Python's `SSLSocket` must not be read by one thread while another writes. So the cryptography runs
on an `SSLObject` between two memory buffers, a lock is held while it works, and never while the
socket is waited for.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import NamedTuple

from mirrord.transport.base import ByteStream

#: The plain bytes of a full TLS record.
RECORD_BYTES = 16 << 10
#: What is taken from the socket at once, and what is encrypted before it is sent: small enough
#: to stay in the processor's cache between the steps.
_TAKEN_BYTES = 256 << 10
#: Parts smaller than this are joined with their neighbours.
_SMALL_BYTES = 64 << 10
#: What may wait to be sent without anybody writing: answers of the TLS layer itself.
_UNSENT_BYTES_MAX = 64 << 10


class Session(NamedTuple):
    """TLS over two memory buffers: what came from the peer, and what is to go to it."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


def session(context: ssl.SSLContext, *, server: bool) -> Session:
    """A session in which nothing has happened yet."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return Session(context.wrap_bio(incoming, outgoing, server_side=server), incoming, outgoing)


def advance(tls: Session) -> bool:
    """Go on with the handshake as far as what came allows; True when it is done.

    What is to be sent lies in `outgoing` afterwards, also when it fails. Raises `ssl.SSLError`.
    """
    try:
        tls.tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


class TlsStream(ByteStream):
    """See `ByteStream`; over a connected socket whose handshake is done.

    An end of the connection that the peer did not announce raises `OSError`: somebody else may
    have cut it.
    """

    def __init__(self, connection: socket.socket, tls: Session, peer: str) -> None:
        """peer: as messages name it. The socket belongs to the stream from now on."""
        self.peer = peer
        #: SHA-256 of the peer's certificate (DER), in hexadecimal; "" when it showed none.
        self.fingerprint = fingerprint_of(tls.tls)
        self._socket = connection
        self._tls, self._incoming, self._outgoing = tls
        #: Around each use of the TLS session; nobody waits for the network with it.
        self._crypto = threading.Lock()
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        #: Of the two below: the descriptor must not be closed, and perhaps be given to another
        #: file, while a thread is inside a call with it.
        self._using = threading.Lock()
        self._users = 0
        self._closed = False
        self._taken = bytearray(_TAKEN_BYTES)

    def read(self, most: int) -> bytes:
        """See `ByteStream`."""
        with self._reading, self._use():
            while True:
                with self._crypto:
                    found = self._decrypted(most)
                if found is not None:
                    return found
                count = self._socket.recv_into(self._taken)
                with self._crypto:
                    if count:
                        self._incoming.write(memoryview(self._taken)[:count])
                    else:
                        self._incoming.write_eof()

    def _decrypted(self, most: int) -> bytes | None:
        """What can be read without the network; None: nothing yet; b"": the end."""
        found: list[bytes] = []
        left = most
        while left > 0:
            try:
                piece = self._tls.read(min(left, RECORD_BYTES))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                return b"".join(found)
            except ssl.SSLError:
                # What came before the failure was whole: it goes first, the failure stays.
                if found:
                    break
                raise
            if not piece:
                return b"".join(found)
            found.append(piece)
            left -= len(piece)
        if self._outgoing.pending > _UNSENT_BYTES_MAX:
            raise ConnectionAbortedError("the peer asks for new keys again and again")
        return b"".join(found) if found or most <= 0 else None

    def write(self, *parts: bytes | memoryview) -> None:
        """See `ByteStream`."""
        with self._writing, self._use():
            for piece in _pieces(parts):
                with self._crypto:
                    sealed = self._encrypted(piece)
                self._socket.sendall(sealed)

    def _encrypted(self, piece: bytes | bytearray | memoryview) -> bytes:
        view = memoryview(piece)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()

    def close(self) -> None:
        """See `ByteStream`. Tells the peer when that needs no waiting."""
        with self._using:
            if self._closed:
                return
            self._closed = True
            self._users += 1
        if self._writing.acquire(blocking=False):
            try:
                self._say_goodbye()
            finally:
                self._writing.release()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in it
        self._leave()

    def _say_goodbye(self) -> None:
        with contextlib.suppress(OSError):
            with self._crypto:
                with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLSyscallError):
                    self._tls.unwrap()
                sealed = self._outgoing.read()
            self._socket.send(sealed, socket.MSG_DONTWAIT)

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


def fingerprint_of(tls: ssl.SSLObject) -> str:
    """SHA-256 of the certificate that the peer showed, "" for none."""
    import hashlib

    certificate = tls.getpeercert(binary_form=True)
    return hashlib.sha256(certificate).hexdigest() if certificate else ""


def _pieces(parts: tuple[bytes | memoryview, ...]) -> Iterator[bytes | bytearray | memoryview]:
    """The same bytes in pieces that are worth a call: small parts are joined, large ones cut.

    A small part before a large one is filled up to a whole record with the beginning of it.
    """
    joined = bytearray()
    for part in parts:
        view = memoryview(part).cast("B")
        if len(view) >= _SMALL_BYTES:
            if joined:
                fill = -len(joined) % RECORD_BYTES
                joined += view[:fill]
                view = view[fill:]
                yield joined
                joined = bytearray()
            whole = len(view) - len(view) % RECORD_BYTES
            for at in range(0, whole, _TAKEN_BYTES):
                yield view[at : min(at + _TAKEN_BYTES, whole)]
            view = view[whole:]
        joined += view
        if len(joined) >= _TAKEN_BYTES:
            yield joined
            joined = bytearray()
    if joined:
        yield joined
