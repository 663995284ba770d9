"""Sessions: calls and data in both directions, and every way in which a peer may misbehave."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import mirrord
from mirrord.core.errors import (
    MIRROR,
    Busy,
    Damaged,
    LinkLost,
    MirrordError,
    ProtocolError,
    Unreachable,
    copy_of,
)
from mirrord.link import exchange as exchanges
from mirrord.link import hello as greeting
from mirrord.link import lane as lanes
from mirrord.link import outflow
from mirrord.link.exchange import Exchange
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.lane import Lane
from mirrord.link.session import CALLS_MAX, Session
from mirrord.transport.fds import FdStream
from mirrord.wire.frames import Type, control, header
from tests.support.service import PATIENCE_S, until

Handler = Callable[[Exchange, str, list[Any]], Any]


def streams() -> tuple[FdStream, FdStream]:
    ours, theirs = socket.socketpair()
    one, two = ours.detach(), theirs.detach()
    return FdStream(one, one, "there"), FdStream(two, two, "here")


@contextmanager
def pair(
    handler: Handler, *, further: int = 0, version: int = VERSIONS[0]
) -> Iterator[tuple[Session, Session]]:
    """A client and a server that know each other; `further` lanes for data."""
    one, two = streams()
    client = Session(Lane(one), version=version)
    server = Session(Lane(two), handler=handler, version=version)
    for number in (client, server):
        number._lanes[0].reader.begun = True  # they were greeted elsewhere
    for _ in range(further):
        three, four = streams()
        for session, stream in ((client, three), (server, four)):
            lane = Lane(stream)
            lane.reader.begun = True
            session.attach(lane)
    client.start()
    server.start()
    if further:
        client.widen(further)
        server.widen(further)
    try:
        yield client, server
    finally:
        client.close()
        server.close()
        server.drain()


def echo(exchange: Exchange, method: str, words: list[Any]) -> Any:
    if method == "fail":
        raise Busy("it is held", where="a volume", why="by a process", hint="Wait.")
    if method == "advise":
        raise Busy("it is held", hint=f"'mirrord abort {MIRROR}' or 'mirrord break {MIRROR}'.")
    if method == "bug":
        raise ZeroDivisionError("oops")
    if method == "give":
        exchange.opened()
        left = words[0]
        while left:
            piece = os.urandom(1000) * 300
            exchange.send(piece[: min(left, len(piece))])
            left -= min(left, len(piece))
        exchange.end()
        return "given"
    if method == "take":
        exchange.opened()
        got = 0
        while chunk := exchange.read():
            got += len(chunk)
        return got
    return [method, *words]


def test_calls_are_answered_each_by_its_own_answer() -> None:
    with pair(echo) as (client, _server):
        assert client.call("say", 1, None, "x", [b"y"]) == ["say", 1, None, "x", [b"y"]]
        answers: dict[int, Any] = {}

        def ask(number: int) -> None:
            for _ in range(20):
                answers[number] = client.call("say", number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == {number: ["say", number] for number in range(20)}


def test_an_error_travels_whole_and_a_bug_is_told_as_one() -> None:
    with pair(echo) as (client, _server):
        with pytest.raises(Busy) as caught:
            client.call("fail")
        assert str(caught.value) == "a volume: it is held: by a process"
        assert caught.value.hint == "Wait."
        with pytest.raises(MirrordError, match="unexpected: ZeroDivisionError: oops"):
            client.call("bug")
        assert client.call("say") == ["say"]


def test_a_hint_from_the_other_end_names_the_mirror_as_it_is_called_here() -> None:
    with pair(echo) as (client, _server), pytest.raises(Busy) as caught:
        client.call("advise")
    error = copy_of(caught.value)
    assert error.hint == "'mirrord abort NAME' or 'mirrord break NAME'."
    error.prepend_hint("Wait.")
    error.mirror = "home"
    assert error.hint == "Wait. 'mirrord abort home' or 'mirrord break home'."
    assert error.data == {}


@pytest.mark.parametrize("further", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 1, 70_000, 3 << 20, 40 << 20])
def test_data_come_whole_and_in_order(size: int, further: int) -> None:
    with pair(echo, further=further) as (client, _server):
        exchange = client.begin("give", size)
        got = 0
        while chunk := exchange.read():
            got += len(chunk)
        assert got == size and exchange.result(PATIENCE_S) == "given"
        exchange = client.begin("take")
        data = os.urandom(min(size, 1 << 20))
        left = size
        while left:
            exchange.send(data[: min(left, len(data))])
            left -= min(left, len(data))
        exchange.end()
        assert exchange.result(PATIENCE_S) == size


def test_a_reader_that_stands_still_holds_up_its_own_stream_only() -> None:
    with pair(echo) as (client, _server):
        slow = client.begin("give", 60 << 20)
        assert len(slow.read())
        until(lambda: slow._inlet.held() >= exchanges.WINDOW_BYTES - (1 << 20))
        assert client.call("say", 1) == ["say", 1]
        assert slow._inlet.held() <= exchanges.WINDOW_BYTES
        slow.cancel()


@pytest.mark.parametrize(("version", "digits"), [(3, 32), (2, 64)])
def test_a_stream_ends_with_the_checksum_that_the_version_has(version: int, digits: int) -> None:
    with pair(echo, version=version) as (client, _server):
        exchange = client.begin("give", 700_000)
        assert sum(len(chunk) for chunk in iter(exchange.read, b"")) == 700_000
        assert exchange.result(PATIENCE_S) == "given"
        assert len(exchange.checksum_in.hexdigest()) == digits


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stream_of_another_checksum_is_never_whole(version: int) -> None:
    with pair(echo, version=version) as (client, _server):
        exchange = client.begin("take")
        exchange.send(b"what was sent")
        exchange.checksum_out.update(b"and more")
        exchange.end()
        with pytest.raises(Damaged, match="not the one that was sent"):
            exchange.result(PATIENCE_S)


def test_the_end_of_a_peer_ends_what_waits_for_it() -> None:
    begun, end = threading.Event(), threading.Event()

    def hang(_exchange: Exchange, _method: str, _words: list[Any]) -> None:
        begun.set()
        end.wait(PATIENCE_S)

    with pair(hang) as (client, server):

        def close() -> None:
            begun.wait(PATIENCE_S)
            server._lanes[0].close()

        threading.Thread(target=close).start()
        with pytest.raises(LinkLost):
            client.call("anything")
        assert begun.is_set() and not end.is_set() and not client.alive
        end.set()
        with pytest.raises(LinkLost):
            client.call("anything")


def test_a_silent_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "SILENCE_S", 1.0)
    one, two = streams()
    client = Session(Lane(one))
    client.start()
    began = time.monotonic()
    error = client.wait()
    assert isinstance(error, LinkLost) and "nothing was received" in error.why
    assert time.monotonic() - began < 10  # with the usual patience it would be more
    two.close()


def test_an_idle_session_is_kept_alive_by_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "SILENCE_S", 7.0)
    monkeypatch.setattr(lanes, "BEAT_S", 0.5)
    with pair(echo) as (client, server):
        time.sleep(9)
        assert client.alive and server.alive


def test_single_bytes_do_not_keep_a_session_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "SILENCE_S", 1.5)
    one, two = streams()
    lane = Lane(one)
    lane.reader.begun = True
    client = Session(lane)
    client.start()
    body = bytes(100)
    for byte in header(Type.BEAT, 0, body)[:8]:
        try:
            two.write(bytes([byte]))
        except OSError:
            break
        time.sleep(0.4)
    until(lambda: not client.alive)
    two.close()


def raw(*parts: bytes) -> MirrordError | None:
    """What a server's session ends with when its peer says this."""
    one, two = streams()
    lane = Lane(two)
    lane.reader.begun = True
    server = Session(lane, handler=echo)
    server.start()
    try:
        with contextlib.suppress(BrokenPipeError):  # it may be left in the middle of what it says
            one.write(*parts)
        assert server._over.wait(PATIENCE_S), "it goes on"
        return server.wait()
    finally:
        one.close()
        server.close()
        server.drain()


