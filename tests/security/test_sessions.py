"""Tokens, calls the wrong way, and what a peer may make us hold."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import pytest

import mirrord
from mirrord.admin.pki import Authority
from mirrord.config.peers import Peers
from mirrord.core.errors import Busy, Damaged, LinkLost, MirrordError, ProtocolError
from mirrord.core.model import ReceiveRequest
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.link import hello as greeting
from mirrord.link.exchange import WINDOW_BYTES
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.lane import Lane
from mirrord.link.session import CALLS_MAX, Session
from mirrord.transport.fds import FdStream
from mirrord.wire.frames import BODY_BYTES_MAX, CONTROL_BYTES_MAX, HEADER, MAGIC, Type
from mirrord.wire.values import pack
from tests.security.sentences import breaks
from tests.security.world import MIRROR, Host, stream_of
from tests.support.agents import Agents
from tests.support.service import until


def greeted(others: Agents, token: str) -> Lane:
    """A session of raw frames with an agent of its own."""
    lane = greeting.new_lane(others.stream())
    greeting.say(lane, Hello(mirrord.__version__, VERSIONS, token, 0, os.getpid()))
    greeting.expect(lane, timeout_s=90)
    return lane


def client_of_an_evil_agent() -> tuple[Session, Lane]:
    """Our session, greeted, and its other end."""
    ours, theirs = socket.socketpair()
    mine, evil = (
        greeting.new_lane(FdStream(end.fileno(), end.detach(), "there")) for end in (ours, theirs)
    )
    greeting.say(evil, Hello("1.0", VERSIONS))
    greeting.expect(mine, timeout_s=90)
    client = Session(mine)
    client.start()
    return client, evil


@breaks("S1")
def test_a_token_ends_only_what_was_let_in_alike(tmp_path: Path) -> None:
    token, home = secrets.token_hex(16), tmp_path / "home"
    mine = Agents(home, "--allow", f"receive={tmp_path}/a")
    thief = Agents(home, "--allow", f"receive={tmp_path}/b")
    first = greeted(mine, token)
    with pytest.raises(Busy):
        greeted(thief, token)
    assert mine.processes[0].poll() is None
    # A replay by who has the same key ends the session, which is all that it does.
    again = greeted(mine, token)
    assert mine.processes[0].wait(90) is not None
    for lane in (first, again):
        lane.close()
    for process in (*mine.processes, *thief.processes):
        process.wait(90)


@breaks("S1")
def test_a_session_token_ends_no_process_that_serves_other_peers(
    tmp_path: Path, host: Host
) -> None:
    """A peer with an SSH key and a bundle holds a token by the one, and comes by the other."""
    folder, token = tmp_path / "etc", secrets.token_hex(16)
    authority, peers = Authority(folder / "pki"), Peers(folder / "peers.d")
    authority.init()
    authority.issue("one", [f"receive={tmp_path}"], tmp_path / "one.pem", peers)
    listening = Agents(tmp_path, "--listen", "127.0.0.1:0")
    stream = listening.stream()
    port = int(stream.read(200).split(b":")[-1])
    from mirrord.transport.pki import connect_tls

    settings = host.sshd.host(
        transport="tls", port=port, key=str(tmp_path / "one.pem"), fingerprint=""
    )
    lane = greeting.new_lane(connect_tls(settings))
    greeting.say(lane, Hello(mirrord.__version__, VERSIONS, token, 0, 1))
    greeting.expect(lane, timeout_s=90)
    other = Agents(tmp_path, "--allow", f"receive={tmp_path}")
    with pytest.raises(Busy):
        greeted(other, token)
    assert other.processes[0].wait(90) == 1
    assert listening.processes[0].poll() is None
    lane.close()
    listening.processes[0].terminate()
    listening.processes[0].wait(90)
    stream.close()


@breaks("S2")
def test_the_other_end_cannot_call(tmp_path: Path) -> None:
    client, evil = client_of_an_evil_agent()
    evil.tell(Type.CALL, 1, ["open", ["block", str(tmp_path)]])
    ended = client.wait()
    assert isinstance(ended, ProtocolError) and "may not call" in str(ended)
    evil.close()


@breaks("S3")
def test_what_the_other_end_says_moves_no_cursor() -> None:
    client, evil = client_of_an_evil_agent()
    bad = "\x1b]0;owned\x07\r\x9b2J"
    calls = [client.begin("snapshots", 1), client.begin("facts", 1)]
    evil.tell(Type.RETURN, calls[0].number, [[bad], {bad: bad}])
    evil.tell(Type.ERROR, calls[1].number, {"error": "busy", "what": bad, "hint": bad})
    said = str(calls[0].result(90))
    with pytest.raises(Busy) as caught:
        calls[1].result(90)
    said += str(caught.value) + caught.value.hint
    evil.tell(Type.GOODBYE, 0, bad)
    said += str(client.wait())
    assert "owned" in said and all(letter.isprintable() for letter in said)
    evil.close()


@breaks("S4")
def test_locks_end_with_the_session(host: Host, root: Path) -> None:
    with host.peer("--allow", f"send={root}") as peer:
        handle = peer.open(root / "home")
        peer.call("lock", handle, "\x1b[2Jfor ever")
        with pytest.raises(Busy) as caught, BtrfsDriver(str(root / "home")).lock("mine"):
            pass
        assert "for ever" in str(caught.value) and "\x1b" not in str(caught.value)

    def free() -> bool:
        try:
            with BtrfsDriver(str(root / "home")).lock("mine"):
                return True
        except Busy:
            return False

    until(free)


@breaks("L1")
@pytest.mark.parametrize(
    "what", ["length", "parts", "window", "empty", "swollen", "small", "type", "stream", "hello"]
)
def test_a_peer_that_sends_more_than_it_may_is_ended(tmp_path: Path, what: str) -> None:
    others = Agents(tmp_path)
    lane = greeted(others, secrets.token_hex(16))
    piece = bytes(12) + bytes(500_000)
    try:
        if what == "length":
            lane.stream.write(HEADER.pack(MAGIC, 1, Type.CALL, 1, BODY_BYTES_MAX + 1, 0))
        elif what == "parts":
            for _ in range(CONTROL_BYTES_MAX // (1 << 20) + 2):
                lane.write(Type.PART, 1, bytes(1 << 20))
        elif what == "window":
            lane.tell(Type.CALL, 1, ["lock", [1, "x"]])
            for number in range(WINDOW_BYTES // 500_000 + 2):
                body = number.to_bytes(4, "little") + (500_000).to_bytes(4, "little") + piece[8:]
                lane.write(Type.DATA, 2, body)
        elif what in ("empty", "swollen", "small"):  # what says it is less than it is
            raw_bytes = {"empty": 0, "swollen": 1, "small": 1}[what]
            extra = 1 if what == "small" else 300
            for number in range(1, WINDOW_BYTES // 512 + 3 if what == "small" else 2):
                head = number.to_bytes(4, "little") + raw_bytes.to_bytes(4, "little") + bytes(4)
                lane.write(Type.DATA, 2, head + bytes(extra))
        elif what == "type":
            lane.stream.write(HEADER.pack(MAGIC, 1, 99, 1, 0, 0))
        elif what == "stream":
            lane.write(Type.DATA, CALLS_MAX + 9, piece)
        else:
            greeting.say(lane, Hello("x", VERSIONS, "0" * 32))
    except LinkLost:
        pass  # it has closed it already
    assert others.processes[0].wait(11) is not None  # sooner than silence is noticed
    lane.close()


@breaks("L2")
def test_calls_and_volumes_are_counted(tmp_path: Path, host: Host, root: Path) -> None:
    with host.peer("--allow", f"receive={tmp_path}") as peer:
        opened = [peer.open(tmp_path / "v", "block") for _ in range(40)]
        assert len(set(opened)) == 40
        with pytest.raises(MirrordError, match="too many volumes"):
            for _ in range(5000):
                peer.open(tmp_path / "v", "block")
        assert peer.session.alive


@breaks("I1")
def test_a_stream_that_was_changed_on_its_way_is_not_committed(host: Host, root: Path) -> None:
    """By somebody who can make right frames, but not the digest that the sender tells."""
    source = BtrfsDriver(str(root / "home"))
    snapshot = source.take_snapshot("s1")
    data = stream_of(source, snapshot)
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        there = peer.volume(root / "backup/home")
        there.prepare(MIRROR)
        handle = peer.open(root / "backup/home")
        request = pack(ReceiveRequest("t1", MIRROR, None, snapshot))
        exchange = peer.session.begin("receive", handle, request)
        exchange.await_opened()
        exchange.send(data)
        exchange.checksum_out.update(b"what the sender really sent")
        exchange.end()
        with pytest.raises((Damaged, ProtocolError)):
            exchange.result(20)
        with pytest.raises(MirrordError):
            there.commit("t1", show=True)
        assert there.snapshots() == []
