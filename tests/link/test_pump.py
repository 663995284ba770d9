"""Data that native code moves between a pipe and a TLS connection, under a session of Python."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mirrord.core.errors import Damaged, LinkLost
from mirrord.drivers.streams import CHUNK_BYTES_MAX, PipeSink
from mirrord.link import exchange as exchanges
from mirrord.link.exchange import Exchange, Incoming
from mirrord.link.lane import Lane
from mirrord.link.session import Handler, Session
from mirrord.system.waiting import Waiting
from mirrord.transport.tls import Listener
from tests.support.service import PATIENCE_S
from tests.transport.test_tls import OWN, PEER, right_one


@contextmanager
def pair(handler: Handler) -> Iterator[tuple[Session, Session]]:
    """A client and a server over TLS. The level is fixed: on a busy machine "auto" may turn
    compression off, and then nothing is looked at.
    """
    listener = Listener(OWN, PEER.certificate, address="127.0.0.1")
    one, two = right_one(listener)
    client, server = Session(Lane(one), compress="1"), Session(Lane(two), handler=handler)
    for session in (client, server):
        session._lanes[0].reader.begun = True  # they were greeted elsewhere
        session.start()
    try:
        yield client, server
    finally:
        client.close()
        server.close()
        server.drain()
        listener.close()


def piped(*parts: bytes) -> int:
    """A pipe from which these bytes can be read, and then its end."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            for part in parts:
                file.write(part)

    threading.Thread(target=write, daemon=True).start()
    return reading


def send_all(exchange: Exchange, pipe: int, most: int) -> int:
    """As a transfer does it; how many bytes were not looked at."""
    unseen = 0
    while True:
        moved, rest = exchange.take(pipe, most)
        assert 0 <= moved <= most
        unseen += moved
        if rest:
            exchange.send(rest)
        elif not moved:
            exchange.end()
            return unseen


class Sunk:
    """A handler: what arrives goes into a pipe, whose other end is read slowly or not."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.unseen = 0
        self.go = threading.Event()

    def __call__(self, exchange: Exchange, method: str, words: list[Any]) -> Any:
        if method == "say":
            return words
        exchange.opened()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        reader.start()
        stream = Incoming(exchange)
        try:
            while True:
                if moved := stream.pass_on(PipeSink(writing, exchange.waiting), CHUNK_BYTES_MAX):
                    self.unseen += moved
                elif chunk := stream.read():
                    exchange.waiting.write_all(writing, chunk)
                else:
                    break
        finally:
            os.close(writing)
            reader.join()
        return len(self.data)

    def _read(self, pipe: int) -> None:
        self.go.wait(PATIENCE_S)
        with os.fdopen(pipe, "rb") as file:
            while part := file.read(1 << 20):
                self.data += part


@pytest.mark.parametrize("most", [100_000, CHUNK_BYTES_MAX])
def test_noise_and_text_arrive_in_order_and_only_text_is_looked_at(most: int) -> None:
    parts = [os.urandom(20_000_000), b"text " * 1_000_000, os.urandom(7_000_001), b"end"]
    sunk = Sunk()
    sunk.go.set()
    with pair(sunk) as (client, _server):
        exchange = client.begin("take")
        unseen = send_all(exchange, piped(*parts), most)
        assert exchange.result(PATIENCE_S) == sum(map(len, parts))
    assert sunk.data == b"".join(parts)
    assert 20_000_000 < unseen < 28_000_000
    assert sunk.unseen > 20_000_000


def test_a_reader_that_stands_still_holds_up_no_other_call_and_no_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchanges, "_LAST_S", 40.0)
    sunk = Sunk()
    with pair(sunk) as (client, server):
        exchange = client.begin("take")
        aborted = threading.Event()

        def check() -> None:
            if aborted.is_set():
                raise LinkLost("aborted")

        exchange.waiting = Waiting(check)
        threading.Timer(1.0, aborted.set).start()
        began_s = time.monotonic()
        with pytest.raises(LinkLost, match="aborted"):
            send_all(exchange, piped(os.urandom(1 << 20) * 40), CHUNK_BYTES_MAX)
        assert time.monotonic() - began_s < 20
        assert client.call("say", 1, timeout_s=PATIENCE_S) == [1]
        assert max(one._inlet.held() for one in server._exchanges.values()) <= 8 << 20
        began_s = time.monotonic()
        assert exchange.cancel()
        assert time.monotonic() - began_s < 20
        sunk.go.set()
        client.forget(exchange)


def test_a_stream_of_another_checksum_is_never_whole() -> None:
    sunk = Sunk()
    sunk.go.set()
    with pair(sunk) as (client, _server):
        exchange = client.begin("take")
        exchange.checksum_out.update(b"and more")
        send_all(exchange, piped(os.urandom(3_000_000)), CHUNK_BYTES_MAX)
        with pytest.raises(Damaged, match="not the one that was sent"):
            exchange.result(PATIENCE_S)
        assert client.call("say", 2) == [2]


def test_an_ended_session_ends_what_native_code_waits_for() -> None:
    sunk = Sunk()
    with pair(sunk) as (client, server):
        exchange = client.begin("take")
        threading.Timer(0.5, server._lanes[0].close).start()
        with pytest.raises(LinkLost):
            send_all(exchange, piped(os.urandom(1 << 20) * 40), CHUNK_BYTES_MAX)
        sunk.go.set()
