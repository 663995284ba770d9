"""SSH by Paramiko against a real sshd: whole, quick, and over when it is closed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import ConfigError, Unreachable, Unsupported
from mirrord.core.model import RemoteHost
from mirrord.transport.base import ByteStream
from mirrord.transport.openssh import open_openssh
from mirrord.transport.ssh import host_key, open_ssh
from tests.support.service import until
from tests.support.sshd import USER, Sshd, make_key, running
from tests.transport.echo import ends_for_both, lives, read_all, round_trip


def test_what_is_sent_comes_back(sshd: Sshd) -> None:
    stream = open_ssh(sshd.host())
    assert stream.peer == "dr"
    round_trip(stream, 16 << 20)
    stream.close()
    stream.close()


def test_opening_is_quick(sshd: Sshd) -> None:
    """Within 0.3 s, or three times as long as the program ssh takes here and now."""
    open_ssh(sshd.host()).close()
    times, of_ssh = [], []
    for _ in range(5):
        start = time.perf_counter()
        stream = open_ssh(sshd.host())
        times.append(time.perf_counter() - start)
        stream.close()
        start = time.perf_counter()
        other = open_openssh(sshd.host(command=("echo", "up")))
        assert read_all(other) == b"up\n"
        of_ssh.append(time.perf_counter() - start)
        other.close()
    assert min(times) < max(0.3, 3 * min(of_ssh)), (times, of_ssh)


def received_bytes_s(stream: ByteStream, size: int) -> float:
    """How fast `size` zero bytes come."""
    got = len(stream.read(1))
    start = time.perf_counter()
    while part := stream.read(1 << 18):
        got += len(part)
    took = time.perf_counter() - start
    stream.close()
    assert got == size
    return size / took


def sent_bytes_s(stream: ByteStream, size: int) -> float:
    """How fast a program that says a byte first and reads all takes as much."""
    stream.read(1)
    block, start = bytes(1 << 20), time.perf_counter()
    for _ in range(size >> 20):
        stream.write(block[:24], block)
    took = time.perf_counter() - start
    stream.close()
    return size / took


def test_one_stream_carries_100_mb_a_second(sshd: Sshd) -> None:
    """Or half of what the program ssh carries here and now."""
    size = 128 << 20
    gives = sshd.host(command=("head", "-c", str(size), "/dev/zero"))
    takes = sshd.host(command=("sh", "-c", "echo; cat > /dev/null; echo"))
    for measure, host in ((received_bytes_s, gives), (sent_bytes_s, takes)):
        ours, theirs = 0.0, 0.0
        for _ in range(5):
            ours = max(ours, measure(open_ssh(host), size))
            if ours > 100e6:
                break
            theirs = max(theirs, measure(open_openssh(host), size))
        assert ours > min(100e6, theirs / 2), (measure, ours, theirs)


def test_arguments_reach_the_program_as_they_are(sshd: Sshd) -> None:
    words = ["a b", "$HOME", "it's", "*", ""]
    stream = open_ssh(sshd.host(command=("printf", "%s\\n", *words)))
    assert read_all(stream).decode().split("\n")[:-1] == words
    assert stream.status(wait_s=60) == 0
    stream.close()


def test_the_program_ends_when_the_stream_is_closed(sshd: Sshd, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    stream = open_ssh(sshd.host(command=("sh", "-c", f"echo $$ > {note}; echo; exec cat")))
    assert stream.read(1) == b"\n"
    number = int(note.read_text())
    assert lives(number)
    stream.close()
    until(lambda: not lives(number) and not sshd.sessions())


def test_closing_wakes_who_reads_and_who_writes(sshd: Sshd) -> None:
    stream = open_ssh(sshd.host(command=("sleep", "60")))
    ends_for_both(stream)


def test_a_connection_that_is_cut_ends_the_stream(sshd: Sshd) -> None:
    stream = open_ssh(sshd.host())
    stream.write(b"x")
    assert stream.read(1) == b"x"
    for number in sshd.sessions():
        subprocess.run(["pkill", "-KILL", "-P", str(number)], check=False)
        os.kill(number, 9)
    try:
        assert stream.read(1) == b""
    except OSError:
        pass
    with pytest.raises(OSError):
        for _ in range(1000):
            stream.write(b"more")
            time.sleep(0.01)
    stream.close()


def test_standard_error_is_kept_bounded_and_never_blocks_the_data(sshd: Sshd) -> None:
    # More than the window: were it not read, the program could not go on.
    program = "head -c 20000000 /dev/zero | tr '\\0' x >&2; echo it broke >&2; echo fine"
    stream = open_ssh(sshd.host(command=("sh", "-c", program)))
    assert read_all(stream) == b"fine\n"
    until(lambda: stream.stderr_tail().endswith("xxxit broke"), what=stream.stderr_tail()[-100:])
    stream.close()
    assert len(stream.stderr_tail()) <= 8192


class TestConfiguration:
    """~/.ssh/config is used as ssh uses it; hosts.d goes before it."""

    def test_it_gives_what_hosts_d_does_not(self, sshd: Sshd, home: Path) -> None:
        (home / ".ssh/known").write_text(sshd.known_hosts_line("elsewhere"))
        (home / ".ssh/more").mkdir()
        (home / ".ssh/config").write_text("Include more/*\nHost other\n  Port 1\n")
        (home / ".ssh/more/far").write_text(
            f"Host far*\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {USER}\n"
            f"  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n  HostKeyAlias elsewhere\n"
            "  UserKnownHostsFile ~/.ssh/known\n  ConnectTimeout 30\n"
        )
        stream = open_ssh(RemoteHost("far away", "faraway", command=("echo", "hello")))
        assert read_all(stream) == b"hello\n"
        stream.close()

    def test_hosts_d_goes_before_it(self, sshd: Sshd, home: Path) -> None:
        (home / ".ssh/config").write_text(
            "Host 127.0.0.1\n  Port 1\n  User nobody\n  IdentityFile /nowhere\n"
        )
        stream = open_ssh(sshd.host(command=("echo", "hello")))
        assert read_all(stream) == b"hello\n"
        stream.close()

    def test_what_cannot_be_understood_is_said(self, home: Path) -> None:
        (home / ".ssh/config").write_text("Host far\n  Port many\n")
        with pytest.raises(ConfigError, match="invalid port: 'many'"):
            open_ssh(RemoteHost("far", "far"))
        (home / ".ssh/config").write_text("Host far\n  ProxyCommand nc %h %p\n")
        with pytest.raises(Unsupported, match="ProxyCommand") as caught:
            open_ssh(RemoteHost("far", "far"))
        assert 'transport = "openssh"' in caught.value.hint
        (home / ".ssh/config").write_text("Include config\n")
        with pytest.raises(ConfigError, match="includes itself"):
            open_ssh(RemoteHost("far", "far"))


class TestJumps:
    """A host behind another one."""

    @pytest.fixture
    def inner(self, tmp_path: Path) -> Iterator[Sshd]:
        with running(tmp_path / "inner") as made:
            yield made

    def test_through_one_and_through_two(self, sshd: Sshd, inner: Sshd) -> None:
        gate = sshd.host(name="gate")
        for jumps in ([gate], [gate, inner.host(name="second")]):
            stream = open_ssh(inner.host(), jumps)
            round_trip(stream, 1 << 20)
            stream.close()
        until(lambda: not sshd.sessions() and not inner.sessions())

    def test_proxy_jump_of_the_configuration(self, sshd: Sshd, inner: Sshd, home: Path) -> None:
        (home / ".ssh/known_hosts").write_text(sshd.known_hosts_line() + inner.known_hosts_line())
        (home / ".ssh/config").write_text(
            f"Host behind\n  HostName 127.0.0.1\n  Port {inner.port}\n"
            f"  IdentityFile {inner.key}\n  ProxyJump {USER}@gate\n"
            f"Host gate\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.key}\n"
        )
        stream = open_ssh(RemoteHost("behind", "behind", command=("echo", "hello")))
        assert read_all(stream) == b"hello\n"
        assert sshd.sessions() and inner.sessions()
        stream.close()

    def test_a_jump_that_does_not_get_there(self, sshd: Sshd) -> None:
        from tests.support.ports import free_port

        host = sshd.host(port=free_port())
        with pytest.raises(Unreachable, match="the jump host 'gate' cannot reach") as caught:
            open_ssh(host, [sshd.host(name="gate")])
        assert "connect failed" in caught.value.why.lower()

    def test_a_jump_in_a_circle(self, home: Path) -> None:
        (home / ".ssh/config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
        with pytest.raises(Unreachable, match="form a loop"):
            open_ssh(RemoteHost("a", "a"))


class TestKeys:
    """What may be used to log in."""

    @pytest.fixture
    def agent(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
        started = subprocess.Popen(
            ["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL
        )
        while not (tmp_path / "agent").exists():
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        yield
        started.terminate()
        started.wait()

    def add(self, key: Path, passphrase: str, folder: Path) -> None:
        ask = folder / "ask"
        ask.write_text(f"#!/bin/sh\necho {passphrase}\n")
        ask.chmod(0o700)
        environment = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(
            ["ssh-add", "-q", str(key)], env=environment, check=True, stdin=subprocess.DEVNULL
        )

    def test_of_the_agent(self, agent: None, sshd: Sshd, tmp_path: Path) -> None:
        subprocess.run(["ssh-add", "-q", str(sshd.key)], check=True)
        stream = open_ssh(sshd.host(key="", command=("echo", "hello")))
        assert read_all(stream) == b"hello\n"
        stream.close()

    def test_with_a_passphrase_that_the_agent_knows(
        self, agent: None, sshd: Sshd, tmp_path: Path
    ) -> None:
        key = make_key(tmp_path / "locked", passphrase="secret")
        sshd.authorize(key=key)
        self.add(key, "secret", tmp_path)
        stream = open_ssh(sshd.host(key=str(key), command=("echo", "hello")))
        assert read_all(stream) == b"hello\n"
        stream.close()

    def test_of_the_home(self, sshd: Sshd, home: Path) -> None:
        make_key(home / ".ssh/id_ed25519")  # a wrong one before it
        (home / ".ssh/id_rsa").write_bytes(sshd.key.read_bytes())
        (home / ".ssh/id_rsa").chmod(0o600)
        stream = open_ssh(sshd.host(key="", command=("echo", "hello")))
        assert read_all(stream) == b"hello\n"
        stream.close()

    @pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
    def test_of_other_kinds(self, sshd: Sshd, tmp_path: Path, kind: str) -> None:
        key = make_key(tmp_path / "key", kind=kind)
        sshd.authorize(key=key)
        stream = open_ssh(sshd.host(key=str(key), command=("echo", "hello")))
        assert read_all(stream) == b"hello\n"
        stream.close()


def test_the_host_key_is_shown_without_a_log_in(sshd: Sshd) -> None:
    host = sshd.host(fingerprint="", key="/nowhere", user="nobody-there")
    assert host_key(host) == ("ssh-ed25519", sshd.fingerprint)


def test_only_who_connects_pays_for_ssh() -> None:
    program = (
        "import sys, mirrord.control.api, mirrord.admin.hosts, mirrord.cli.commands.host, "
        "mirrord.transport.ssh, mirrord.transport.local; "
        "print([name for name in ('paramiko', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
