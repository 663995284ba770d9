"""Whatever comes to the port, the listener goes on, and lets in the right one and nobody else."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.core.errors import Unreachable
from mirrord.transport.tls import Listener, OneTime, connect
from mirrord.transport.tlsstream import TlsStream
from tests.support.openssl_peer import Session, advance, context, session
from tests.support.service import PATIENCE_S

OWN, PEER, STRANGER = OneTime.make(), OneTime.make(), OneTime.make()


class Accepting:
    """A listener whose accepted streams are kept; what else goes wrong is kept, too."""

    def __init__(self) -> None:
        self.listener = Listener(OWN, PEER.certificate, address="127.0.0.1")
        #: By the port of the other end.
        self.accepted: dict[int, TlsStream] = {}
        self.wrong: list[BaseException] = []
        self._came = threading.Semaphore(0)
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            try:
                stream = self.listener.accept(0.5)
                try:
                    port = stream._socket.getpeername()[1]
                except OSError:  # it has left already
                    stream.close()
                    continue
                self.accepted[port] = stream
                self._came.release()
            except Unreachable:
                continue
            except BaseException as error:
                self.wrong.append(error)
                self._came.release()
                return

    def right_one_gets_in(self) -> None:
        stream = connect("127.0.0.1", self.listener.port, PEER, OWN.certificate, PATIENCE_S)
        port = stream._socket.getsockname()[1]
        while port not in self.accepted:
            assert self._came.acquire(timeout=PATIENCE_S)
        assert not self.wrong, self.wrong
        here = self.accepted.pop(port)
        here.write(b"x")
        assert stream.read(1) == b"x"
        stream.close()
        here.close()

    def close(self) -> None:
        self._ended = True
        self.listener.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def accepting() -> Iterator[Accepting]:
    made = Accepting()
    yield made
    made.close()


def flipped(data: bytes, at: int, value: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]


#: What happens to a flight of the handshake: never nothing.
HARM: st.SearchStrategy[Callable[[bytes], bytes]] = st.one_of(
    st.builds(
        lambda at, value: lambda data: flipped(data, at, value),
        st.integers(0, 5000),
        st.integers(1, 255),
    ),
    st.builds(lambda at: lambda data: data[: at % len(data)], st.integers(0, 5000)),
    st.builds(
        lambda at, more: lambda data: data[: at % len(data)] + more + data[at % len(data) :],
        st.integers(0, 5000),
        st.binary(min_size=1, max_size=200),
    ),
    st.builds(
        lambda first, last: lambda data: data[first % len(data) :] + data[: last % len(data)],
        st.integers(1, 300),
        st.integers(1, 300),
    ),
    st.binary(min_size=1, max_size=20_000).map(lambda noise: lambda data: noise),
)


def hello_of(own: OneTime) -> Session:
    made = session(
        context(server=False, certificate=own.certificate, key=own.key, trusted=OWN.certificate),
        server=False,
    )
    assert not advance(made)
    return made


def second_flight(tls: Session, raw: socket.socket) -> bytes:
    while not advance(tls):
        received = raw.recv(16 << 10)
        assert received
        tls.incoming.write(received)
    return tls.outgoing.read()


@settings(max_examples=200, deadline=None)
@given(
    late=st.booleans(),
    harm=HARM,
    who=st.sampled_from([PEER, STRANGER]),
    stays=st.booleans(),
    pieces=st.integers(1, 5),
)
def test_a_spoiled_handshake(
    accepting: Accepting,
    late: bool,
    harm: Callable[[bytes], bytes],
    who: OneTime,
    stays: bool,
    pieces: int,
) -> None:
    tls = hello_of(who)
    flight = tls.outgoing.read()
    raw = socket.create_connection(("127.0.0.1", accepting.listener.port), PATIENCE_S)
    raw.settimeout(PATIENCE_S)
    try:
        if late:
            raw.sendall(flight)
            flight = second_flight(tls, raw)
        spoiled = harm(flight)
        step = max(1, len(spoiled) // pieces)
        for at in range(0, len(spoiled), step):
            raw.sendall(spoiled[at : at + step])
        if not stays:
            raw.close()
        accepting.right_one_gets_in()
    except (ConnectionError, ssl.SSLError):
        accepting.right_one_gets_in()  # it hung up in the middle of our nonsense
    finally:
        raw.close()
    # The peer's own flight may have lost only what did not matter, and nobody else's is let in.
    for stream in [accepting.accepted.pop(port) for port in list(accepting.accepted)]:
        stream.close()
        assert who is PEER


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=300) | st.just(b"\x16\x03\x01\x00\xff\x01\x00\x00"), max_size=8))
def test_a_client_survives_what_answers(answers: list[bytes]) -> None:
    """Garbage instead of a server is a clear error, in time, whatever it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            near, _ = server.accept()
            with near:
                near.settimeout(PATIENCE_S)
                try:
                    near.recv(16 << 10)
                    for each in answers:
                        near.sendall(each)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(Unreachable):
            connect("127.0.0.1", server.getsockname()[1], PEER, OWN.certificate, PATIENCE_S)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
