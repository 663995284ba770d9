"""TLS between daemons without SSH: certificates of a small authority (mirrord.admin.pki).

The listening host has the authority; `mirrord pki issue` there makes the bundle that the other one
connects with. A peer's permission is checked at each connection, and repeatedly while it lasts.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from mirrord.core.errors import (
    Busy,
    ConfigError,
    MirrordError,
    NotFound,
    Unreachable,
    Untrusted,
)
from mirrord.core.model import RemoteHost
from mirrord.system import clock
from mirrord.system.descriptors import in_share
from mirrord.system.native import TlsConfig
from mirrord.transport.base import Say
from mirrord.transport.tls import TlsAcceptor, context, listen, open_stream
from mirrord.transport.tlsstream import TlsStream

#: The default port on which mirrord listens for its peers.
PORT = 9745
#: Interval at which the permissions of connected peers are checked again, seconds.
RECHECK_S = 3.0
#: Connections at the same time; each process of a peer has one. No peer can take all of them. Each
#: opens files, too: fewer where the process may open few.
SESSIONS_MAX = 256
PEER_SESSIONS_MAX = 64
_FILES_EACH = 4

_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\n.*?-----END \1-----\n", re.DOTALL)


class AuthorizedPeer(Protocol):
    """A peer that may connect."""

    @property
    def name(self) -> str:
        """Its name in messages."""


P = TypeVar("P", bound=AuthorizedPeer)


def connect_tls(host: RemoteHost) -> TlsStream:
    """A stream to the mirrord that listens on `host`; the host's `key` is the bundle file.

    `host.fingerprint`, if set, is the fingerprint of the only accepted certificate: SHA-256 in
    hexadecimal. `ConfigError`: the bundle; `Unreachable`, `Untrusted`: see `tls.connect`.
    """
    if not host.key:
        raise ConfigError(
            f"the host '{host.name}' has no bundle",
            why="transport 'tls' requires the setting 'key'",
            hint=f"Run on {host.name}: mirrord pki issue NAME --allow …, and copy the file here.",
        )
    key, certificate, authority = _bundle(Path(host.key))
    try:
        prepared = context(server=False, certificate=certificate, key=key, trusted=authority)
    except Untrusted as error:
        raise ConfigError(
            "the bundle is damaged",
            where=host.key,
            why=error.why,
            hint="Copy it again, or issue a new one there: mirrord pki issue NAME --allow …",
        ) from None
    pinned = host.fingerprint.lower().removeprefix("sha256:").replace(":", "")
    port = host.port or PORT
    try:
        return open_stream(
            host.address,
            port,
            prepared,
            host.connect_s,
            name=host.name,
            right=lambda shown: shown == pinned if pinned else bool(shown),
        )
    except Unreachable as error:
        error.hint = (
            f"Check that the agent listens on port {port} of {host.address} ('systemctl status "
            "mirrord-agent' there), and that no firewall drops the packets. To correct the "
            f"address, edit hosts.d/{host.name}.toml."
        )
        raise


def _bundle(file: Path) -> tuple[str, str, str]:
    """Key, certificate, and the authority's certificate, each as PEM."""
    try:
        with file.open(encoding="ascii") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o077:
                raise ConfigError(
                    "the bundle is readable by others",
                    where=str(file),
                    why="it contains a private key",
                    hint=f"Run: chmod 600 {shlex.quote(str(file))}",
                )
            found = [(match[1], match[0]) for match in _BLOCK.finditer(opened.read())]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the bundle cannot be read", where=str(file), why=str(error)) from error
    if [kind for kind, _ in found] != ["PRIVATE KEY", "CERTIFICATE", "CERTIFICATE"]:
        raise ConfigError(
            "this is not a bundle of 'mirrord pki issue'",
            where=str(file),
            why="it must contain a private key and two certificates",
        )
    return found[0][1], found[1][1], found[2][1]


class _PeerAuthenticator(TlsAcceptor, Generic[P]):
    """Accepts peers whose certificate the authority issued and that are permitted now."""

    def __init__(
        self,
        address: tuple[str, int],
        prepared: TlsConfig,
        who: Callable[[str], P | None],
        served: Callable[[], list[str]],
    ) -> None:
        """served: the names of the peers of all connections that `accept` returned and that are
        open.
        """
        self._who, self._served = who, served
        #: Peers that were authenticated and not yet returned by `accept`. Weak: a peer that leaves
        #: before it is greeted is never returned.
        self.admitted: weakref.WeakKeyDictionary[TlsStream, P] = weakref.WeakKeyDictionary()
        super().__init__(listen(*address), prepared)

    def admit(self, stream: TlsStream) -> None:
        peer = self._who(stream.fingerprint)
        if peer is None:
            raise Untrusted(f"no peer has the certificate {stream.fingerprint}")
        names = [*self._served(), *(each.name for each in self.admitted.values())]
        most = in_share(SESSIONS_MAX, _FILES_EACH)
        mine = most * PEER_SESSIONS_MAX // SESSIONS_MAX
        if names.count(peer.name) >= mine or len(names) >= most:
            raise Busy(f"{peer.name} has {names.count(peer.name)} connections of {len(names)}")
        stream.peer = peer.name
        self.admitted[stream] = peer


