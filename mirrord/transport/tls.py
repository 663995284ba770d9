"""TLS 1.3 between two ends that know each other's certificate beforehand.

The data channel beside SSH: both ends generate a one-time certificate, exchange the certificates
over SSH, and then accept no other peer (docs/security.md).
"""

from __future__ import annotations

import ipaddress
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from mirrord.core.errors import Busy, IoFailed, Unreachable, Untrusted
from mirrord.system import clock
from mirrord.system.descriptors import are_exhausted
from mirrord.system.native import TlsAlert, TlsConfig, TlsError, TlsSession, TlsUntrusted
from mirrord.transport.tlsstream import TlsStream

#: Sent first by the accepting end, so that the client knows that it was accepted: in TLS 1.3 the
#: client's handshake is complete before the server has verified the client's certificate.
GREETING = b"mirrord\n"
#: Sent instead when the certificate is valid but its owner is no longer permitted.
REFUSAL = b"refused\n"
#: Sent instead when its owner is permitted, but has too many connections, or all peers have.
CROWDED = b"toomany\n"
_FIRST = (GREETING, REFUSAL, CROWDED)
#: Limits of unauthenticated connections: time and bytes of each handshake, and their number.
HANDSHAKE_S = 5.0
HANDSHAKE_BYTES_MAX = 64 << 10
PENDING_MAX = 64


class OneTime(NamedTuple):
    """A certificate for one connection, with its key; both are only kept in memory.

    certificate: PEM, sent to the other end. key: PEM, never sent. fingerprint:
    SHA-256 of the certificate's DER in hexadecimal.
    """

    certificate: str
    key: str
    fingerprint: str

    @classmethod
    def make(cls) -> OneTime:
        """Generate one; takes about a millisecond after the first."""
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
            # It is used for one connection only: validity does not depend on the hosts' clocks.
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
    """SHA-256 of a PEM certificate's DER, hexadecimal. `Untrusted` when it is malformed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    try:
        made = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError as error:
        raise Untrusted("malformed certificate from the other end", why=str(error)) from None
    return made.fingerprint(hashes.SHA256()).hex()


def context(*, server: bool, certificate: str, key: str, trusted: str) -> TlsConfig:
    """TLS 1.3 only; the peer must present the certificate `trusted` (PEM), or one signed by it.

    `Untrusted` reports whose certificate is malformed.
    """
    try:
        return TlsConfig(server, certificate, key, trusted)
    except ValueError as error:
        whose, why = error.args
        owner = "this end" if whose == "own" else "the other end"
        raise Untrusted(f"malformed certificate of {owner}", why=why) from None


def connect(
    address: str,
    port: int,
    own: OneTime,
    peer_certificate: str,
    timeout_s: float,
    *,
    name: str = "",
) -> TlsStream:
    """A stream to the listener there, which must present exactly `peer_certificate` (PEM).

    name: of the other end, for messages. `Unreachable`: no response, or not TLS. `Untrusted`:
    the other end has another certificate, or does not accept ours.
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
    """Connect, verify the peer, and wait for the greeting; errors as for `connect`.

    right: whether a certificate with this fingerprint is the expected one.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    where = name or address
    try:
        connection = socket.create_connection((address, port), timeout_s)
    except OSError as error:
        raise _unreachable(where, port, error) from error
    except UnicodeError:  # a label is empty, or has more than 63 characters
        raise Unreachable("it is not a valid host name", where=address) from None
    try:
        tune(connection)
        tls = prepared.session()
        _shake_hands(connection, tls, deadline_s)
        stream = TlsStream(connection, tls, where)
        if not right(stream.fingerprint):
            raise _wrong_peer(where, port, "it is not the agreed one")
        _await_greeting(stream, connection, deadline_s)
        connection.settimeout(None)
    except TlsUntrusted as error:
        connection.close()
        raise _wrong_peer(where, port, str(error)) from None
    except TlsAlert as error:
        connection.close()
        raise _not_accepted(where, _reason(error)) from None
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
            raise ConnectionResetError("the connection was closed during the handshake")
        tls.feed(received)


#: Read at once during a handshake.
RECEIVED_BYTES = 16 << 10


def _await_greeting(stream: TlsStream, connection: socket.socket, deadline_s: float) -> None:
    greeting = b""
    while len(greeting) < len(GREETING):
        connection.settimeout(_left(deadline_s))
        piece = stream.read(len(GREETING) - len(greeting))
        greeting += piece
        if greeting == REFUSAL:
            raise _not_accepted(stream.peer, "it is not on its list of peers")
        if greeting == CROWDED:
            raise Busy(
                "the other end accepts no more connections",
                where=stream.peer,
                why="this host has too many there, or all its peers together have",
                hint="Run the same command again later; its log shows which peer has too many.",
            )
        if not piece or not any(one.startswith(greeting) for one in _FIRST):
            raise ConnectionResetError("the connection was closed during the handshake")


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
        why = f"the server there does not support TLS 1.3 ({why})"
    elif isinstance(error, TimeoutError):
        why = "no response in time: a firewall may drop the packets"
    return Unreachable(f"port {port} cannot be reached", where=where, why=why)


def _wrong_peer(where: str, port: int, why: str) -> Untrusted:
    if why in ("BadSignature", "UnknownIssuer"):
        why = "it was issued by a different authority than expected"
    return Untrusted(
        f"the certificate presented on port {port} is not accepted",
        where=where,
        why=why,
        hint="Check what listens there, and whether a proxy in between intercepts TLS. If that "
        "host has a new certificate authority, run 'mirrord pki issue' there and copy the bundle "
        "here; if it has a new certificate, correct 'fingerprint' in hosts.d.",
    )


def _not_accepted(where: str, why: str) -> Untrusted:
    return Untrusted(
        "the other end does not accept this host's certificate",
        where=where,
        why=why,
        hint="Compare the clocks of both hosts. If they are right, issue a new certificate there."
        if "expired" in why
        else "Its log shows which certificate it received.",
    )


def tune(connection: socket.socket) -> None:
    """Send small frames immediately, and let the kernel detect a dead peer, too."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class _PendingHandshake:
    """A connection whose handshake is not complete."""

    def __init__(self, connection: socket.socket, prepared: TlsConfig, address: str) -> None:
        self.connection, self.address = connection, address
        self.network = _network_of(address)
        self.tls = prepared.session()
        self.deadline_s = clock.monotonic_s() + HANDSHAKE_S
        self._bytes_left = HANDSHAKE_BYTES_MAX

    def advance(self) -> bool:
        """Process received bytes; True when the handshake is complete. `OSError`: reject it."""
        received = self.connection.recv(min(RECEIVED_BYTES, self._bytes_left))
        if not received:
            raise ConnectionResetError("the connection was closed")
        self._bytes_left -= len(received)
        self.tls.feed(received)
        self.send()
        self.tls.check()
        done = not self.tls.handshaking()
        if not done and self._bytes_left <= 0:
            raise ConnectionAbortedError("its handshake is too long")
        return done

    def send(self) -> None:
        """Send the pending handshake bytes; a new socket has room for them."""
        sealed = self.tls.outgoing()
        if sealed and self.connection.send(sealed) != len(sealed):
            raise ConnectionAbortedError("it does not read the reply")


