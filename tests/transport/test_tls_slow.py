"""TLS over a link so slow that a record arrives in pieces."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from mirrord.core.errors import Unreachable
from mirrord.system.native import FrameSplitter
from mirrord.transport.tls import PENDING_MAX, Listener, connect, context
from mirrord.wire.frames import Type, control
from tests.support.service import PATIENCE_S, until
from tests.transport.test_tls import OWN, PEER, in_thread, listener

__all__ = ["listener"]


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_a_flood_from_elsewhere_does_not_end_a_slow_handshake(own: str) -> None:
    """More strangers than may be pending come while the peer's packets are under way."""
    if own == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    made = Listener(OWN, PEER.certificate)
    prepared = context(
        server=False, certificate=PEER.certificate, key=PEER.key, trusted=OWN.certificate
    )
    session = prepared.session()
    with contextlib.ExitStack() as stack:
        stack.callback(made.close)
        slow = stack.enter_context(socket.create_connection((own, made.port)))
        with pytest.raises(Unreachable):
            made.accept(0.2)
        for _ in range(2 * PENDING_MAX):
            elsewhere = ("127.0.0.2", 0)
            stranger = socket.create_connection(("127.0.0.1", made.port), None, elsewhere)
            stack.enter_context(stranger)
            with pytest.raises(Unreachable):
                made.accept(0.001)
        until(lambda: turned_away(made) >= PENDING_MAX)
        slow.sendall(session.outgoing())
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(made.accept, 20.0)
            while session.handshaking():
                received = slow.recv(1 << 16)
                assert received, "it was turned away"
                session.feed(received)
            slow.sendall(session.outgoing())
            stack.callback(coming.result().close)
            assert coming.result().fingerprint == PEER.fingerprint


def turned_away(listener: Listener) -> int:
    with contextlib.suppress(Unreachable):
        listener.accept(0.01)
    return listener.rejected


def test_half_a_record_is_not_the_end(listener: Listener) -> None:
    """On a slow link a record takes longer than the time after which `read_frames` returns."""
    slowly = threading.Event()

    def forward(incoming: socket.socket, outgoing: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := incoming.recv(1 << 20):
                half = 3 if slowly.is_set() else len(data)
                outgoing.sendall(data[:half])
                if half < len(data):
                    time.sleep(1.5)
                    outgoing.sendall(data[half:])

    with socket.create_server(("127.0.0.1", 0)) as relay, ThreadPoolExecutor(2) as pool:
        port = relay.getsockname()[1]
        coming = pool.submit(connect, "127.0.0.1", port, PEER, OWN.certificate, PATIENCE_S)
        accepted = pool.submit(listener.accept, PATIENCE_S)
        client = relay.accept()[0]
        server = socket.create_connection(("127.0.0.1", listener.port))
        in_thread(partial(forward, client, server))
        in_thread(partial(forward, server, client))
        here, there = accepted.result(), coming.result()
        slowly.set()
        there.write(*control(Type.CALL, 1, "x" * 9000))
        splitter, frames = FrameSplitter(), 0
        while not frames:
            count, found = here.read_frames(splitter)
            assert count
            frames += len(found)
        for each in (here, there, client, server):
            each.close()
