"""An agent that listens: serves each peer that has a certificate of this host's authority."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from mirrord.agent.rules import parse_rules
from mirrord.agent.run import Serving, Settings, serve
from mirrord.config.peers import Peer, Peers
from mirrord.core.errors import Busy, IoFailed, MirrordError
from mirrord.system import clock, files, locks, sockets
from mirrord.system.descriptors import are_exhausted
from mirrord.system.paths import Paths
from mirrord.transport.fds import FdStream
from mirrord.transport.pki import TlsServer
from mirrord.transport.tlsstream import TlsStream

_log = logging.getLogger(__name__)
#: How long another agent may take to begin to listen at the same path.
_STARTING_S = 5.0
#: A signal that arrives just before a wait begins does not interrupt it, but is seen after it.
_LOOK_S = 1.0


def serve_unix(path: Path, settings: Settings, paths: Paths) -> None:
    """Serve all clients of the unix socket at `path`, until this thread is interrupted.

    Only the socket's owner may connect; a chmod of the socket and its folder can permit others.
    A socket that a killed agent has left is replaced. `Busy` when a program listens there, or
    something else has that path.
    """
    locks.share_process()
    os.umask(0o077)
    paths.make()
    serving = Serving(paths)
    with _bound(path) as listening:
        print(f"listening on {path}", flush=True)
        while True:
            try:
                stream = _accepted(listening)
            except TimeoutError:
                continue
            except OSError as error:
                if not are_exhausted(error):
                    raise
                clock.sleep_s(0.05)  # the connection stays in the queue
                continue
            thread = threading.Thread(
                target=_serve_one, args=(stream, settings, serving), name="unix", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the system permits no more threads
                stream.close()
                _log.warning("rejected a client: %s", error)


def _accepted(listening: socket.socket) -> FdStream:
    connected, _ = listening.accept()
    with connected:
        made = os.dup(connected.fileno())
    try:
        return FdStream(made, made, "the client")
    except OSError:
        os.close(made)
        raise


def _serve_one(stream: FdStream, settings: Settings, serving: Serving) -> None:
    try:
        serve(stream, settings, serving)
    except MirrordError as error:
        _log.warning("%s", error)


@contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        try:
            with files.opened(path.parent, os.O_DIRECTORY) as folder:
                # Others may start an agent here, too.
                if not locks.lock_within(folder, _STARTING_S):
                    raise OSError(errno.EADDRINUSE, "another program begins to listen there")
                sockets.remove_abandoned(path, timeout_s=1)
                sockets.bind(made, path)
                made.listen(64)
                made.settimeout(_LOOK_S)
                own = path.lstat()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise IoFailed(
                    "cannot listen on the socket", where=str(path), why=error.strerror or str(error)
                ) from error
            raise Busy(
                "the socket already exists",
                where=str(path),
                hint="Another program listens there, this user may not connect to it, or the path "
                "is not a socket: give --listen another path.",
            ) from error
        try:
            yield made
        finally:
            with suppress(FileNotFoundError):
                if os.path.samestat(own, path.lstat()):
                    path.unlink()


def serve_tls(address: tuple[str, int], paths: Paths, *, compress: str = "auto") -> None:
    """Serve peers at (address, port) until this thread is interrupted.

    `NotFound`: there is no authority (`mirrord pki init`); `IoFailed`: cannot listen there.
    """
    # One process serves many sessions: it must not be killed to release one of its locks.
    locks.share_process()
    serving = Serving(paths)

    def one(stream: TlsStream, peer: Peer) -> None:
        rules = parse_rules(peer.allow, append_only=peer.append_only)
        # The connection itself uses TLS: no separate data channel is needed.
        settings = Settings(rules, data=False, compress=compress, peer=peer.name)
        serve(stream, settings, serving)

    os.umask(0o077)
    paths.make()
    server = TlsServer(paths.pki, Peers(paths.peers).of, one, address, say=_log.warning)
    with closing(server):
        print(f"listening on {address[0] or '*'}:{server.port}", flush=True)
        server.run()