@pytest.mark.parametrize(
    "parts",
    [
        [b"\x00" * 40],
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
        control(Type.CALL, 1, "no list"),
        control(Type.CALL, 1, ["x"]),
        control(Type.CALL, 1, [3, []]),
        control(Type.CALL, 0, ["say", []]),
        control(Type.HELLO, 0, {}),
        [header(Type.CALL, 1, b"\xc1"), b"\xc1"],
        [header(Type.DATA, 9999, b"x" * 20), b"x" * 20],
        [*control(Type.CALL, 1, ["take", []]), header(Type.DATA, 1, b"x"), b"x"],
        [*control(Type.CALL, 1, ["take", []]), *control(Type.CREDIT, 1, -1)],
        [*control(Type.CALL, 1, ["take", []]), *control(Type.CREDIT, 1, 1 << 60)],
        [*control(Type.CALL, 1, ["take", []]), *control(Type.END, 1, ["x"])],
    ],
)
def test_a_peer_that_makes_no_sense_is_left(parts: list[bytes]) -> None:
    assert isinstance(raw(*parts), ProtocolError)


def test_a_peer_that_sends_more_than_it_may_is_left() -> None:
    body = outflow._PIECE.pack(5, 1 << 19, 0) + b"x"
    flood = [*control(Type.CALL, 1, ["take", []])]
    for number in range(1, 40):  # the first piece never comes, so none of these can be used
        body = outflow._PIECE.pack(number, 1 << 19, 0) + b"x"
        flood += [header(Type.DATA, 1, body), body]
    assert isinstance(raw(*flood), ProtocolError)


