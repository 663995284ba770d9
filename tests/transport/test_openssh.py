"""The program ssh as a way to another host."""

from __future__ import annotations

from pathlib import Path

from mirrord.core.model import RemoteHost
from mirrord.transport.openssh import command_line, open_openssh
from tests.support.ports import free_port
from tests.support.processes import working_on
from tests.support.service import until
from tests.support.sshd import Sshd, running
from tests.transport.echo import lives, read_all, round_trip


def test_what_is_sent_comes_back(sshd: Sshd) -> None:
    stream = open_openssh(sshd.host())
    round_trip(stream, 16 << 20)
    stream.close()


def test_arguments_reach_the_program_as_they_are(sshd: Sshd) -> None:
    words = ["a b", "$HOME", "it's", "*", "", "-v", "--"]
    stream = open_openssh(sshd.host(command=("printf", "%s\\n", *words)))
    assert read_all(stream).decode().split("\n")[:-1] == words
    stream.close()


def test_both_programs_end_when_the_stream_is_closed(sshd: Sshd, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    stream = open_openssh(sshd.host(command=("sh", "-c", f"echo $$ > {note}; echo; exec cat")))
    assert stream.read(1) == b"\n"
    number = int(note.read_text())
    stream.close()
    until(lambda: not lives(number) and not sshd.sessions())
    assert not working_on("StrictHostKeyChecking", str(sshd.key))


def test_through_two_hosts_each_with_its_own_keys(sshd: Sshd, tmp_path: Path) -> None:
    with running(tmp_path / "inner") as inner:
        jumps = [sshd.host(name="gate"), inner.host(name="second")]
        for number in (1, 2):
            stream = open_openssh(inner.host(), jumps[:number])
            round_trip(stream, 1 << 20)
            stream.close()


def test_a_jump_is_judged_by_its_own_pinned_key(sshd: Sshd, tmp_path: Path) -> None:
    with running(tmp_path / "inner") as inner:
        gate = sshd.host(name="gate", fingerprint="SHA256:" + "A" * 43)
        stream = open_openssh(inner.host(), [gate])
        assert read_all(stream) == b""
        assert "HAS CHANGED" in str(stream.failure()) or "host key" in stream.stderr_tail()
        stream.close()
        assert not inner.sessions()


def test_a_jump_host_that_cannot_reach_the_target_is_an_error_with_the_address(sshd: Sshd) -> None:
    port = free_port()
    stream = open_openssh(sshd.host(port=port), [sshd.host(name="gate")])
    assert read_all(stream) == b""
    error = stream.failure()
    assert error.what == f"a jump host cannot reach 127.0.0.1 port {port}"
    assert f"Log in to it and run 'nc -vz 127.0.0.1 {port}'" in error.hint
    stream.close()


def test_an_address_is_never_an_option() -> None:
    words = command_line(RemoteHost("x", "-oProxyCommand=touch /tmp/x"))
    assert words[words.index("--") + 1] == "-oProxyCommand=touch /tmp/x"
    assert words.count("--") == 1
