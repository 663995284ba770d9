"""TLS streams over real sockets: what goes in comes out, and nobody else gets in."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from mirrord.core.errors import IoFailed, Unreachable, Untrusted
from mirrord.system.native import TlsError
from mirrord.transport import tls
from mirrord.transport.tls import Listener, OneTime, connect, context
from mirrord.transport.tlsstream import TlsStream
from tests.support import openssl_peer
from tests.support.service import PATIENCE_S

OWN, PEER, STRANGER = OneTime.make(), OneTime.make(), OneTime.make()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener(OWN, PEER.certificate, address="127.0.0.1")
    yield made
    made.close()


def right_one(listener: Listener, timeout_s: float = PATIENCE_S) -> tuple[TlsStream, TlsStream]:
    """Both ends of a connection of the peer that is waited for."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(connect, "127.0.0.1", listener.port, PEER, OWN.certificate, timeout_s)
        here = listener.accept(timeout_s)
        return here, coming.result()


@pytest.fixture
def pair(listener: Listener) -> Iterator[tuple[TlsStream, TlsStream]]:
    here, there = right_one(listener)
    yield here, there
    here.close()
    there.close()


def read_all(stream: TlsStream, count: int, most: int = 1 << 20) -> bytes:
    found = b""
    while len(found) < count:
        piece = stream.read(min(most, count - len(found)))
        assert piece
        found += piece
    return found


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def raises_in_thread(work: Callable[[], Any]) -> Callable[[], BaseException]:
    """Run `work` beside; the result waits for what it raised."""
    seen: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            seen.append(error)

    thread = in_thread(run)

    def wait() -> BaseException:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "nothing woke it"
        assert seen, "nothing was raised"
        return seen[0]

    return wait


def test_both_ways_at_once_with_parts_of_all_sizes(pair: tuple[TlsStream, TlsStream]) -> None:
    sizes = [0, 1, 20, 16 << 10, (16 << 10) + 1, 65535, 65536, 300_000, 3 << 20, 5]
    drawn = random.Random(4)
    said = [
        [
            [drawn.randbytes(drawn.choice(sizes)) for _ in range(drawn.randrange(1, 5))]
            for _ in range(12)
        ]
        for _ in pair
    ]
    whole = [b"".join(b"".join(parts) for parts in each) for each in said]

    def send(number: int) -> None:
        for parts in said[number]:
            pair[number].write(*parts)

    def receive(number: int) -> bytes:
        found, length = bytearray(), len(whole[1 - number])
        while len(found) < length:
            most = min(length - len(found), (1, 20, 16 << 10, 1 << 20)[len(found) % 4])
            piece = pair[number].read(most)
            assert 0 < len(piece) <= most
            found += piece
        return bytes(found)

    with ThreadPoolExecutor(4) as pool:
        heard = [pool.submit(receive, number) for number in (0, 1)]
        for each in [pool.submit(send, number) for number in (0, 1)]:
            each.result(60)
        assert heard[0].result(60) == whole[1]
        assert heard[1].result(60) == whole[0]


def repeat(times: int, work: Callable[[], Any]) -> None:
    for _ in range(times):
        work()


def test_threads_do_not_mix_what_they_write(pair: tuple[TlsStream, TlsStream]) -> None:
    here, there = pair
    letters = [bytes([65 + n]) for n in range(6)]
    threads = [
        in_thread(partial(repeat, 5, partial(here.write, each * 50_000, each * 100_000)))
        for each in letters
    ]
    found = read_all(there, 6 * 5 * 150_000)
    for thread in threads:
        thread.join(PATIENCE_S)
    for at in range(0, len(found), 150_000):
        assert len(set(found[at : at + 150_000])) == 1


def test_an_announced_end_is_an_end_and_a_cut_is_an_error(listener: Listener) -> None:
    here, there = right_one(listener)
    here.write(b"bye")
    here.close()
    assert read_all(there, 3) == b"bye"
    assert there.read(10) == b""
    assert there.read(10) == b""
    there.close()

    here, there = right_one(listener)
    here.write(b"by")
    here._socket.shutdown(socket.SHUT_RDWR)
    assert read_all(there, 2) == b"by"
    with pytest.raises(OSError):
        there.read(10)
    here.close()
    there.close()


