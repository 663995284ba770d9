"""An agent that listens: serves each peer that has a certificate of this host's authority."""

from __future__ import annotations

import logging
import os

from mirrord.agent.rules import parse_rules
from mirrord.agent.run import Settings, serve
from mirrord.config.peers import Peer, Peers
from mirrord.system import locks
from mirrord.system.paths import Paths
from mirrord.transport.pki import TlsServer
from mirrord.transport.tlsstream import TlsStream

_log = logging.getLogger(__name__)


def serve_tls(address: tuple[str, int], paths: Paths, *, compress: str = "auto") -> None:
    """Serve peers at (address, port) until this thread is interrupted.

    `NotFound`: there is no authority (`mirrord pki init`); `IoFailed`: nothing can listen there.
    """
    # One process has many sessions: nobody may end it to get at one of its locks.
    locks.share_process()

    def one(stream: TlsStream, peer: Peer) -> None:
        rules = parse_rules(peer.allow, append_only=peer.append_only)
        # The connection itself is TLS: there is no need for another one beside it.
        serve(stream, Settings(rules, data=False, compress=compress, peer=peer.name), paths)

    os.umask(0o077)
    paths.make()
    server = TlsServer(paths.pki, Peers(paths.peers).of, one, address, say=_log.warning)
    print(f"listening at {address[0] or '*'}:{server.port}", flush=True)
    try:
        server.run()
    finally:
        server.close()
