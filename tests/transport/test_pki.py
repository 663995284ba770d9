"""The small authority: who is let in, who is not, and who is not any more."""

from __future__ import annotations

import gc
import json
import resource
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.admin.pki import Authority
from mirrord.cli.main import run
from mirrord.config.hosts import parse, render
from mirrord.config.peers import Peer, Peers
from mirrord.core.errors import (
    Busy,
    ConfigError,
    NotFound,
    Refused,
    Unreachable,
    Untrusted,
    UsageError,
)
from mirrord.core.model import RemoteHost
from mirrord.system import clock
from mirrord.transport import pki
from mirrord.transport.pki import TlsServer, connect_tls
from mirrord.transport.tls import OneTime, connect, context, open_stream
from mirrord.transport.tlsstream import TlsStream
from tests.support.service import PATIENCE_S, until


class Place:
    """A host with an authority, and bundles for its peers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "etc/pki")
        self.peers = Peers(folder / "etc/peers.d")
        self.authority.init()

    def issue(self, name: str, *allow: str, append_only: bool = False) -> Path:
        bundle = self.folder / f"{name}.pem"
        self.authority.issue(
            name, list(allow) or ["receive=/backup"], bundle, self.peers, append_only=append_only
        )
        return bundle


class Serving:
    """A server that answers with who it thinks is there, then with what it is sent."""

    def __init__(self, place: Place) -> None:
        self.said: list[str] = []
        self.server = TlsServer(
            place.authority.folder,
            place.peers.of,
            self.echo,
            ("127.0.0.1", 0),
            say=self.said.append,
        )
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()

    def echo(self, stream: TlsStream, peer: Peer) -> None:
        stream.write(f"{stream.peer} {' '.join(peer.allow)} {peer.append_only}\n".encode())
        while data := stream.read(1000):
            stream.write(data)

    def host(self, bundle: Path, **other: Any) -> RemoteHost:
        return RemoteHost(
            "dr",
            "127.0.0.1",
            self.server.port,
            transport="tls",
            key=str(bundle),
            connect_s=60,
            **other,
        )

    def close(self) -> None:
        self.server.close()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def serving(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(pki, "RECHECK_S", 0.1)
    made = Serving(place)
    yield made
    made.close()


def line(stream: TlsStream) -> str:
    found = b""
    while not found.endswith(b"\n"):
        piece = stream.read(1000)
        assert piece
        found += piece
    return found.decode().strip()


def ends(stream: TlsStream) -> None:
    """Wait until the other end has ended it, in order or not."""
    try:
        while stream.read(10):
            pass
    except OSError:
        pass
    stream.close()


def ends_in_order(stream: TlsStream, serving: Serving) -> None:
    """Close it, and wait until the server has noticed."""
    before = len(serving.server._names())
    stream.close()
    until(lambda: len(serving.server._names()) < before)


def test_a_peer_gets_in_and_is_known_by_its_name_and_rules(place: Place, serving: Serving) -> None:
    one = place.issue("berlin", "receive=/backup/a", "send=/data", append_only=True)
    other = place.issue("paris")
    for bundle, known in (
        (one, "berlin receive=/backup/a send=/data True"),
        (other, "paris receive=/backup False"),
    ):
        stream = connect_tls(serving.host(bundle))
        assert line(stream) == known
        assert stream.peer == "dr"
        stream.write(b"back\n")
        assert line(stream) == "back"
        stream.close()


def test_deleting_the_file_shuts_out_and_ends_what_runs(place: Place, serving: Serving) -> None:
    bundle, stays = place.issue("berlin"), place.issue("paris")
    stream, other = connect_tls(serving.host(bundle)), connect_tls(serving.host(stays))
    assert line(stream).startswith("berlin")
    assert line(other).startswith("paris")
    place.peers.file("berlin").unlink()
    began_s = time.monotonic()
    ends(stream)
    assert time.monotonic() - began_s < 30
    with pytest.raises(
        Untrusted, match="does not accept this host's certificate: it is not on its list"
    ):
        connect_tls(serving.host(bundle))
    until(lambda: any("closed a connection of berlin" in each for each in serving.said))
    until(lambda: any("no peer has the certificate" in each for each in serving.said))
    other.write(b"still here\n")
    assert line(other) == "still here"
    other.close()


def test_other_rules_end_what_runs_by_the_old_ones(place: Place, serving: Serving) -> None:
    stream = connect_tls(serving.host(place.issue("berlin")))
    assert line(stream)
    file = place.peers.file("berlin")
    file.write_text(file.read_text().replace("append_only = false", "append_only = true"))
    ends(stream)
    again = connect_tls(serving.host(Path(f"{place.folder}/berlin.pem")))
    assert line(again).endswith("True")
    again.close()


@pytest.mark.parametrize("wrong", ['alow = ["send=/"]', f"deep = {'[' * 5000}", "\0"])
def test_a_wrong_file_lets_nobody_in_and_keeps_nobody_out(
    place: Place, serving: Serving, wrong: str
) -> None:
    bundle, right = place.issue("berlin"), place.issue("paris")
    file = place.peers.file("berlin")
    file.write_text(f"{file.read_text()}{wrong}\n")
    with pytest.raises(Untrusted):
        connect_tls(serving.host(bundle))
    stream = connect_tls(serving.host(right))
    assert line(stream).startswith("paris")
    stream.close()


def test_a_damaged_bundle_and_damaged_keys_are_named(place: Place, serving: Serving) -> None:
    bundle = place.issue("berlin")
    bundle.write_text(bundle.read_text().replace("MII", "MIJ"))
    with pytest.raises(ConfigError, match="the bundle is damaged") as caught:
        connect_tls(serving.host(bundle))
    assert str(bundle) in str(caught.value) and "mirrord pki issue" in caught.value.hint
    for name in ("ca.pem", "server.pem"):
        kept = (place.authority.folder / name).read_bytes()
        (place.authority.folder / name).write_bytes(kept[: len(kept) // 4])
        with pytest.raises(ConfigError, match="the keys of this host are damaged") as caught:
            Serving(place)
        assert "mirrord pki init" in caught.value.hint
        (place.authority.folder / name).write_bytes(kept)


@pytest.mark.parametrize("days", [-8000, 100])
def test_a_certificate_that_is_not_valid_now_makes_one_look_at_the_clocks(
    place: Place, serving: Serving, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    now_ns = clock.now_ns()
    with monkeypatch.context() as then:
        then.setattr(clock, "now_ns", lambda: now_ns + days * 86400 * 10**9)
        bundle = place.issue("berlin")
    with pytest.raises(Untrusted, match="certificate expired") as caught:
        connect_tls(serving.host(bundle))
    assert "Compare the clocks of both hosts" in caught.value.hint


def test_a_peer_with_many_connections_does_not_shut_out_the_others(
    place: Place, serving: Serving
) -> None:
    many, other = place.issue("berlin"), place.issue("paris")
    opened = [connect_tls(serving.host(many)) for _ in range(pki.PEER_SESSIONS_MAX)]
    with pytest.raises(Busy, match="accepts no more connections"):
        connect_tls(serving.host(many))
    until(lambda: any("berlin has 64 connections of 64" in each for each in serving.said))
    stream = connect_tls(serving.host(other))
    assert line(stream).startswith("paris")
    stream.close()
    ends_in_order(opened.pop(), serving)
    again = connect_tls(serving.host(many))
    assert line(again).startswith("berlin")
    for each in (again, *opened):
        each.close()


def test_the_connections_of_all_peers_are_limited(
    place: Place, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pki, "SESSIONS_MAX", 4)
    bundles = [place.issue(name) for name in ("berlin", "paris", "rome")]
    opened = [connect_tls(serving.host(bundle)) for bundle in bundles[:2] * 2]
    with pytest.raises(Busy):
        connect_tls(serving.host(bundles[2]))
    for each in opened:
        each.close()


def test_a_peer_is_not_unknown_because_no_file_can_be_opened(place: Place) -> None:
    place.issue("berlin")
    peer = place.peers.load("berlin")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            place.peers.of(peer.fingerprint)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert place.peers.of(peer.fingerprint) == peer


def test_peers_that_leave_before_they_are_greeted_are_forgotten(place: Place) -> None:
    folder, peers = place.authority.folder, place.peers
    blocks = place.issue("berlin").read_text().split("-----BEGIN CERTIFICATE")
    key, own, trusted = blocks[0], *("-----BEGIN CERTIFICATE" + each for each in blocks[1:])
    prepared = context(server=False, certificate=own, key=key, trusted=trusted)
    server = TlsServer(folder, peers.of, lambda stream, peer: None, ("127.0.0.1", 0))
    acceptor = server._acceptor
    for _ in range(3):
        tls = prepared.session()
        with socket.create_connection(("127.0.0.1", server.port)) as leaver:
            leaver.sendall(tls.outgoing())
            with pytest.raises(Unreachable):
                acceptor.accept(0.3)
            while tls.handshaking():
                tls.feed(leaver.recv(1 << 16))
            leaver.sendall(tls.outgoing())
            # A reset: it does not even wait for the greeting.
            leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with pytest.raises(Unreachable):
            acceptor.accept(0.3)
    gc.collect()
    assert acceptor.rejected == 3 and not acceptor.admitted
    server.close()


def test_another_authority_lets_nobody_in(tmp_path: Path, place: Place, serving: Serving) -> None:
    stranger = Place(tmp_path / "stranger")
    bundle = stranger.issue("berlin")
    place.issue("berlin")
    with pytest.raises(Untrusted, match="certificate presented on port"):
        connect_tls(serving.host(bundle))
    # One that does not mind who answers is not let in either.
    mixed = bundle.read_text().split("-----BEGIN CERTIFICATE")
    own = OneTime("-----BEGIN CERTIFICATE" + mixed[1], mixed[0], "")
    server = (place.authority.folder / "server.pem").read_text()
    with pytest.raises(Untrusted, match=r"certificate presented on port|does not accept"):
        connect("127.0.0.1", serving.server.port, own, server[server.index("-----BEGIN CERT") :], 5)
    trusting = tmp_path / "trusting.pem"
    trusting.write_text(
        mixed[0] + "-----BEGIN CERTIFICATE" + mixed[1] + place.authority.certificate.read_text()
    )
    trusting.chmod(0o600)
    with pytest.raises(Untrusted, match="does not accept this host's certificate"):
        connect_tls(serving.host(trusting))


def test_a_peer_cannot_pose_as_the_listening_host(place: Place, tmp_path: Path) -> None:
    """What a bundle holds is good for connecting only."""
    evil = place.issue("berlin")
    bundle = place.issue("paris")
    folder = tmp_path / "posing"
    folder.mkdir()
    blocks = evil.read_text().split("-----BEGIN CERTIFICATE")
    (folder / "server.pem").write_text(blocks[0] + "-----BEGIN CERTIFICATE" + blocks[1])
    (folder / "ca.pem").write_text(place.authority.certificate.read_text())
    server = TlsServer(folder, place.peers.of, lambda stream, peer: None, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    with pytest.raises(Untrusted, match="does not allow extended key usage for server"):
        connect_tls(
            RemoteHost(
                "dr", "127.0.0.1", server.port, transport="tls", key=str(bundle), connect_s=5
            )
        )
    server.close()
    thread.join(10)


def test_a_peer_cannot_issue_certificates(place: Place, serving: Serving, tmp_path: Path) -> None:
    evil = place.issue("berlin")
    blocks = evil.read_text().split("-----BEGIN CERTIFICATE")
    forger = Authority(tmp_path / "forger")
    forger.folder.mkdir()
    forger.key.write_text(blocks[0])
    forger.certificate.write_text("-----BEGIN CERTIFICATE" + blocks[1])
    bundle = tmp_path / "forged.pem"
    forger.issue("paris", ["receive=/"], bundle, place.peers)  # even when its file is there
    # The chain is included: from the child over the peer's certificate to the authority.
    text = bundle.read_text().split("-----BEGIN CERTIFICATE")
    chain = "-----BEGIN CERTIFICATE" + text[1] + "-----BEGIN CERTIFICATE" + text[2]
    prepared = context(
        server=False,
        certificate=chain,
        key=text[0],
        trusted=place.authority.certificate.read_text(),
    )
    with pytest.raises(Untrusted, match="does not accept this host's certificate"):
        open_stream("127.0.0.1", serving.server.port, prepared, 5)


def test_a_pinned_certificate_of_the_listening_host(place: Place, serving: Serving) -> None:
    bundle = place.issue("berlin")
    stream = connect_tls(serving.host(bundle))
    right = stream.fingerprint
    stream.close()
    for written in (right, "SHA256:" + right.upper()):
        connect_tls(serving.host(bundle, fingerprint=written)).close()
    file = place.authority.folder / "server.pem"
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", file],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for written in (right, shown.partition("=")[2]):
        host = serving.host(bundle, fingerprint=written)
        connect_tls(parse("dr", render(host), "dr.toml")).close()
    with pytest.raises(Untrusted, match="not the agreed one"):
        connect_tls(serving.host(bundle, fingerprint="0" * 64))


def test_keys_are_the_owners_alone(place: Place) -> None:
    bundle = place.issue("berlin")
    found = [*place.authority.folder.iterdir(), place.peers.file("berlin"), bundle]
    assert len(found) == 5
    for file in found:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(place.authority.folder.stat().st_mode) == 0o700
    bundle.chmod(0o640)
    with pytest.raises(ConfigError, match="the bundle is readable by others"):
        connect_tls(RemoteHost("dr", "127.0.0.1", 1, key=str(bundle)))


def test_bad_bundles(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no bundle"):
        connect_tls(RemoteHost("dr", "127.0.0.1"))
    with pytest.raises(ConfigError, match="cannot be read"):
        connect_tls(RemoteHost("dr", "127.0.0.1", key=str(tmp_path / "none.pem")))
    wrong = tmp_path / "wrong.pem"
    wrong.write_text(OneTime.make().certificate)
    wrong.chmod(0o600)
    with pytest.raises(ConfigError, match="not a bundle of 'mirrord pki issue'"):
        connect_tls(RemoteHost("dr", "127.0.0.1", key=str(wrong)))


def test_the_listening_port_is_given_up_with_the_server(place: Place) -> None:
    made = Serving(place)
    bundle, port = place.issue("berlin"), made.server.port
    stream = connect_tls(made.host(bundle))
    assert line(stream)
    made.close()
    ends(stream)
    with pytest.raises(Unreachable):
        connect_tls(made.host(bundle))
    socket.create_server(("127.0.0.1", port)).close()


def test_a_server_needs_an_authority(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no certificate authority"):
        TlsServer(tmp_path, Peers(tmp_path).of, lambda stream, peer: None, ("127.0.0.1", 0))


def test_what_cannot_be_issued(place: Place, tmp_path: Path) -> None:
    place.issue("berlin")
    with pytest.raises(Refused, match="the peer 'berlin' already exists"):
        place.authority.issue("berlin", ["send=/a"], tmp_path / "b.pem", place.peers)
    with pytest.raises(Refused, match="bundle file already exists"):
        place.authority.issue("rome", ["send=/a"], tmp_path / "berlin.pem", place.peers)
    assert place.peers.names() == ["berlin"]
    with pytest.raises(UsageError, match="is not a valid name for a peer"):
        place.issue("../rome")
    for wrong in ("send", "send=a", "take=/a", "send=/a/../..", "send=/a\nb"):
        with pytest.raises(UsageError, match="is not a permission of a peer"):
            place.issue("rome", wrong)
    with pytest.raises(UsageError, match="needs at least one permission"):
        place.authority.issue("rome", [], tmp_path / "r.pem", place.peers)
    with pytest.raises(Refused, match="already has a certificate authority"):
        place.authority.init()
    with pytest.raises(NotFound, match="no certificate authority"):
        Authority(tmp_path / "no").issue("rome", ["send=/a"], tmp_path / "r.pem", place.peers)
    assert not (tmp_path / "r.pem").exists()


def test_rules_are_read_as_they_were_written(place: Place) -> None:
    place.issue("berlin", 'receive=/a "quoted" \\ folder/ü', "send=/b", append_only=True)
    peer = place.peers.load("berlin")
    assert peer.allow == ('receive=/a "quoted" \\ folder/ü', "send=/b")
    assert peer.append_only
    assert place.peers.of(peer.fingerprint) == peer


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("append_only = false", "append_only = 1", "true or false"),
        ("receive=/backup", "recieve=/backup", "is not a permission of a peer"),
        ("fingerprint = ", "finger = ", "unknown key 'finger'"),
        ("allow = [", "append_only = [", "."),
    ],
)
def test_a_wrong_peer_is_told_with_its_line(place: Place, old: str, new: str, says: str) -> None:
    place.issue("berlin")
    file = place.peers.file("berlin")
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=says) as caught:
        place.peers.load("berlin")
    assert caught.value.where.startswith(str(file))


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIRRORD_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(["pki", "issue", "berlin", "--allow", "send=/a"]) == 1
    assert "hint: Run: mirrord pki init" in capsys.readouterr().err
    assert run(["pki", "init"]) == 0
    assert run(["pki", "init"]) == 1
    assert run(["pki", "issue", "berlin"]) == 2
    assert run(["pki", "issue", "berlin", "--allow", "send=/a", "--append-only"]) == 0
    assert run(["pki", "issue", "rome", "--allow=receive=/b", "--output", "r.pem", "--json"]) == 0
    capsys.readouterr()
    assert run(["pki", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("berlin  send=/a, append-only  ")
    assert lines[1].startswith("rome    receive=/b  ")
    assert run(["pki", "list", "--json"]) == 0
    [berlin, rome] = json.loads(capsys.readouterr().out)["peers"]
    assert (berlin["name"], berlin["allow"], berlin["append_only"]) == ("berlin", ["send=/a"], True)
    assert len(rome["fingerprint"]) == 64
    assert {each.name for each in tmp_path.glob("*.pem")} == {"berlin.pem", "r.pem"}


def test_the_listening_hosts_certificate_is_no_peers(
    place: Place, serving: Serving, tmp_path: Path
) -> None:
    server = (place.authority.folder / "server.pem").read_text()
    bundle = tmp_path / "server-as-peer.pem"
    bundle.write_text(server + place.authority.certificate.read_text())
    bundle.chmod(0o600)
    stream = connect_tls(serving.host(place.issue("berlin")))
    place.peers.write(Peer("sly", stream.fingerprint, ("send=/",)))  # even when it is welcome
    stream.close()
    with pytest.raises(Untrusted, match="does not accept this host's certificate"):
        connect_tls(serving.host(bundle))