@pytest.mark.parametrize("which", [0, 1], ids=["own", "the other end's"])
def test_close_wakes_the_reader_and_the_writer(
    pair: tuple[TlsStream, TlsStream], which: int
) -> None:
    here = pair[0]
    reading = raises_in_thread(lambda: [here.read(10), 1 / 0] if which == 0 else here_reads(here))
    writing = raises_in_thread(lambda: here.write(bytes(64 << 20)))  # more than any buffer takes
    time.sleep(0.2)
    pair[which].close()
    assert isinstance(reading(), OSError)
    assert isinstance(writing(), OSError)
    here.close()
    here.close()
    for work in (lambda: here.read(1), lambda: here.write(b"x")):
        with pytest.raises(OSError):
            work()
    assert here._socket.fileno() == -1


def until_rejected(listener: Listener) -> None:
    """Accept until one was turned away; raises what `accept` says then."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            raise AssertionError(f"{listener.accept(0.5)} was let in")
        except Unreachable:
            if listener.rejected or time.monotonic() > end_s:
                raise


def here_reads(stream: TlsStream) -> None:
    """An orderly end is an end for the reader: say so as the error that the test waits for."""
    if stream.read(10) == b"":
        raise ConnectionResetError


def test_a_changed_byte_ends_it(listener: Listener) -> None:
    """Somebody in between turns one bit of what is sent: nothing of that record is read."""
    between = socket.create_server(("127.0.0.1", 0))
    flip = threading.Event()

    def relay() -> None:
        near, _ = between.accept()
        far = socket.create_connection(("127.0.0.1", listener.port))

        def pump(source: socket.socket, target: socket.socket, spoil: bool) -> None:
            while data := source.recv(65536):
                if spoil and flip.is_set():
                    data = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
                target.sendall(data)

        back = in_thread(lambda: pump(far, near, False))
        pump(near, far, True)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)
        back.join(10)
        near.close()
        far.close()

    in_thread(relay)
    with ThreadPoolExecutor(1) as pool:
        port = between.getsockname()[1]
        coming = pool.submit(connect, "127.0.0.1", port, PEER, OWN.certificate, PATIENCE_S)
        here, there = listener.accept(PATIENCE_S), coming.result()
    there.write(b"right")
    assert read_all(here, 5) == b"right"
    flip.set()
    there.write(b"wrong")
    with pytest.raises(TlsError, match="decrypt"):
        here.read(10)
    here.close()
    there.close()
    between.close()


def test_only_tls_1_3(listener: Listener) -> None:
    old = openssl_peer.context(
        server=False, certificate=PEER.certificate, key=PEER.key, trusted=OWN.certificate
    )
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    accepting = raises_in_thread(lambda: until_rejected(listener))
    with (
        socket.create_connection(("127.0.0.1", listener.port)) as raw,
        pytest.raises(ssl.SSLError),
    ):
        old.wrap_socket(raw)
    assert "peer is incompatible" in str(accepting())


def test_another_implementation_understands_ours(listener: Listener) -> None:
    """OpenSSL at the other end, on either side, in both directions."""
    accepted: list[TlsStream] = []
    waiting = in_thread(lambda: accepted.append(listener.accept(PATIENCE_S)))
    prepared = openssl_peer.context(
        server=False, certificate=PEER.certificate, key=PEER.key, trusted=OWN.certificate
    )
    content = random.Random(1).randbytes(1 << 20)
    with socket.create_connection(("127.0.0.1", listener.port)) as raw:
        with prepared.wrap_socket(raw) as there:
            assert there.recv(len(tls.GREETING)) == tls.GREETING
            waiting.join(10)
            [here] = accepted
            in_thread(lambda: there.sendall(content))
            assert read_all(here, len(content)) == content
            in_thread(lambda: here.write(content))
            found = b""
            while len(found) < len(content):
                found += there.recv(1 << 16)
            assert found == content
        here.close()
    answering = openssl_peer.context(
        server=True, certificate=OWN.certificate, key=OWN.key, trusted=PEER.certificate
    )
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with answering.wrap_socket(server.accept()[0], server_side=True) as near:
                near.sendall(tls.GREETING + content)
                near.unwrap()

        thread = in_thread(serve)
        stream = connect("127.0.0.1", server.getsockname()[1], PEER, OWN.certificate, PATIENCE_S)
        assert read_all(stream, len(content)) == content
        assert stream.read(10) == b""
        stream.close()
        thread.join(PATIENCE_S)


def test_the_key_needs_no_file_and_leaves_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    context(server=True, certificate=OWN.certificate, key=OWN.key, trusted=PEER.certificate)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_client_with_another_certificate_is_told_and_the_right_one_gets_in(
    listener: Listener,
) -> None:
    accepted: list[TlsStream] = []
    waiting = in_thread(lambda: accepted.append(listener.accept(PATIENCE_S)))
    with pytest.raises(Untrusted, match="does not accept this host's certificate"):
        connect("127.0.0.1", listener.port, STRANGER, OWN.certificate, PATIENCE_S)
    there = connect("127.0.0.1", listener.port, PEER, OWN.certificate, PATIENCE_S)
    waiting.join(10)
    there.write(b"hello")
    assert read_all(accepted[0], 5) == b"hello"
    assert accepted[0].fingerprint == PEER.fingerprint
    assert there.fingerprint == OWN.fingerprint
    accepted[0].close()
    there.close()


def test_a_client_without_a_certificate_is_turned_away(listener: Listener) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    accepting = raises_in_thread(lambda: until_rejected(listener))
    with (
        socket.create_connection(("127.0.0.1", listener.port)) as raw,
        bare.wrap_socket(raw) as stranger,
        pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
    ):
        stranger.recv(1)
    assert "1 rejected" in str(accepting())


def test_a_listener_with_another_certificate_gets_no_byte(listener: Listener) -> None:
    """The client does not speak to somebody else at the port, whoever that accepts."""
    accepting = raises_in_thread(lambda: until_rejected(listener))
    with pytest.raises(Untrusted, match="certificate presented on port"):
        connect("127.0.0.1", listener.port, PEER, STRANGER.certificate, PATIENCE_S)
    assert isinstance(accepting(), Unreachable)


def test_a_certificate_that_the_peers_key_signed_is_not_the_peers() -> None:
    """Who is trusted is trusted as itself, not as a maker of certificates."""
    from datetime import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    issuer = x509.load_pem_x509_certificate(PEER.certificate.encode())
    issuer_key: Any = serialization.load_pem_private_key(PEER.key.encode(), None)
    key: Any = serialization.load_pem_private_key(STRANGER.key.encode(), None)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "child")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2000, 1, 1))
        .not_valid_after(datetime(2100, 1, 1))
        .sign(issuer_key, hashes.SHA256())
    )
    child = made.public_bytes(serialization.Encoding.PEM).decode()
    forged = OneTime(child, STRANGER.key, made.fingerprint(hashes.SHA256()).hex())
    listener = Listener(OWN, PEER.certificate, address="127.0.0.1")
    accepting = raises_in_thread(lambda: until_rejected(listener))
    with pytest.raises(Untrusted):
        connect("127.0.0.1", listener.port, forged, OWN.certificate, PATIENCE_S)
    assert isinstance(accepting(), Unreachable)
    listener.close()


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 no\r\n\r\n", b""])
def test_what_answers_is_no_tls(answer: bytes) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        connection.recv(100)
        connection.sendall(answer)
        connection.close()

    in_thread(serve)
    with pytest.raises(Unreachable, match="port"):
        connect("127.0.0.1", server.getsockname()[1], PEER, OWN.certificate, PATIENCE_S, name="dr")
    server.close()


def test_who_does_not_answer_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and says nothing
        began_s = time.monotonic()
        with pytest.raises(Unreachable, match=r"dr: port .* no response in time"):
            connect("127.0.0.1", server.getsockname()[1], PEER, OWN.certificate, 0.5, name="dr")
        assert time.monotonic() - began_s < 30
        closed = server.getsockname()[1]
    with pytest.raises(Unreachable, match="Connection refused"):
        connect("127.0.0.1", closed, PEER, OWN.certificate, PATIENCE_S)
    with pytest.raises(Unreachable):
        connect("no-such-host.invalid", 1, PEER, OWN.certificate, PATIENCE_S)


def test_a_valid_client_connects_among_garbage_and_silent_connections(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 8.0)
    monkeypatch.setattr(tls, "PENDING_MAX", 8)
    ended = threading.Event()
    strangers: list[socket.socket] = []

    def one() -> socket.socket:
        made = socket.create_connection(("127.0.0.1", listener.port))
        strangers.append(made)
        return made

    for _ in range(20):
        one()  # silent ones, more than may be at once
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
    slow = one()

    def drip() -> None:
        for byte in hello + bytes(1000):
            if ended.wait(0.05):
                return
            try:
                slow.sendall(bytes([byte]))
            except OSError:
                return

    in_thread(drip)
    for noise in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(5000), hello + os.urandom(600)):
        one().sendall(noise)
    one().close()
    here, there = right_one(listener)
    there.write(b"mine")
    assert read_all(here, 4) == b"mine"
    # All of the others are turned away in the end, without anybody else coming.
    end_s = time.monotonic() + PATIENCE_S
    while listener.rejected < len(strangers) and time.monotonic() < end_s:
        with pytest.raises(Unreachable, match="rejected"):
            listener.accept(0.5)
    assert listener.rejected == len(strangers)
    assert not listener._pending
    ended.set()
    for stranger in strangers:
        stranger.close()
    here.close()
    there.close()


def test_a_handshake_without_end_is_cut(listener: Listener) -> None:
    accepting = raises_in_thread(lambda: until_rejected(listener))
    with socket.create_connection(("127.0.0.1", listener.port)) as raw, pytest.raises(OSError):
        # A hello of 16 MiB; the answer comes long before its end.
        for _ in range(1000):
            raw.sendall(b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes((16 << 10) - 4))
            time.sleep(0.001)
    assert "rejected" in str(accepting())


def test_several_sockets_over_one_listener(listener: Listener) -> None:
    with ThreadPoolExecutor(8) as pool:
        coming = [
            pool.submit(connect, "127.0.0.1", listener.port, PEER, OWN.certificate, PATIENCE_S)
            for _ in range(8)
        ]
        here = [listener.accept(PATIENCE_S) for _ in coming]
        there = [each.result() for each in coming]
    for each in (*here, *there):
        each.close()


def test_the_port_is_in_the_range_that_was_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(IoFailed, match="in use"):
            Listener(OWN, PEER.certificate, (port, port), "127.0.0.1")
        made = Listener(OWN, PEER.certificate, (port, port + 50), "127.0.0.1")
        assert port < made.port <= port + 50
        made.close()


def test_all_addresses_of_both_families() -> None:
    listener = Listener(OWN, PEER.certificate)
    for address in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(connect, address, listener.port, PEER, OWN.certificate, PATIENCE_S)
            listener.accept(PATIENCE_S).close()
            coming.result().close()
    listener.close()


def test_close_ends_the_waiting_and_frees_the_port(listener: Listener) -> None:
    waiting = raises_in_thread(lambda: listener.accept(30))
    time.sleep(0.1)
    listener.close()
    assert "was closed" in str(waiting())
    listener.close()
    with pytest.raises(Unreachable, match="was closed"):
        listener.accept(PATIENCE_S)
    with pytest.raises(Unreachable):
        connect("127.0.0.1", listener.port, PEER, OWN.certificate, 1)


@pytest.mark.parametrize("text", ["", "nonsense", OWN.key])
def test_a_certificate_that_is_none(text: str) -> None:
    with pytest.raises(Untrusted, match="malformed certificate"):
        Listener(OWN, text)
