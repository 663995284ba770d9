"""TLS 1.3 between two ends that know each other's certificate beforehand.

The data channel beside SSH: both ends make a certificate for this one time, tell each other over
SSH, and then accept nobody else (docs/security.md).
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mirrord.core.errors import IoFailed, Unreachable, Untrusted
from mirrord.system import clock
from mirrord.system.native import TlsAlert, TlsConfig, TlsError, TlsSession, TlsUntrusted
from mirrord.transport.tlsstream import TlsStream

__all__ = ["Listener", "OneTime", "TlsStream", "connect", "fingerprint_of_pem"]

#: What the accepting end says first, so that the other one knows that it was accepted: in TLS 1.3
#: a client is done before the server has looked at its certificate.
GREETING = b"mirrord\n"
#: Or this, when the certificate is a right one whose owner is not welcome any more.
REFUSAL = b"refused\n"
#: Strangers at a port: how long each may take, how much it may say, and how many there may be.
HANDSHAKE_S = 5.0
HANDSHAKE_BYTES_MAX = 64 << 10
PENDING_MAX = 64


class OneTime(NamedTuple):
    """A certificate for one connection, with its key; both are only in memory.

    certificate: PEM, what the other end needs. key: PEM, what it must not have. fingerprint:
    SHA-256 of the certificate's DER in hexadecimal.
    """

    certificate: str
    key: str
    fingerprint: str

    @classmethod
    def make(cls) -> OneTime:
        """A new one; takes about a millisecond after the first."""
        from datetime import datetime

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mirrord")])
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # It ends with the connection: the clocks of two hosts have no say in it.
            .not_valid_before(datetime(2000, 1, 1))
            .not_valid_after(datetime(9999, 12, 31, 23, 59, 59))
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        fingerprint = made.fingerprint(hashes.SHA256()).hex()
        return cls(made.public_bytes(pem).decode(), secret.decode(), fingerprint)


def fingerprint_of_pem(certificate: str) -> str:
    """SHA-256 of a PEM certificate's DER, hexadecimal. `Untrusted` when it is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    try:
        made = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError as error:
        raise Untrusted("the other end's certificate makes no sense", why=str(error)) from None
    return made.fingerprint(hashes.SHA256()).hex()


def context(*, server: bool, certificate: str, key: str, trusted: str) -> TlsConfig:
    """TLS 1.3 only; the peer must show the certificate `trusted` (PEM), or one that it signed.

    `Untrusted` says whose certificate makes no sense.
    """
    try:
        return TlsConfig(server, certificate, key, trusted)
    except ValueError as error:
        whose, why = error.args
        owner = "our own" if whose == "own" else "the other end's"
        raise Untrusted(f"{owner} certificate makes no sense", why=why) from None


def connect(
    address: str,
    port: int,
    own: OneTime,
    peer_certificate: str,
    timeout_s: float,
    *,
    name: str = "",
) -> TlsStream:
    """A stream to the listener there, which must show exactly `peer_certificate` (PEM).

    name: of the other end for messages. `Unreachable`: nobody answers, or no TLS. `Untrusted`:
    somebody else answers, or we are not let in.
    """
    prepared = context(
        server=False, certificate=own.certificate, key=own.key, trusted=peer_certificate
    )
    expected = fingerprint_of_pem(peer_certificate)
    return open_stream(
        address, port, prepared, timeout_s, name=name, right=lambda shown: shown == expected
    )