def test_too_many_calls_at_once_are_refused_not_queued() -> None:
    end = threading.Event()

    def hold(_exchange: Exchange, _method: str, _words: list[Any]) -> None:
        end.wait(2 * PATIENCE_S)

    with pair(hold) as (client, _server):
        held = [client.begin("x") for _ in range(CALLS_MAX)]
        with pytest.raises(Busy, match="too many calls"):
            client.call("x", timeout_s=PATIENCE_S)
        end.set()
        for one in held:
            one.result(PATIENCE_S)


# Greetings


def greeted(say: Callable[[FdStream], None], *, timeout_s: float = PATIENCE_S) -> MirrordError:
    one, two = streams()
    lane = greeting.new_lane(one)
    thread = threading.Thread(target=say, args=(two,))
    thread.start()
    try:
        with pytest.raises(MirrordError) as caught:
            greeting.agree(VERSIONS, greeting.expect(lane, timeout_s=timeout_s), "there")
        return caught.value
    finally:
        lane.close()
        thread.join()
        two.close()


def test_another_version_is_named_with_ours() -> None:
    def say(stream: FdStream) -> None:
        greeting.say(Lane(stream), Hello("9.9", (7, 8)))

    error = greeted(say)
    assert isinstance(error, ProtocolError)
    assert "9.9 there supports 7, 8" in error.why and mirrord.__version__ in error.why
    assert "same version" in error.hint


def test_many_versions_are_not_all_named() -> None:
    def say(stream: FdStream) -> None:
        greeting.say(Lane(stream), Hello("9.9", (1 << 62,) * 7000))

    assert len(str(greeted(say))) < 10_000


def test_a_peer_that_is_not_mirrord_is_quoted_in_the_error() -> None:
    def say(stream: FdStream) -> None:
        with contextlib.suppress(OSError):  # it may be left in the middle of what it says
            stream.write(b"220 mail.example.org ESMTP\r\n" + b"x" * 70_000)

    error = greeted(say)
    assert isinstance(error, ProtocolError) and "220 mail.example.org" in error.why


def test_a_peer_that_closes_or_sends_no_greeting_is_an_error() -> None:
    error = greeted(lambda stream: stream.close())
    assert isinstance(error, LinkLost) and "it ended at once" in error.why
    error = greeted(lambda stream: None, timeout_s=0.3)
    assert isinstance(error, Unreachable) and "no greeting within" in error.why


def test_a_refusal_is_raised_as_what_it_is() -> None:
    error = greeted(lambda stream: greeting.refuse(Lane(stream), Busy("it is taken")))
    assert isinstance(error, Busy) and error.what == "it is taken"
