"""hosts.d: read strictly, found by what endpoints say, written so that it is read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.config.hosts import Hosts, parse, render
from mirrord.config.peers import Peers
from mirrord.core.errors import ConfigError, MirrordError, NotFound, UsageError
from mirrord.core.model import RemoteHost

PIN = "SHA256:" + "a+/9" * 10 + "abc"
CERTIFICATE = ":".join(["5F"] * 32)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    (tmp_path / "hosts.d").mkdir()
    return Hosts(tmp_path / "hosts.d")


def put(hosts: Hosts, name: str, text: str = "") -> None:
    (hosts.folder / f"{name}.toml").write_text(text)


def test_what_is_written_is_read_again() -> None:
    made = RemoteHost(
        "dr",
        "dr.example.org",
        port=2222,
        user="backup",
        transport="openssh",
        key='/k/"odd"',
        fingerprint=PIN,
        jump="me@gate:22",
        command=("/opt/x y/mirrord", "agent"),
        data="ssh",
        sockets=3,
        compress="7",
        connect_s=2.5,
    )
    assert parse("dr", render(made), "") == made
    assert parse("dr", render(RemoteHost("dr", "dr")), "") == RemoteHost("dr", "dr")


@pytest.mark.parametrize("pin", [CERTIFICATE, CERTIFICATE.replace(":", "").lower()])
def test_the_certificate_of_a_tls_host_can_be_pinned(pin: str) -> None:
    made = RemoteHost("dr", "dr", transport="tls", key="/k", fingerprint=pin)
    assert parse("dr", render(made), "") == made


def test_an_empty_file_has_the_usual_settings() -> None:
    assert parse("dr", "", "") == RemoteHost("dr", "dr")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adress = 'x'", "dr.toml:1: unknown key 'adress'"),
        ("\nport = 0", "dr.toml:2: 'port' is invalid: expected an integer from 1"),
        ("port = '22'", "'port' is invalid"),
        ("address = 'me@dr'", "'address' is invalid"),
        ("address = '-oX'", "'address' is invalid"),
        ("user = 'a b'", "'user' is invalid"),
        ("transport = 'telnet'", "'transport' is invalid"),
        ("key = 'id'", "'key' is invalid: expected the absolute path"),
        ("fingerprint = 'aa:bb'", "'fingerprint' is invalid"),
        (f"fingerprint = '{CERTIFICATE}'", "as 'ssh-keygen -l' shows it"),
        (f"transport = 'tls'\nfingerprint = '{PIN}'", "dr.toml:2: 'fingerprint' is invalid"),
        ("command = 'mirrord agent'", "'command' is invalid: expected a list of words"),
        ("command = []", "'command' is invalid"),
        ("data = 'tls'", "'data' is invalid"),
        ("sockets = 65", "'sockets' is invalid"),
        ("compress = 20", "'compress' is invalid"),
        ("compress = true", "'compress' is invalid"),
        ("connect = '0s'", "is not longer than 0 s"),
        ("transport = 'unix'", "needs the absolute path of a socket"),
        ("= 1", "this is not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("dr", text, "dr.toml")
    assert said in str(caught.value), str(caught.value)
    assert caught.value.where.startswith("dr.toml:")


def test_a_wrong_key_hints_at_the_right_one() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("dr", "adress = 'x'", "dr.toml")
    assert "'address'" in caught.value.hint


def test_user_and_port_of_an_endpoint_override_the_hosts_file(hosts: Hosts) -> None:
    put(hosts, "dr", "address = 'dr.example.org'\nport = 2222\nuser = 'backup'\n")
    assert hosts.find("dr") == RemoteHost("dr", "dr.example.org", port=2222, user="backup")
    assert hosts.find("root@dr") == RemoteHost("dr", "dr.example.org", port=2222, user="root")
    assert hosts.find("dr:22") == RemoteHost("dr", "dr.example.org", port=22, user="backup")


def test_without_a_file_the_name_is_the_address(hosts: Hosts) -> None:
    assert hosts.find("dr.example.org") == RemoteHost("dr.example.org", "dr.example.org")
    assert hosts.find("me@[fe80::1]:7") == RemoteHost("[fe80::1]", "fe80::1", port=7, user="me")
    with pytest.raises(UsageError):
        hosts.find("a b")
    with pytest.raises(UsageError):
        hosts.find("../dr")


def test_names_pass_over_what_editors_leave(hosts: Hosts) -> None:
    put(hosts, "b")
    put(hosts, "a")
    put(hosts, ".#a")
    assert hosts.names() == ["a", "b"]
    with pytest.raises(NotFound) as caught:
        hosts.load("bb")
    assert "'b'" in caught.value.hint


def test_a_broken_file_is_not_passed_over(hosts: Hosts) -> None:
    put(hosts, "dr")
    hosts.file("dr").unlink()
    hosts.file("dr").mkdir()
    with pytest.raises(ConfigError, match=r"dr\.toml: .* cannot be read: Is a directory"):
        hosts.find("dr")


def test_jumps_are_in_the_order_of_the_way(hosts: Hosts) -> None:
    put(hosts, "dr", "jump = 'inner'")
    put(hosts, "inner", "jump = 'me@gate:2222'\nuser = 'x'")
    put(hosts, "gate", "address = 'gate.example.org'")
    first, second = hosts.jumps(hosts.find("dr"))
    assert (first.address, first.user, first.port) == ("gate.example.org", "me", 2222)
    assert second.name == "inner"
    assert hosts.jumps(hosts.find("gate")) == ()


@pytest.mark.parametrize("last", ["dr", "inner"])
def test_jumps_in_a_circle_are_refused(hosts: Hosts, last: str) -> None:
    put(hosts, "dr", "jump = 'inner'")
    put(hosts, "inner", f"\njump = 'x@{last}'")
    with pytest.raises(ConfigError, match="form a loop") as caught:
        hosts.jumps(hosts.find("dr"))
    assert caught.value.where == f"{hosts.folder}/inner.toml:2"
    with pytest.raises(ConfigError):
        hosts.all()


def test_a_jump_must_be_reached_by_ssh(hosts: Hosts) -> None:
    put(hosts, "dr", "jump = 'gate'")
    put(hosts, "gate", "transport = 'tls'")
    with pytest.raises(ConfigError, match="cannot be a jump host"):
        hosts.jumps(hosts.find("dr"))
    put(hosts, "dr", "jump = 'a b'")
    with pytest.raises(ConfigError, match="'jump'"):
        hosts.jumps(hosts.find("dr"))


def test_adding_writes_only_what_is_new(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path / "etc/hosts.d")
    made = RemoteHost("dr", "dr.example.org", fingerprint=PIN)
    path = hosts.add(made)
    assert hosts.folder.stat().st_mode & 0o777 == 0o700
    path.write_text(path.read_text() + "# my own words\n")
    assert hosts.add(made) == path
    assert "my own words" in path.read_text()
    hosts.add(made._replace(port=7))
    assert hosts.find("dr").port == 7
    with pytest.raises(UsageError):
        hosts.add(made._replace(name="../dr"))


def test_a_host_can_be_removed(hosts: Hosts) -> None:
    put(hosts, "dr", "nonsense = 1")
    hosts.remove("dr")
    assert hosts.names() == []
    with pytest.raises(MirrordError, match="no host is called 'dr'"):
        hosts.remove("dr")


def test_a_file_that_is_a_link_to_nothing_is_not_offered_instead(hosts: Hosts) -> None:
    hosts.folder.mkdir(exist_ok=True)
    hosts.file("dr").symlink_to("/no-such-folder/file")
    with pytest.raises(NotFound, match="no host is called 'dr'") as caught:
        hosts.load("dr")
    assert "mirrord host add dr" in caught.value.hint


def test_a_peer_whose_name_is_invalid_is_reported_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "a b.toml").write_text("")
    peers = Peers(tmp_path)
    with pytest.raises(ConfigError, match=r"a b\.toml: 'a b' is not a valid name for a peer"):
        peers.load(*peers.names())