def open_stream(
    address: str,
    port: int,
    prepared: TlsConfig,
    timeout_s: float,
    *,
    name: str = "",
    right: Callable[[str], bool] = bool,
) -> TlsStream:
    """Connect, look who it is, and wait for the greeting; errors as `connect`.

    right: whether a certificate with this fingerprint is the right one.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    where = name or address
    try:
        connection = socket.create_connection((address, port), timeout_s)
    except OSError as error:
        raise _unreachable(where, port, error) from error
    try:
        tune(connection)
        tls = prepared.session()
        _shake_hands(connection, tls, deadline_s)
        stream = TlsStream(connection, tls, where)
        if not right(stream.fingerprint):
            raise _somebody_else(where, port, "it is not the one that was agreed on")
        _await_greeting(stream, connection, deadline_s)
        connection.settimeout(None)
    except TlsUntrusted as error:
        connection.close()
        raise _somebody_else(where, port, str(error)) from None
    except TlsAlert as error:
        connection.close()
        raise _not_welcome(where, _reason(error)) from None
    except OSError as error:
        connection.close()
        raise _unreachable(where, port, error) from None
    except BaseException:
        connection.close()
        raise
    return stream


def _shake_hands(connection: socket.socket, tls: TlsSession, deadline_s: float) -> None:
    while True:
        connection.settimeout(_left(deadline_s))
        connection.sendall(tls.outgoing())
        tls.check()
        if not tls.handshaking():
            return
        received = connection.recv(RECEIVED_BYTES)
        if not received:
            raise ConnectionResetError("it hung up during the handshake")
        tls.feed(received)


#: Of a handshake, at once.
RECEIVED_BYTES = 16 << 10


def _await_greeting(stream: TlsStream, connection: socket.socket, deadline_s: float) -> None:
    greeting = b""
    while len(greeting) < len(GREETING):
        connection.settimeout(_left(deadline_s))
        piece = stream.read(len(GREETING) - len(greeting))
        greeting += piece
        if greeting == REFUSAL:
            raise _not_welcome(stream.peer, "it is not on its list of peers")
        if not piece or not (GREETING.startswith(greeting) or REFUSAL.startswith(greeting)):
            raise ConnectionResetError("it hung up during the handshake")


def _left(deadline_s: float) -> float:
    left = deadline_s - clock.monotonic_s()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _unreachable(where: str, port: int, error: OSError) -> Unreachable:
    why = _reason(error)
    if isinstance(error, TlsError):
        why = f"what answers there does not speak TLS 1.3 ({why})"
    elif isinstance(error, TimeoutError):
        why = "no answer in time: a firewall may drop it"
    return Unreachable(f"port {port} cannot be reached", where=where, why=why)


def _somebody_else(where: str, port: int, why: str) -> Untrusted:
    return Untrusted(
        f"somebody else answers at port {port}",
        where=where,
        why=f"its certificate is not accepted: {why}",
        hint="Look what listens there, and whether something in between takes TLS apart.",
    )


def _not_welcome(where: str, why: str) -> Untrusted:
    return Untrusted(
        "the other end does not accept our certificate",
        where=where,
        why=why,
        hint="Its log says which certificate it was shown.",
    )


def tune(connection: socket.socket) -> None:
    """Small frames leave at once, and a peer that is gone is noticed some day by the kernel too."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class _Stranger:
    """A connection whose handshake is not done."""

    def __init__(self, connection: socket.socket, prepared: TlsConfig, address: str) -> None:
        self.connection, self.address = connection, address
        self.tls = prepared.session()
        self.deadline_s = clock.monotonic_s() + HANDSHAKE_S
        self._bytes_left = HANDSHAKE_BYTES_MAX

    def advance(self) -> bool:
        """Take what came; True when the handshake is done. `OSError`: turn it away."""
        received = self.connection.recv(min(RECEIVED_BYTES, self._bytes_left))
        if not received:
            raise ConnectionResetError("it hung up")
        self._bytes_left -= len(received)
        self.tls.feed(received)
        self.send()
        self.tls.check()
        done = not self.tls.handshaking()
        if not done and self._bytes_left <= 0:
            raise ConnectionAbortedError("its handshake has no end")
        return done

    def send(self) -> None:
        """What the handshake has to say; a new socket has room for it."""
        sealed = self.tls.outgoing()
        if sealed and self.connection.send(sealed) != len(sealed):
            raise ConnectionAbortedError("it does not take our answer")


