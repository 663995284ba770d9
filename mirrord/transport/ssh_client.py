"""SSH connections with Paramiko: direct or through jump hosts, only to servers with a known key.

Each stage has an error of its own (mirrord.transport.failures); Paramiko's log is suppressed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import paramiko
from paramiko.transport import Transport

from mirrord.core.errors import MirrordError, Unreachable, Unsupported, Untrusted
from mirrord.core.model import RemoteHost
from mirrord.system import clock
from mirrord.transport import failures, ssh_keys
from mirrord.transport.known_hosts import fingerprint, look_up, name_of
from mirrord.transport.target import Target, resolve

#: Receive window: enough for 100 MB/s over 80 ms.
WINDOW_BYTES = 8 << 20
PACKET_BYTES_MAX = 256 << 10

#: AES-GCM runs at the speed of memory; CBC is excluded.
_CIPHERS = (
    "aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr",
)  # fmt: skip
_DIGESTS = (
    "hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256", "hmac-sha2-512",
)  # fmt: skip
_JUMPS_MAX = 8

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


class Hop(NamedTuple):
    """One connection of a route. carrier: the socket or channel below it."""

    name: str
    transport: Transport
    carrier: Any


class _Carrier:
    """A channel that carries another connection. Paramiko closes it in a thread of its own, where
    the close message to a peer that may be gone would raise an error that nothing catches.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def close(self) -> None:
        """Close it, ignoring errors of a connection that is already gone."""
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            self._channel.close()