def _network_of(address: str) -> str:
    """What one host may have: an IPv4 address, or the first 64 bits of an IPv6 address."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return found.packed[:8].hex()
    return address


class TlsAcceptor:
    """A listening socket with its pending handshakes; rejects peers without a valid certificate.

    No pending connection delays the others: handshakes run concurrently, each with a deadline, and
    when there are too many the oldest of the network with the most is closed.
    """

    def __init__(self, listening: socket.socket, prepared: TlsConfig) -> None:
        self.port: int = listening.getsockname()[1]
        self._listening, self._prepared = listening, prepared
        self._lock = threading.Lock()
        self._closed = False
        self._woken, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._ready: deque[TlsStream] = deque()
        self._pending: dict[socket.socket, _PendingHandshake] = {}
        #: How many were rejected, and the last: "192.0.2.7: the connection was closed".
        self.rejected = 0
        self.last = ""
        listening.setblocking(False)
        self._woken.setblocking(False)
        for each in (listening, self._woken):
            self._selector.register(each, selectors.EVENT_READ)

    def admit(self, stream: TlsStream) -> None:
        """Check an authenticated peer before any data is exchanged; `Untrusted` rejects it, and so
        does `Busy`.
        """

    def accept(self, timeout_s: float) -> TlsStream:
        """The next accepted stream. `Unreachable` when there is none in time, or `close` was
        called.
        """
        deadline_s = clock.monotonic_s() + timeout_s
        with self._lock:
            while not self._ready:
                left = deadline_s - clock.monotonic_s()
                if self._closed or left <= 0:
                    raise self._no_connection()
                self._wait(min(left, self._next_deadline_s()))
            return self._ready.popleft()

    def _no_connection(self) -> Unreachable:
        if self._closed:
            return Unreachable(f"port {self.port} was closed")
        why = "there was no connection"
        if self.rejected:
            why = f"{self.rejected} rejected, the last: {self.last}"
        return Unreachable(f"the other end did not connect to port {self.port}", why=why)

    def _next_deadline_s(self) -> float:
        deadlines = [each.deadline_s for each in self._pending.values()]
        return max(0.0, min(deadlines) - clock.monotonic_s()) if deadlines else HANDSHAKE_S

    def _wait(self, seconds: float) -> None:
        """One round: process connections that are ready, reject those past their deadline."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listening:
                self._accept_connection()
            elif key.fileobj is not self._woken:
                self._advance(key.data)
        now_s = clock.monotonic_s()
        for pending in [s for s in self._pending.values() if s.deadline_s <= now_s]:
            self._reject(pending, TimeoutError("the handshake took too long"))

    def _accept_connection(self) -> None:
        try:
            connection, address = self._listening.accept()
        except OSError as error:
            if are_exhausted(error):
                clock.sleep_s(0.05)  # no descriptors left: the connection stays in the queue
            return
        if len(self._pending) >= PENDING_MAX:
            self._reject(self._surplus(), OSError("too many pending handshakes"))
        pending = _PendingHandshake(connection, self._prepared, address[0])
        connection.setblocking(False)
        tune(connection)
        self._pending[connection] = pending
        self._selector.register(connection, selectors.EVENT_READ, pending)

    def _surplus(self) -> _PendingHandshake:
        """The oldest handshake of the network that has the most: a flood from one network does not
        close the connections of others.
        """
        counts = Counter(each.network for each in self._pending.values())
        most = max(counts.values())
        return next(each for each in self._pending.values() if counts[each.network] == most)

    def _advance(self, pending: _PendingHandshake) -> None:
        if pending.connection not in self._pending:
            return  # rejected in this round
        try:
            if not pending.advance():
                return
            self._selector.unregister(pending.connection)
            stream = TlsStream(pending.connection, pending.tls, pending.address)
            pending.connection.setblocking(True)  # a new socket has room for the greeting
            try:
                self.admit(stream)
            except Untrusted:
                stream.write(REFUSAL)
                raise
            except Busy:
                stream.write(CROWDED)
                raise
            stream.write(GREETING)
        except (OSError, Untrusted, Busy) as error:
            self._reject(pending, error)
            return
        del self._pending[pending.connection]
        self._ready.append(stream)

    def _reject(self, pending: _PendingHandshake, error: OSError | Untrusted | Busy) -> None:
        del self._pending[pending.connection]
        self.rejected += 1
        why = _reason(error) if isinstance(error, OSError) else str(error)
        self.last = f"{pending.address}: {why}"
        if pending.connection.fileno() in self._selector.get_map():
            self._selector.unregister(pending.connection)
        pending.connection.close()

    def close(self) -> None:
        """Close it, from any thread, also while another one waits in `accept`."""
        self._closed = True
        self._waker.close()  # wakes a thread that waits in `accept`
        with self._lock:
            for each in (*self._pending, self._listening, self._woken):
                each.close()
            for stream in self._ready:
                stream.close()
            self._pending.clear()
            self._ready.clear()
            self._selector.close()


class Listener(TlsAcceptor):
    """Listens on a port for one peer, any number of connections."""

    def __init__(
        self,
        own: OneTime,
        peer_certificate: str,
        ports: tuple[int, int] | int = 0,
        address: str = "",
    ) -> None:
        """ports: the lowest and the highest that may be used; 0: any. address: "" for all addresses
        of this host. `IoFailed` when no port is free.
        """
        self._expected = fingerprint_of_pem(peer_certificate)
        prepared = context(
            server=True, certificate=own.certificate, key=own.key, trusted=peer_certificate
        )
        super().__init__(listen(address, ports), prepared)

    def admit(self, stream: TlsStream) -> None:
        """Accept only the agreed certificate."""
        if stream.fingerprint != self._expected:
            raise Untrusted("it presented a certificate other than the agreed one")


def listen(address: str, ports: tuple[int, int] | int) -> socket.socket:
    """A listening socket on the first free one of these ports (lowest, highest; or one; 0: any).

    `IoFailed` when no port can be used.
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
    raise IoFailed(
        f"cannot listen on port {shown}",
        where=address,
        why=why,
        hint="'ss -ltnp' shows the programs that listen, 'ip address' the addresses of this host.",
    )