class Door:
    """A listening socket with the strangers before it; keeps out who has no right certificate.

    Nothing that a stranger does holds up the others: handshakes run side by side, each with its
    end, and when too many stand there the oldest goes.
    """

    def __init__(self, listening: socket.socket, prepared: TlsConfig) -> None:
        self.port: int = listening.getsockname()[1]
        self._listening, self._prepared = listening, prepared
        self._lock = threading.Lock()
        self._closed = False
        self._woken, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._ready: deque[TlsStream] = deque()
        self._strangers: dict[socket.socket, _Stranger] = {}
        #: How many were turned away, and the last: "192.0.2.7: it hung up".
        self.turned_away = 0
        self.last = ""
        listening.setblocking(False)
        self._woken.setblocking(False)
        for each in (listening, self._woken):
            self._selector.register(each, selectors.EVENT_READ)

    def admit(self, stream: TlsStream) -> None:
        """Look at who shook hands, before a byte is exchanged; `Untrusted` turns it away."""

    def accept(self, timeout_s: float) -> TlsStream:
        """The next stream that was admitted. `Unreachable` when none comes in time, or `close`
        was called.
        """
        deadline_s = clock.monotonic_s() + timeout_s
        with self._lock:
            while not self._ready:
                left = deadline_s - clock.monotonic_s()
                if self._closed or left <= 0:
                    raise self._nobody()
                self._wait(min(left, self._next_end_s()))
            return self._ready.popleft()

    def _nobody(self) -> Unreachable:
        if self._closed:
            return Unreachable(f"port {self.port} was closed")
        why = "nothing came"
        if self.turned_away:
            why = f"{self.turned_away} turned away, the last: {self.last}"
        return Unreachable(f"the other end did not connect to port {self.port}", why=why)

    def _next_end_s(self) -> float:
        ends = [each.deadline_s for each in self._strangers.values()]
        return max(0.0, min(ends) - clock.monotonic_s()) if ends else HANDSHAKE_S

    def _wait(self, seconds: float) -> None:
        """One round: whoever has something to say is heard, whoever is late is turned away."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listening:
                self._welcome()
            elif key.fileobj is not self._woken:
                self._hear(key.data)
        now_s = clock.monotonic_s()
        for stranger in [s for s in self._strangers.values() if s.deadline_s <= now_s]:
            self._turn_away(stranger, TimeoutError("it took too long"))

    def _welcome(self) -> None:
        try:
            connection, address = self._listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                clock.sleep_s(0.05)  # no descriptors left: the connection stays in the queue
            return
        if len(self._strangers) >= PENDING_MAX:
            self._turn_away(next(iter(self._strangers.values())), OSError("too many at once"))
        stranger = _Stranger(connection, self._prepared, address[0])
        connection.setblocking(False)
        tune(connection)
        self._strangers[connection] = stranger
        self._selector.register(connection, selectors.EVENT_READ, stranger)

    def _hear(self, stranger: _Stranger) -> None:
        if stranger.connection not in self._strangers:
            return  # turned away in this very round
        try:
            if not stranger.advance():
                return
            self._selector.unregister(stranger.connection)
            stream = TlsStream(stranger.connection, stranger.tls, stranger.address)
            stranger.connection.setblocking(True)  # a new socket has room for the greeting
            try:
                self.admit(stream)
            except Untrusted:
                stream.write(REFUSAL)
                raise
            stream.write(GREETING)
        except (OSError, Untrusted) as error:
            self._turn_away(stranger, error)
            return
        del self._strangers[stranger.connection]
        self._ready.append(stream)

    def _turn_away(self, stranger: _Stranger, error: OSError | Untrusted) -> None:
        del self._strangers[stranger.connection]
        self.turned_away += 1
        why = str(error) if isinstance(error, Untrusted) else _reason(error)
        self.last = f"{stranger.address}: {why}"
        if stranger.connection.fileno() in self._selector.get_map():
            self._selector.unregister(stranger.connection)
        stranger.connection.close()

    def close(self) -> None:
        """End it, from any thread, also while another one waits in `accept`."""
        self._closed = True
        self._waker.close()  # whoever waits sees the end of it
        with self._lock:
            for each in (*self._strangers, self._listening, self._woken):
                each.close()
            for stream in self._ready:
                stream.close()
            self._strangers.clear()
            self._ready.clear()
            self._selector.close()


class Listener(Door):
    """Waits at a port for one peer, as often as it connects."""

    def __init__(
        self,
        own: OneTime,
        peer_certificate: str,
        ports: tuple[int, int] | int = 0,
        address: str = "",
    ) -> None:
        """ports: the lowest and the highest that may be used; 0: any. address: "" for all of this
        host. `IoFailed` when no port is free.
        """
        self._expected = fingerprint_of_pem(peer_certificate)
        prepared = context(
            server=True, certificate=own.certificate, key=own.key, trusted=peer_certificate
        )
        super().__init__(listen(address, ports), prepared)

    def admit(self, stream: TlsStream) -> None:
        """Only the one certificate that was agreed on."""
        if stream.fingerprint != self._expected:
            raise Untrusted("it shows another certificate than was agreed on")


def listen(address: str, ports: tuple[int, int] | int) -> socket.socket:
    """A listening socket at the first free one of these ports (lowest, highest; or one; 0: any).

    `IoFailed` says why there is none.
    """
    low, high = ports if isinstance(ports, tuple) else (ports, ports)
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    why = ""
    for port in range(low, high + 1):
        try:
            return socket.create_server(
                (address, port), family=family, backlog=PENDING_MAX, dualstack_ipv6=both
            )
        except OSError as error:
            why = error.strerror or str(error)
    shown = str(low) if low == high else f"{low} to {high}"
    raise IoFailed(f"nothing can listen at port {shown}", where=address, why=why)