class TlsServer(Generic[P]):
    """Serves peers over TLS, each connection in a thread, until `close`."""

    def __init__(
        self,
        folder: Path,
        who: Callable[[str], P | None],
        serve: Callable[[TlsStream, P], None],
        address: tuple[str, int],
        *,
        say: Say = lambda text: None,
    ) -> None:
        """folder: of the authority. who: the peer of a certificate with this fingerprint (SHA-256,
        hexadecimal), None when it is not permitted. serve: serves one connection; the stream is
        closed when it returns. address: where to listen, "" for all addresses, port 0 for any
        free port. say: writes to the log.

        `NotFound`: there is no authority; `IoFailed`: cannot listen on that address.
        """
        self._who, self._serve, self._say = who, serve, say
        self._guard = threading.Lock()
        self._running: dict[TlsStream, P] = {}
        self._reported = 0
        #: Whether the last check of the permissions failed.
        self._unchecked = False
        self._closed = False
        self._acceptor = _PeerAuthenticator(address, _server_context(folder), who, self._names)
        self.port = self._acceptor.port

    def run(self) -> None:
        """Accept connections until `close` is called."""
        recheck_s = clock.monotonic_s()
        while not self._closed:
            try:
                stream = self._acceptor.accept(RECHECK_S)
                self._begin(stream, self._acceptor.admitted.pop(stream))
            except Unreachable:
                pass  # no connection was made
            if clock.monotonic_s() >= recheck_s:
                self._try_recheck()
                recheck_s = clock.monotonic_s() + RECHECK_S

    def _names(self) -> list[str]:
        with self._guard:
            return [peer.name for peer in self._running.values()]

    def _begin(self, stream: TlsStream, peer: P) -> None:
        with self._guard:
            closed = self._closed
            if not closed:
                self._running[stream] = peer
        if closed:
            stream.close()
            return
        thread = threading.Thread(
            target=self._work, args=(stream, peer), name=f"tls-{peer.name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system permits no more threads
            self._end(stream)
            self._say(f"rejected {peer.name}: {error}")

    def _work(self, stream: TlsStream, peer: P) -> None:
        try:
            self._serve(stream, peer)
        except (MirrordError, OSError) as error:
            self._say(f"{peer.name}: {error}")
        finally:
            self._end(stream)

    def _end(self, stream: TlsStream) -> None:
        stream.close()
        with self._guard:
            self._running.pop(stream, None)

    def _try_recheck(self) -> None:
        """Nobody's permissions are known while they cannot be read: the connections stay."""
        try:
            self.recheck()
        except OSError as error:
            if not self._unchecked:
                self._say(f"the peers' permissions cannot be checked: {error.strerror or error}")
            self._unchecked = True
        else:
            self._unchecked = False

    def recheck(self) -> None:
        """Close the connections of peers whose permissions were changed or withdrawn. `OSError`
        when they cannot be read.
        """
        with self._guard:
            running = list(self._running.items())
        fingerprints = {stream.fingerprint for stream, _ in running}
        now = {fingerprint: self._who(fingerprint) for fingerprint in fingerprints}
        for stream, peer in running:
            if now[stream.fingerprint] != peer:
                self._say(f"closed a connection of {peer.name}: its file in peers.d was changed")
                stream.close()
        rejected = self._acceptor.rejected
        if rejected != self._reported:
            self._say(
                f"rejected on port {self.port}: {rejected - self._reported}, {self._acceptor.last}"
            )
            self._reported = rejected

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._closed = True
        self._acceptor.close()
        with self._guard:
            running = list(self._running)
        for stream in running:
            stream.close()


def _server_context(folder: Path) -> TlsConfig:
    try:
        own = (folder / "server.pem").read_text(encoding="ascii")
        authority = (folder / "ca.pem").read_text(encoding="ascii")
    except FileNotFoundError:
        raise NotFound(
            "this host has no certificate authority",
            where=str(folder),
            hint="Run: mirrord pki init",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the keys cannot be read", where=str(folder), why=str(error)) from error
    try:
        return context(server=True, certificate=own, key=own, trusted=authority)
    except Untrusted as error:
        raise ConfigError(
            "the keys of this host are damaged",
            where=str(folder),
            why=error.why,
            hint="Restore the folder from a backup; or move it away, run 'mirrord pki init', and "
            "issue new bundles for all peers.",
        ) from None