class Route:
    """An authenticated connection, and the connections that it passes through, in order."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.hops: list[Hop] = []

    @property
    def last(self) -> Transport:
        """The connection to the target itself."""
        return self.hops[-1].transport

    def close(self) -> None:
        """Close all connections immediately."""
        if self.hops:
            with contextlib.suppress(OSError):
                self.hops[0].carrier.shutdown(socket.SHUT_RDWR)  # wakes Paramiko's threads
        while self.hops:
            # In order: the connections above it then send no close message.
            self._end(self.hops.pop(0))

    def drop(self) -> None:
        """Close the last connection."""
        self._end(self.hops.pop())

    @staticmethod
    def _end(hop: Hop) -> None:
        for part in (hop.transport, hop.carrier):
            # The close message may go to a peer that is gone.
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                part.close()

    def carrier(self, target: Target, deadline_s: float) -> Any:
        """What carries the next hop: a socket, or a channel through the last hop."""
        if not self.hops:
            return _connect(target, deadline_s)
        try:
            channel = self.last.open_channel(
                "direct-tcpip",
                (target.address, target.port),
                ("127.0.0.1", 0),
                window_size=WINDOW_BYTES,
                max_packet_size=PACKET_BYTES_MAX,
                timeout=max(0.1, deadline_s - clock.monotonic_s()),
            )
            return _Carrier(channel)
        except (paramiko.SSHException, EOFError, OSError) as error:
            why = error.text if isinstance(error, paramiko.ChannelException) else str(error)
            raise failures.jump_failed(target, self.hops[-1].name, why) from None


def connect(
    host: RemoteHost, jumps: Sequence[RemoteHost], *, meet: Callable[[Any], None] | None = None
) -> Route:
    """Log in to `host` through `jumps`, first hop first. `Unreachable`, `Untrusted`, …

    meet: called with the host key, which is then not verified; there is no login at `host`.
    """
    target = resolve(host)
    route = Route(target)
    try:
        for hop in [*_jump_targets(jumps or target.jumps, 0), target]:
            _join(route, hop, meet if hop is target else None)
    except BaseException:
        route.close()
        raise
    return route


def _jump_targets(jumps: Sequence[RemoteHost], depth: int) -> list[Target]:
    """The jump hosts, with those that ~/.ssh/config requires for the first of them."""
    targets = [resolve(jump) for jump in jumps]
    if targets and targets[0].jumps:
        if depth >= _JUMPS_MAX:
            raise Unreachable(
                "the jump hosts of ~/.ssh/config form a loop",
                where=targets[0].name,
                hint="Correct its ProxyJump lines.",
            )
        return _jump_targets(targets[0].jumps, depth + 1) + targets
    return targets


def _join(route: Route, target: Target, meet: Callable[[Any], None] | None) -> None:
    """Add one hop to a route: connect, check the host key, log in."""
    excluded: list[str] = []
    first: MirrordError | None = None
    while True:
        deadline_s = clock.monotonic_s() + target.connect_s
        carrier = route.carrier(target, deadline_s)
        try:
            transport = _negotiate(target, carrier, deadline_s, excluded)
        except BaseException as error:
            carrier.close()
            if first is not None and isinstance(error, MirrordError):
                raise first from None  # it has no other key: report what was wrong with the first
            raise
        route.hops.append(Hop(target.name, transport, carrier))
        key = transport.get_remote_server_key()
        if meet is not None:
            meet(key)
            return
        try:
            _verify_host_key(target, key)
        except Untrusted as error:
            # A server presents one of its keys: the pinned one may be of another type.
            if not target.fingerprint or key.get_name() in excluded:
                raise
            first = first or error
            excluded.append(key.get_name())
            route.drop()
            continue
        _log_in(transport, target, deadline_s)
        return


def _connect(target: Target, deadline_s: float) -> socket.socket:
    """A TCP connection; the time is divided among the addresses of the name."""
    addresses = _addresses(target, deadline_s)
    worst: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        left_s = deadline_s - clock.monotonic_s()
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(max(0.1, left_s / (len(addresses) - number)))
            made.connect(address)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            made.close()
            if worst is None or isinstance(error, ConnectionRefusedError):
                worst = error
            continue
        except BaseException:
            made.close()
            raise
        return made
    if isinstance(worst, ConnectionRefusedError):
        raise failures.refused(target)
    if isinstance(worst, TimeoutError):
        raise failures.silent(target, "the connection is not accepted")
    raise failures.no_route(target, (worst and worst.strerror) or str(worst))


def _addresses(target: Target, deadline_s: float) -> list[Any]:
    """Resolve the name within the time; an unreachable resolver has a longer timeout."""
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(target.address, target.port, 0, socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)
        except UnicodeError:  # a label is empty, or has more than 63 characters
            answers.put(OSError("it is not a valid host name"))

    threading.Thread(target=ask, name="resolver", daemon=True).start()
    try:
        found = answers.get(timeout=max(0.1, deadline_s - clock.monotonic_s()))
    except queue.Empty:
        raise failures.unresolved(target, "the resolver does not respond") from None
    if isinstance(found, OSError):
        raise failures.unresolved(target, found.strerror or str(found))
    return found


def _peek(target: Target, carrier: Any, deadline_s: float) -> bytes:
    """The first bytes from the server, left unread; b"" for a channel of a jump host."""
    if not isinstance(carrier, socket.socket):
        return b""
    ready, _, _ = select.select([carrier], [], [], max(0.0, deadline_s - clock.monotonic_s()))
    if not ready:
        raise failures.silent(target, "the connection was accepted, but no banner was received")
    try:
        heard = carrier.recv(255, socket.MSG_PEEK)
    except OSError:
        heard = b""
    if not heard:
        raise failures.not_ssh(target, b"")
    return heard


def _negotiate(
    target: Target, carrier: Any, deadline_s: float, excluded: Sequence[str]
) -> Transport:
    """Do the key exchange with the server; its host key is not verified yet."""
    heard = _peek(target, carrier, deadline_s)
    transport = Transport(
        carrier, default_window_size=WINDOW_BYTES, default_max_packet_size=PACKET_BYTES_MAX
    )
    _prefer(transport, target, excluded)
    left_s = max(0.1, deadline_s - clock.monotonic_s())
    transport.banner_timeout = transport.handshake_timeout = left_s
    try:
        transport.start_client(timeout=left_s + 0.5)
        transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        transport.close()
        if isinstance(error, paramiko.IncompatiblePeer):
            raise Unsupported(
                f"no common encryption algorithm with {target.address}",
                where=target.name,
                why=str(error),
                hint=f'Upgrade the SSH server there, or set transport = "openssh" in hosts.d/'
                f"{target.name}.toml.",
            ) from None
        if transport.remote_version or heard.startswith(b"SSH-"):
            if clock.monotonic_s() >= deadline_s:
                raise failures.silent(target, "the key exchange does not finish") from None
            raise Unreachable(
                f"{target.address} closed the connection before the login",
                where=target.name,
                why=str(error) or type(error).__name__,
                hint="Check the log of the SSH server there: journalctl -u ssh.",
            ) from None
        if not heard and clock.monotonic_s() >= deadline_s:
            raise failures.silent(target, "no banner was received") from None
        raise failures.not_ssh(target, heard) from None
    return transport


def _prefer(transport: Transport, target: Target, excluded: Sequence[str]) -> None:
    """Prefer fast ciphers, strong MACs, and the known types of host key of this server."""
    options = transport.get_security_options()
    options.ciphers = [name for name in _CIPHERS if name in options.ciphers]
    options.digests = [name for name in _DIGESTS if name in options.digests]
    known = {key.kind for key in _known(target).keys} if not target.fingerprint else set()
    kinds = [kind for kind in options.key_types if _base(kind) not in excluded]
    # With none left the server's refusal ends the loop; an empty list is not allowed.
    kinds.sort(key=lambda kind: _base(kind) not in known)
    options.key_types = kinds or list(options.key_types)[:1]


def _base(kind: str) -> str:
    """The key type of a signature algorithm."""
    return "ssh-rsa" if kind.startswith("rsa-sha2") else kind


def _known(target: Target) -> Any:
    return look_up(target.known_hosts, target.alias or name_of(target.address, target.port))


def _verify_host_key(target: Target, key: Any) -> None:
    """`Untrusted` unless the host key is the pinned one, or known_hosts has it."""
    blob, kind = key.asbytes(), key.get_name()
    shown, known = fingerprint(blob), _known(target)
    for each in known.revoked:
        if each.blob == blob:
            raise failures.revoked_key(target, shown, each.place)
    if target.fingerprint:
        if shown != target.fingerprint:
            raise failures.changed_key(target, shown, target.fingerprint, "")
        return
    if any(each.blob == blob for each in known.keys):
        return
    for each in sorted(known.keys, key=lambda each: each.kind != kind):
        raise failures.changed_key(target, shown, fingerprint(each.blob), each.place)
    why = "; ".join(known.unreadable)
    if known.authority:
        why = 'known_hosts has only an authority for it, which requires transport = "openssh"'
    raise failures.unknown_key(target, kind, shown, why=why)


def _log_in(transport: Transport, target: Target, deadline_s: float) -> None:
    """Log in with the first key that the server accepts."""
    tried: list[str] = []
    notes: list[str] = []
    with contextlib.closing(ssh_keys.Agent()) as agent:
        for what, key in ssh_keys.candidates(target, agent, notes):
            transport.auth_timeout = max(1.0, deadline_s - clock.monotonic_s())
            tried.append(f"{what} ({fingerprint(key.asbytes())})")
            if _accepted(transport, target, key, notes):
                return
            if not transport.is_active():
                if len(tried) > 1:
                    notes.append("too many keys for that server: select one with --key")
                break
    raise failures.login_refused(target, tried, notes)


def _accepted(transport: Transport, target: Target, key: Any, notes: list[str]) -> bool:
    """Whether the server accepts this key."""
    try:
        more = transport.auth_publickey(target.user, key)
    except paramiko.BadAuthenticationType as error:
        note = f"that server does not accept keys, only {', '.join(error.allowed_types)}"
        notes[:] = [*(each for each in notes if each != note), note]
        return False
    except (paramiko.SSHException, EOFError, OSError) as error:
        if not transport.is_active():
            notes.append("then the server closed the connection")
        elif "timeout" in str(error).lower():
            raise failures.silent(target, "the login was not answered") from None
        elif not isinstance(error, paramiko.AuthenticationException):
            notes.append(str(error))
        return False
    if more:
        raise Untrusted(
            f"the login as '{target.user}' requires more than a key",
            where=target.name,
            why=", ".join(more),
            hint="mirrord does not answer prompts: allow that user to log in with the key alone "
            "there (AuthenticationMethods publickey).",
        )
    return True
