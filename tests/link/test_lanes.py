"""The lanes for data next to SSH: a real sshd and its agent, and lanes that cannot be made."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mirrord
from mirrord.config.hosts import SOCKETS_MAX, parse
from mirrord.core.errors import ConfigError, LinkLost, MirrordError
from mirrord.link import hello as greeting
from mirrord.link.connect import Link
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.lane import Lane
from mirrord.link.links import Links
from mirrord.link.session import Session
from mirrord.system.waiting import Waiting
from mirrord.transport import tls, tlsstream
from mirrord.wire.frames import Frame, Type, value_of
from tests.support.agents import Agents
from tests.support.proxy import DOWN, Proxy
from tests.support.service import PATIENCE_S
from tests.support.sshd import Sshd, running

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("lanes") / "sshd") as made:
        yield made


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    prefix = ("exec", "env", f"MIRRORD_HOME={tmp_path}", f"PYTHONPATH={ROOT}")
    return (*prefix, sys.executable, "-m", "mirrord", "agent")


Spoil = Callable[[Proxy], None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lead the data connections through proxies; number `number` (from 1) is spoilt, before it is
    made or once its TLS stands.
    """
    made: list[Proxy] = []
    spoilt: dict[int, tuple[Spoil | None, Spoil | None]] = {}
    straight = tls.connect

    def through(address: str, port: int, *words: object, **more: object) -> tlsstream.TlsStream:
        made.append(Proxy((address, port)))
        before, after = spoilt.get(len(made), (None, None))
        if before is not None:
            before(made[-1])
        stream = straight(address, made[-1].port, *words, **more)  # type: ignore[arg-type]
        if after is not None:
            after(made[-1])
        return stream

    def say(number: int, before: Spoil | None = None, after: Spoil | None = None) -> None:
        spoilt[number] = before, after

    monkeypatch.setattr(tls, "connect", through)
    yield say
    for one in made:
        one.close()


def stays(session: Session) -> None:
    """It answers, also after every lane that ended was noticed."""
    until_s = time.monotonic() + 2
    while time.monotonic() < until_s:
        session.call("ping", timeout_s=PATIENCE_S)
        time.sleep(0.1)
    assert session.alive


@pytest.mark.parametrize("sockets", [1, SOCKETS_MAX])
def test_as_many_lanes_as_may_be_configured(
    server: Sshd, command: tuple[str, ...], sockets: int
) -> None:
    host = server.host(command=command, data="auto", sockets=sockets)
    link = Link(host)
    session = link.session(Waiting())
    assert link.notes == () and len(session.data_lanes()) == sockets
    stays(session)
    link.close()
    text = f"sockets = {SOCKETS_MAX + 1}\n"
    with pytest.raises(ConfigError, match="sockets"):
        parse("dr", text, "dr.toml")


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("how", ["refused", "cut before its greeting", "cut in its greeting"])
def test_a_lane_that_cannot_be_made_leaves_the_connection_by_ssh(
    server: Sshd, command: tuple[str, ...], spoil: Callable[..., None], how: str, number: int
) -> None:
    if how == "refused":
        spoil(number, before=Proxy.refuse)
    elif how == "cut before its greeting":
        spoil(number, after=Proxy.cut)
    else:  # the agent has attached it when we miss its greeting
        spoil(number, after=lambda proxy: proxy.cut_at(5, DOWN))
    link = Link(server.host(command=command, data="auto", sockets=3))
    session = link.session(Waiting())
    [note] = link.notes
    assert note.startswith("Data is sent over SSH, too: dr: ")
    assert session.data_lanes() == [session.control_lane()]
    stays(session)
    assert link.session(Waiting()) is session
    link.close()


def test_a_lane_that_falls_silent_in_its_greeting(
    server: Sshd, command: tuple[str, ...], spoil: Callable[..., None]
) -> None:
    spoil(2, after=Proxy.stall)
    link = Link(server.host(command=command, data="auto", sockets=2, connect_s=3.0))
    session = link.session(Waiting())
    [note] = link.notes
    assert "no greeting within 3 s" in note
    stays(session)
    link.close()


