"""TLS over a link so slow that a record arrives in pieces."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from mirrord.system.native import FrameSplitter
from mirrord.transport.tls import Listener, connect
from mirrord.wire.frames import Type, control
from tests.support.service import PATIENCE_S
from tests.transport.test_tls import OWN, PEER, in_thread, listener

__all__ = ["listener"]


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
