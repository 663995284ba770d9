"""TLS between daemons without SSH: certificates of a small authority (mirrord.config.pki).

The listening host has the authority; `mirrord pki issue` there made the bundle that the other one
connects with. Which peer may come in is asked anew at each connection, and while it lasts.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from mirrord.core.errors import ConfigError, MirrordError, NotFound, Unreachable, Untrusted
from mirrord.core.model import RemoteHost
from mirrord.system import clock
from mirrord.system.native import TlsConfig
from mirrord.transport.base import Say
from mirrord.transport.tls import Door, context, listen, open_stream
from mirrord.transport.tlsstream import TlsStream

#: Where a mirrord listens for its peers.
PORT = 9745
#: So often it looks whether those who are in are still welcome, seconds.
LOOK_S = 3.0
#: Sessions at the same time; a peer has several when its link is long.
SESSIONS_MAX = 256

_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\n.*?-----END \1-----\n", re.DOTALL)


class Welcome(Protocol):
    """Somebody who may come in."""

    @property
    def name(self) -> str:
        """As messages name it."""


P = TypeVar("P", bound=Welcome)


def connect_tls(host: RemoteHost) -> TlsStream:
    """A stream to the mirrord that listens at `host`; its `key` is the bundle's file.

    `host.fingerprint`, when it is given, is that of the only certificate which is accepted: SHA-256
    in hexadecimal. `ConfigError`: the bundle; `Unreachable`, `Untrusted`: see `tls.connect`.
    """
    if not host.key:
        raise ConfigError(
            f"the host '{host.name}' has no bundle",
            why="transport 'tls' needs the key 'key'",
            hint=f"Run on {host.name}: mirrord pki issue NAME --allow …, and carry its file here.",
        )
    key, certificate, authority = _bundle(Path(host.key))
    prepared = context(server=False, certificate=certificate, key=key, trusted=authority)
    pinned = host.fingerprint.lower().removeprefix("sha256:").replace(":", "")
    return open_stream(
        host.address,
        host.port or PORT,
        prepared,
        host.connect_s,
        name=host.name,
        right=lambda shown: shown == pinned if pinned else bool(shown),
    )


def _bundle(file: Path) -> tuple[str, str, str]:
    """Key, certificate, and the authority's certificate, each as PEM."""
    try:
        with file.open(encoding="ascii") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o077:
                raise ConfigError(
                    "others can read the bundle",
                    where=str(file),
                    why="it has a private key in it",
                    hint=f"Run: chmod 600 {file}",
                )
            found = [(match[1], match[0]) for match in _BLOCK.finditer(opened.read())]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the bundle cannot be read", where=str(file), why=str(error)) from error
    if [kind for kind, _ in found] != ["PRIVATE KEY", "CERTIFICATE", "CERTIFICATE"]:
        raise ConfigError(
            "this is no bundle of 'mirrord pki issue'",
            where=str(file),
            why="a key and two certificates are needed",
        )
    return found[0][1], found[1][1], found[2][1]


class _Gate(Door, Generic[P]):
    """Lets in whose certificate the authority made and who is welcome now."""

    def __init__(
        self, address: tuple[str, int], prepared: TlsConfig, who: Callable[[str], P | None]
    ) -> None:
        self._who = who
        #: Of those who are let in and were not yet taken by `accept`.
        self.admitted: dict[TlsStream, P] = {}
        super().__init__(listen(*address), prepared)

    def admit(self, stream: TlsStream) -> None:
        peer = self._who(stream.fingerprint)
        if peer is None:
            raise Untrusted(f"no peer has the certificate {stream.fingerprint}")
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
        """folder: of the authority. who: which peer a certificate with this fingerprint (SHA-256,
        hexadecimal) belongs to, None when it is not welcome. serve: what a connection is for;
        the stream is closed when it returns. address: where to listen, "" for everywhere, port 0
        for any. say: for the log.

        `NotFound`: there is no authority; `IoFailed`: nothing can listen there.
        """
        self._who, self._serve, self._say = who, serve, say
        self._guard = threading.Lock()
        self._running: dict[TlsStream, P] = {}
        self._told = 0
        self._closed = False
        self._gate = _Gate(address, _server_context(folder), who)
        self.port = self._gate.port

    def run(self) -> None:
        """Accept, until `close` is called."""
        look_s = clock.monotonic_s()
        while not self._closed:
            try:
                stream = self._gate.accept(LOOK_S)
                self._begin(stream, self._gate.admitted.pop(stream))
            except Unreachable:
                pass  # nobody came
            if clock.monotonic_s() >= look_s:
                self.look()
                look_s = clock.monotonic_s() + LOOK_S

    def _begin(self, stream: TlsStream, peer: P) -> None:
        with self._guard:
            room = len(self._running) < SESSIONS_MAX and not self._closed
            if room:
                self._running[stream] = peer
        if not room:
            stream.close()
            self._say(f"turned away {peer.name}: {SESSIONS_MAX} connections are open")
            return
        threading.Thread(
            target=self._work, args=(stream, peer), name=f"tls-{peer.name}", daemon=True
        ).start()

    def _work(self, stream: TlsStream, peer: P) -> None:
        try:
            self._serve(stream, peer)
        except (MirrordError, OSError) as error:
            self._say(f"{peer.name}: {error}")
        finally:
            stream.close()
            with self._guard:
                self._running.pop(stream, None)

    def look(self) -> None:
        """End the connections of those who are not welcome any more, or not for the same."""
        with self._guard:
            running = list(self._running.items())
        asked = {stream.fingerprint for stream, _ in running}
        now = {fingerprint: self._who(fingerprint) for fingerprint in asked}
        for stream, peer in running:
            if now[stream.fingerprint] != peer:
                self._say(f"ended a connection of {peer.name}: its file in peers.d was changed")
                stream.close()
        away = self._gate.turned_away
        if away != self._told:
            self._say(f"turned away at port {self.port}: {away - self._told}, {self._gate.last}")
            self._told = away

    def close(self) -> None:
        """End it, and all connections."""
        self._closed = True
        self._gate.close()
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
            "this host has no authority", where=str(folder), hint="Run: mirrord pki init"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the keys cannot be read", where=str(folder), why=str(error)) from error
    return context(server=True, certificate=own, key=own, trusted=authority)
