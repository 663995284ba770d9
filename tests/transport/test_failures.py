"""Whatever is wrong with a host is one clear error: which host, what, why, and the next command."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError, Unreachable, Unsupported, Untrusted
from mirrord.core.model import RemoteHost
from mirrord.transport.openssh import open_openssh
from mirrord.transport.ssh import open_ssh
from tests.support.ports import free_port
from tests.support.sshd import USER, Sshd, make_key, running
from tests.transport.echo import read_all

WAYS: dict[str, Callable[..., object]] = {"ssh": open_ssh, "openssh": open_openssh}
Refusal = Callable[..., MirrordError]


@pytest.fixture(params=WAYS)
def refusal(request: pytest.FixtureRequest) -> Refusal:
    """What is raised, or what the stream says of itself once it is over."""
    return {"ssh": by_ssh, "openssh": by_openssh}[request.param]


def by_ssh(host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> MirrordError:
    try:
        stream = open_ssh(host, jumps)
    except MirrordError as error:
        return error
    heard = read_all(stream)
    failed = stream.failure(heard)
    stream.close()
    return failed


def by_openssh(host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> MirrordError:
    stream = open_openssh(host, jumps)
    heard = read_all(stream)
    error = stream.failure(heard)
    stream.close()
    return error


def expect(error: MirrordError, kind: type[MirrordError], what: str, hint: str) -> None:
    assert type(error) is kind, repr(error)
    assert what in str(error) and hint in error.hint, f"{error}\n{error.hint}"
    assert error.where == "dr"
    assert not error.what[0].isupper(), error.what
    assert not error.what.endswith(".") and len(str(error)) < 500


class TestKeysAndUsers:
    def test_wrong_user(self, sshd: Sshd, refusal: Refusal) -> None:
        error = refusal(sshd.host(user="nobody-there"))
        expect(error, Untrusted, "the login as 'nobody-there' is refused", "mirrord host add dr")

    def test_wrong_key(self, sshd: Sshd, refusal: Refusal, tmp_path: Path) -> None:
        key = make_key(tmp_path / "other")
        error = refusal(sshd.host(key=str(key)))
        expect(error, Untrusted, f"the login as '{USER}' is refused", "authorized_keys")
        assert str(key) in error.why

    def test_no_key(self, sshd: Sshd) -> None:
        error = by_ssh(sshd.host(key=""))
        expect(error, Untrusted, "there is no private key to log in with", "mirrord host add dr")

    def test_keys_of_the_home_that_are_of_no_use(self, sshd: Sshd, home: Path) -> None:
        make_key(home / ".ssh/id_ed25519", passphrase="secret")
        (home / ".ssh/id_rsa").write_text("no key")
        error = by_ssh(sshd.host(key=""))
        expect(error, Untrusted, "is refused", "mirrord host add dr")
        assert "id_ed25519 has a passphrase" in error.why and "id_rsa cannot be" in error.why

    @pytest.mark.parametrize("kind", ["ed25519", "pem"])
    def test_passphrase_and_no_agent(
        self, sshd: Sshd, refusal: Refusal, tmp_path: Path, kind: str
    ) -> None:
        if kind == "pem":
            import subprocess

            command = ["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "secret", "-f"]
            subprocess.run([*command, str(tmp_path / "locked")], check=True)
        else:
            make_key(tmp_path / "locked", passphrase="secret")
        error = refusal(sshd.host(key=str(tmp_path / "locked")))
        expect(error, Untrusted, "is protected by a passphrase", f"ssh-add {tmp_path}/locked")

    @pytest.mark.parametrize("state", ["missing", "folder", "garbage", "cut", "open"])
    def test_key_file_of_no_use(
        self, sshd: Sshd, refusal: Refusal, tmp_path: Path, state: str
    ) -> None:
        key = tmp_path / "key"
        if state == "folder":
            key.mkdir()
        elif state == "garbage":
            key.write_text("hello\n")
            key.chmod(0o600)
        elif state == "cut":
            lines = sshd.key.read_text().splitlines()
            key.write_text("\n".join([*lines[:2], lines[-1], ""]))
            key.chmod(0o600)
        elif state == "open":
            key.write_text(sshd.key.read_text())
            key.chmod(0o644)
        error = refusal(sshd.host(key=str(key)))
        expect(error, Untrusted, f"the key {key} cannot be used", f"chmod 600 {key}")

    def test_server_that_takes_no_keys(self, tmp_path: Path) -> None:
        options = ["PubkeyAuthentication no", "PasswordAuthentication yes"]
        with running(tmp_path / "sshd", options=options) as sshd:
            error = by_ssh(sshd.host())
            expect(
                error, Untrusted, "that server does not accept keys, only password", "host add dr"
            )
            error = by_openssh(sshd.host())
            expect(error, Untrusted, "Permission denied (password)", "mirrord host add dr")

    def test_server_that_wants_two_keys(self, tmp_path: Path) -> None:
        options = ["AuthenticationMethods publickey,publickey"]
        with running(tmp_path / "sshd", options=options) as sshd:
            error = by_ssh(sshd.host())
        expect(error, Untrusted, "requires more than a key", "AuthenticationMethods publickey")

    def test_too_many_keys(self, tmp_path: Path, home: Path) -> None:
        for kind in ("ed25519", "ecdsa", "rsa"):
            make_key(home / f".ssh/id_{kind}", kind=kind)
        with running(tmp_path / "sshd", options=["MaxAuthTries 2"]) as sshd:
            error = by_ssh(sshd.host(key=""))
        expect(error, Untrusted, "too many keys for that server", "authorized_keys")


class TestHostKeys:
    def test_unknown(self, sshd: Sshd, refusal: Refusal) -> None:
        error = refusal(sshd.host(fingerprint=""))
        expect(error, Untrusted, "the host key of 127.0.0.1 is not known", "mirrord host add dr")
        assert f"ssh-keyscan -p {sshd.port} 127.0.0.1 >> ~/.ssh/known_hosts" in error.hint
        if refusal is by_ssh:
            assert f"ssh-ed25519 {sshd.fingerprint}" in str(error)
            assert f"--fingerprint {sshd.fingerprint}" in error.hint

    def test_other_than_the_pinned_one(self, sshd: Sshd, refusal: Refusal) -> None:
        pinned = "SHA256:" + "A" * 43
        error = refusal(sshd.host(fingerprint=pinned))
        expect(error, Untrusted, "HAS CHANGED", "mirrord host add dr")
        assert f"expected {pinned}" in error.why
        if refusal is by_ssh:
            assert f"received {sshd.fingerprint}" in error.why
            assert f"--fingerprint {sshd.fingerprint}" in error.hint
        else:  # ssh does not tell the fingerprint of a key that is not the pinned one
            assert "received another ED25519 key" in error.why
            assert "--fingerprint FINGERPRINT, with the FINGERPRINT that" in error.hint
            assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in error.hint

    def test_other_than_in_known_hosts(self, sshd: Sshd, home: Path, tmp_path: Path) -> None:
        other = Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()[1]
        line = sshd.known_hosts_line().split()
        known = home / ".ssh/known_hosts"
        known.write_text(f"# mine\n{line[0]} {line[1]} {other}\n")
        error = by_ssh(sshd.host(fingerprint=""))
        expect(error, Untrusted, "HAS CHANGED", f"ssh-keygen -f {known} -R")
        assert f"{known}:2" in error.why and sshd.fingerprint in error.why
        # What the hint says mends it.
        import re
        import subprocess

        words = re.search(r"ssh-keygen -f \S+ -R \S+", error.hint)
        assert words is not None
        command = words[0].rstrip(",").replace("'", "").split()
        subprocess.run(command, check=True, capture_output=True)
        expect(by_ssh(sshd.host(fingerprint="")), Untrusted, "is not known", "host add")

    def test_known_by_another_kind_only(self, sshd: Sshd, home: Path, tmp_path: Path) -> None:
        other = Path(f"{make_key(tmp_path / 'other', kind='rsa')}.pub").read_text().split()
        name = sshd.known_hosts_line().split()[0]
        (home / ".ssh/known_hosts").write_text(f"{name} {other[0]} {other[1]}\n")
        error = by_ssh(sshd.host(fingerprint=""))
        expect(error, Untrusted, "HAS CHANGED", "ssh-keygen")

    def test_revoked(self, sshd: Sshd, home: Path) -> None:
        line = sshd.known_hosts_line()
        (home / ".ssh/known_hosts").write_text(f"{line}@revoked * {line.split(' ', 1)[1]}")
        for pinned in ("", sshd.fingerprint):
            error = by_ssh(sshd.host(fingerprint=pinned))
            expect(error, Untrusted, f"is revoked: {sshd.fingerprint}", "needs a new key")

    def test_known_by_an_authority_only(self, sshd: Sshd, home: Path) -> None:
        line = "@cert-authority " + sshd.known_hosts_line()
        (home / ".ssh/known_hosts").write_text(line)
        error = by_ssh(sshd.host(fingerprint=""))
        expect(error, Untrusted, 'transport = "openssh"', "host add")

    def test_known_hosts_that_is_no_file(self, sshd: Sshd, home: Path) -> None:
        (home / ".ssh/known_hosts").mkdir()
        error = by_ssh(sshd.host(fingerprint=""))
        expect(error, Untrusted, "known_hosts: Is a directory", "host add")

    def test_nobody_logs_in_before_the_host_key_is_known(self, tmp_path: Path) -> None:
        with running(tmp_path / "sshd", options=["LogLevel VERBOSE"]) as sshd:
            by_ssh(sshd.host(fingerprint=""))
            by_ssh(sshd.host(fingerprint="SHA256:" + "A" * 43))
            log = (sshd.folder / "log").read_text()
        assert "Connection from" in log
        assert "publickey" not in log and "Accepted" not in log

    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_any_of_its_keys_may_be_pinned(self, tmp_path: Path, number: int) -> None:
        import base64

        from mirrord.transport.known_hosts import fingerprint

        kinds = ("ed25519", "ecdsa", "rsa")
        with running(tmp_path / "sshd", kinds=kinds) as sshd:
            blob = base64.b64decode(Path(f"{sshd.host_keys[number]}.pub").read_text().split()[1])
            host = sshd.host(fingerprint=fingerprint(blob), command=("echo", "hi"))
            # (ssh is shown the kind that it likes best and has no second try.)
            for way in (open_ssh, open_openssh)[: 2 if number == 0 else 1]:
                stream = way(host)
                assert read_all(stream) == b"hi\n"
                stream.close()


class TestNetwork:
    def test_wrong_port(self, sshd: Sshd, refusal: Refusal) -> None:
        port = free_port()
        error = refusal(sshd.host(port=port))
        expect(error, Unreachable, f"nothing listens on port {port}", "--port N")

    def test_name_that_is_none(self, sshd: Sshd, refusal: Refusal) -> None:
        error = refusal(sshd.host(address="no-such-host.invalid"))
        expect(
            error,
            Unreachable,
            "cannot resolve the host name 'no-such-host.invalid'",
            "getent hosts",
        )

    def test_connection_that_is_never_taken(self, sshd: Sshd, refusal: Refusal) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            waiting = []
            for _ in range(3):  # fill what waits to be taken: the next gets no answer
                made = socket.socket()
                made.setblocking(False)
                made.connect_ex(listener.getsockname())
                waiting.append(made)
            host = sshd.host(port=listener.getsockname()[1], connect_s=1.0)
            error = refusal(host)
            for made in waiting:
                made.close()
        expect(error, Unreachable, "does not respond within 1 s", 'connect = "30s"')

    def test_server_that_says_nothing(self, sshd: Sshd, refusal: Refusal) -> None:
        with speaker(b"") as port:
            error = refusal(sshd.host(port=port, connect_s=1.0))
        expect(error, Unreachable, "does not respond within 1 s", "firewall")

    @pytest.mark.parametrize("words", [b"220 mail ready\r\n", b"\x15\x03\x01\0\2\2\n", b"x" * 9000])
    def test_something_else_listens_there(self, sshd: Sshd, refusal: Refusal, words: bytes) -> None:
        with speaker(words, end=True) as port:
            error = refusal(sshd.host(port=port, connect_s=60.0))
        expect(error, Unreachable, "no SSH server on port", "--port N")
        if refusal is by_ssh and words.startswith(b"220"):
            assert "received '220 mail ready'" in error.why

    def test_server_that_refuses_this_host_for_a_time(self, sshd: Sshd) -> None:
        """As OpenSSH 9.8 and newer. (Its client does not say what it received.)"""
        with speaker(b"Not allowed at this time\r\n", end=True) as port:
            error = by_ssh(sshd.host(port=port, connect_s=60.0))
        expect(error, Unreachable, "temporarily refuses", "PerSourcePenaltyExemptList")

    def test_server_that_hangs_up(self, sshd: Sshd, refusal: Refusal) -> None:
        with speaker(b"", end=True) as port:
            error = refusal(sshd.host(port=port))
        expect(error, Unreachable, "no SSH server on port", "journalctl -u ssh")

    def test_server_that_says_its_name_and_no_more(self, sshd: Sshd) -> None:
        with speaker(b"SSH-2.0-hollow\r\n") as port:
            error = by_ssh(sshd.host(port=port, connect_s=1.0))
        expect(error, Unreachable, "does not respond within 1 s", "firewall")
        with speaker(b"SSH-2.0-hollow\r\n", end=True) as port:
            error = by_ssh(sshd.host(port=port, connect_s=60.0))
        expect(error, Unreachable, "closed the connection before the login", "journalctl -u ssh")

    def test_no_cipher_in_common(self, tmp_path: Path) -> None:
        options = ["Ciphers chacha20-poly1305@openssh.com"]
        with running(tmp_path / "sshd", options=options) as sshd:
            error = by_ssh(sshd.host())
            expect(error, Unsupported, "no common encryption algorithm", 'transport = "openssh"')
            stream = open_openssh(sshd.host(command=("echo", "hi")))
            assert read_all(stream) == b"hi\n"
            stream.close()


class TestProgram:
    def test_no_mirrord_there(self, sshd: Sshd, refusal: Refusal) -> None:
        error = refusal(sshd.host(command=("no-mirrord", "agent")))
        expect(
            error, Unreachable, "'no-mirrord' is not found on the remote host", "Install mirrord"
        )
        assert "not found" in error.why

    def test_forced_command_that_is_another(self, sshd: Sshd, refusal: Refusal) -> None:
        sshd.authorize('command="echo backups only >&2; exit 3"')
        error = refusal(sshd.host(command=("mirrord", "agent")))
        expect(error, Untrusted, "the remote program is not mirrord's agent", "forced command")
        assert "backups only" in error.why and "exit status 3" in error.why

    def test_account_without_a_shell(self, sshd: Sshd, refusal: Refusal) -> None:
        sshd.authorize('command="/usr/sbin/nologin"')
        error = refusal(sshd.host(command=("mirrord", "agent")))
        expect(error, Untrusted, "This account is currently not available", "the user's shell")

    def test_mirrord_that_is_too_old(self, sshd: Sshd, refusal: Refusal) -> None:
        said = "error: there is no command 'agent'"
        sshd.authorize(f'command="echo \\"{said}\\" >&2; exit 2"')
        error = refusal(sshd.host(command=("mirrord", "agent")))
        expect(error, Unsupported, "the remote mirrord is too old", "mirrord --version")

    @pytest.mark.parametrize("way", WAYS)
    def test_login_shell_that_prints(self, sshd: Sshd, way: str) -> None:
        sshd.authorize('command="echo Welcome to dr; exec cat"')
        stream = {"ssh": open_ssh, "openssh": open_openssh}[way](
            sshd.host(command=("mirrord", "agent"))
        )
        heard = stream.read(100)
        error = stream.failure(heard)
        stream.close()
        expect(error, Untrusted, "received 'Welcome to dr'", "~/.bashrc")

    def test_no_programs_at_all(self, tmp_path: Path) -> None:
        with running(tmp_path / "sshd", options=["MaxSessions 0"]) as sshd:
            error = by_ssh(sshd.host())
        expect(error, Untrusted, "may not run a program on the remote host", "MaxSessions")


@contextmanager
def speaker(words: bytes, *, end: bool = False) -> Iterator[int]:
    """A server that says these words to everybody, and then ends or says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    made, _ = listener.accept()
                except OSError:
                    return
                taken.append(made)
                with suppress(OSError):  # who was there may have left at the first word
                    made.sendall(words)
                    if end:
                        made.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for made in taken:
                made.close()