def test_a_lane_that_ends_before_it_is_used(
    server: Sshd, command: tuple[str, ...], spoil: Callable[..., None]
) -> None:
    """The first one ends while the second is made."""
    first: list[Proxy] = []
    spoil(1, after=first.append)

    def cut_first(_second: Proxy) -> None:
        first[0].cut()
        time.sleep(1)

    spoil(2, before=cut_first)
    link = Link(server.host(command=command, data="auto", sockets=2))
    session = link.session(Waiting())
    [note] = link.notes
    assert "a data connection is lost" in note
    stays(session)
    link.close()


def test_jump_hosts_whose_settings_were_changed_are_used(
    server: Sshd, command: tuple[str, ...]
) -> None:
    """By a process that has connected before, or has tried to."""
    links = Links()
    host = server.host(command=command, data="auto", jump="gate")
    wrong = server.host(name="gate", jump="", user="nobody-there")
    with pytest.raises(MirrordError):
        links.to("dr", host, [wrong]).session(Waiting())
    link = links.to("dr", host, [server.host(name="gate")])
    stays(link.session(Waiting()))
    assert link.notes == ("Data is sent over SSH, too: the connection uses a jump host.",)
    links.close()


PROXY = "  ProxyCommand bash -c 'exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'\n"


@pytest.mark.parametrize("known_by", ["ProxyCommand", "Include"])
def test_a_host_that_only_the_program_ssh_can_find(
    server: Sshd,
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known_by: str,
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "bin").mkdir()
    config, program = tmp_path / ".ssh/config", tmp_path / "bin/ssh"
    address = f"  HostName 127.0.0.1\n  Port {server.port}\n"
    if known_by == "ProxyCommand":
        config.write_text(f"Host far\n{address}{PROXY}")
    else:
        (tmp_path / "more").write_text(f"Host far\n{address}")
        config.write_text(f"Host fa*\n  Include {tmp_path}/more\n")
    # ssh takes the home of the user's entry in passwd, not that of the environment.
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    host = server.host(
        name="far", address="far", port=0, command=command, data="auto", transport="openssh"
    )
    link = Link(host)
    session = link.session(Waiting())
    [note] = link.notes
    assert note.startswith("Data is sent over SSH, too: ") and known_by.lower() in note.lower()
    stays(session)
    link.close()


class Client:
    """Raw frames to an agent's process."""

    def __init__(self, home: Path) -> None:
        self.others, self.token, self._last = Agents(home), secrets.token_hex(16), 0
        self.lane = greeting.new_lane(self.others.stream())
        self.greet(self.lane, 0)
        greeting.expect(self.lane, timeout_s=PATIENCE_S)

    def greet(self, lane: Lane, number: int) -> None:
        greeting.say(lane, Hello(mirrord.__version__, VERSIONS, self.token, number, os.getpid()))

    def call(self, method: str, *words: object) -> object:
        self._last += 1
        self.lane.tell(Type.CALL, self._last, [method, list(words)])
        while True:
            for frame in self.lane.read():
                if answer := self._answer(frame):
                    return answer[0]

    def _answer(self, frame: Frame) -> list[object]:
        if frame.type is Type.BEAT:
            return []
        assert (frame.type, frame.stream) == (Type.RETURN, self._last), frame
        return [value_of(frame.body, Type.RETURN)]

    def close(self) -> None:
        self.lane.close()
        assert self.others.processes[0].wait(PATIENCE_S) in (0, 1)


def test_no_lane_is_attached_after_the_client_gave_them_up(tmp_path: Path) -> None:
    client = Client(tmp_path)
    own = tls.OneTime.make()
    answer = client.call("data_channel", own.certificate)
    assert isinstance(answer, list)
    late = greeting.new_lane(
        tls.connect("127.0.0.1", answer[0], own, answer[1], PATIENCE_S, name="dr")
    )
    assert client.call("narrow") is None
    client.greet(late, 1)
    with pytest.raises(LinkLost):
        greeting.expect(late, timeout_s=PATIENCE_S)
    late.close()
    assert client.call("ping") is None
    client.close()


def test_a_lane_that_an_older_client_closes_first_ends_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path)
    own = tls.OneTime.make()
    answer = client.call("data_channel", own.certificate)
    assert isinstance(answer, list)
    lane = greeting.new_lane(
        tls.connect("127.0.0.1", answer[0], own, answer[1], PATIENCE_S, name="dr")
    )
    client.greet(lane, 1)
    greeting.expect(lane, timeout_s=PATIENCE_S)
    lane.close()
    time.sleep(0.5)
    assert client.call("ping") is None
    assert client.call("narrow") is None
    client.close()
