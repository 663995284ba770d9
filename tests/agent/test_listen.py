"""An agent that listens: over TLS with a rule for each peer, and at a unix socket."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.config.hosts import render
from mirrord.core.errors import Busy, MirrordError, Untrusted
from mirrord.core.model import RemoteHost
from mirrord.drivers.block.volume import Volume
from mirrord.system.paths import Paths
from tests.support.service import PATIENCE_S
from tests.support.verbs import Service

AGENT = [sys.executable, "-m", "mirrord", "agent"]


def mirrord(home: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mirrord", *words], capture_output=True, text=True, check=True,
        env={**os.environ, "MIRRORD_HOME": str(home)}, timeout=PATIENCE_S, cwd=home,
    )  # fmt: skip
    return done.stdout


@contextmanager
def listening(home: Path, *words: str) -> Iterator[str]:
    """An agent that listens; where."""
    process = subprocess.Popen(
        [*AGENT, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MIRRORD_HOME": str(home)},
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        said = process.stdout.readline()
        assert said.startswith("listening on "), process.stderr.read()
        yield said.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        process.stdout.close()
        process.stderr.close()


@contextmanager
def client(tmp_path: Path, host: RemoteHost) -> Iterator[Service]:
    home = tmp_path / "here"
    paths = Paths(home / "etc", home / "state", home / "run")
    paths.hosts.mkdir(parents=True)
    (paths.hosts / f"{host.name}.toml").write_text(render(host))
    with Volume.create(tmp_path / "v", 4 << 20) as volume:
        volume.write(0, os.urandom(1 << 20))
    service = Service(paths)
    try:
        yield service
    finally:
        service.close()
        service.shared.links.close()


def test_a_mirror_over_tls_without_ssh(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "backup").mkdir()
    there.mkdir()
    mirrord(there, "pki", "init")
    mirrord(there, "pki", "issue", "berlin", "--allow", f"receive={tmp_path}/backup")
    bundle = there / "berlin.pem"
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    with listening(there, "--listen", "127.0.0.1:0") as at:
        port = int(at.rpartition(":")[2])
        host = RemoteHost("dr", "127.0.0.1", port=port, transport="tls", key=str(bundle))
        with client(tmp_path, host) as service:
            service.create("m", f"block:{tmp_path}/v", f"block://dr{tmp_path}/backup/v")
            service.initialize("m")
            with Volume(tmp_path / "v", writable=True) as volume:
                volume.write(4096, b"changed" * 100)
            assert service.update("m").status == "done"
            with pytest.raises(Untrusted, match="may not use that path"):
                service.create("n", f"block:{tmp_path}/v", f"block://dr{tmp_path}/elsewhere")
            # Deleting its file shuts the peer out, also out of the connection that it has.
            (there / "etc/peers.d/berlin.toml").unlink()
            until = time.monotonic() + PATIENCE_S
            while True:
                try:
                    service.update("m")
                except Untrusted:
                    break
                except MirrordError:
                    pass
                assert time.monotonic() < until
                time.sleep(0.2)


def test_a_mirror_over_a_unix_socket(tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    (tmp_path / "backup").mkdir()
    allow = ["--allow", f"receive={tmp_path}/backup"]
    with listening(tmp_path / "there", "--listen", str(socket), *allow):
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        host = RemoteHost("box", str(socket), transport="unix")
        with client(tmp_path, host) as service:
            service.create("m", f"block:{tmp_path}/v", f"block://box{tmp_path}/backup/v")
            service.initialize("m")
            assert service.update("m").status == "unchanged"
            with pytest.raises(Untrusted):
                service.create("n", f"block:{tmp_path}/v", f"block://box{tmp_path}/x")
        second = subprocess.run(
            [*AGENT, "--listen", str(socket)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MIRRORD_HOME": str(tmp_path / "there")},
            timeout=PATIENCE_S,
        )
        assert second.returncode == Busy.exit_status
        assert "the socket already exists" in second.stderr
    assert not socket.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_socket_of_a_killed_agent_is_used_again(tmp_path: Path, number: signal.Signals) -> None:
    socket = tmp_path / "agent.sock"
    words = [*AGENT, "--listen", str(socket)]
    environment = {**os.environ, "MIRRORD_HOME": str(tmp_path / "there")}
    for _ in range(2):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"listening on {socket}\n"
            process.send_signal(number)
        assert socket.exists() == (number == signal.SIGKILL)
    socket.unlink(missing_ok=True)
    socket.write_text("somebody's")
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S
    )
    assert done.returncode == Busy.exit_status and "the socket already exists" in done.stderr
    assert socket.read_text() == "somebody's"


#: The signal arrives at another thread: it does not interrupt what the main one waits for, as if it
#: had arrived just before that wait.
_ELSEWHERE = """
import signal, sys, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
from mirrord.cli.main import main
main()
"""


def test_a_signal_just_before_the_agent_waits_ends_it(tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    words = [sys.executable, "-c", _ELSEWHERE, "agent", "--listen", str(socket)]
    environment = {**os.environ, "MIRRORD_HOME": str(tmp_path / "there")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"listening on {socket}\n"
            time.sleep(0.5)
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert not socket.exists()


def test_an_agent_that_ends_leaves_the_socket_of_another(tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    words = [*AGENT, "--listen", str(socket)]
    environment = {**os.environ, "MIRRORD_HOME": str(tmp_path / "there")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on {socket}\n"
        socket.unlink()
        socket.write_text("another's")
        process.terminate()
    assert socket.read_text() == "another's"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--listen", "nonsense"], "not an address and a port"),
        (["--listen", "0.0.0.0:9999999"], "not an address and a port"),
        (
            ["--listen", "127.0.0.1:9745", "--allow", "send=/"],
            "--allow and --append-only cannot be combined",
        ),
        (["--listen", "127.0.0.1:9745"], "mirrord pki init"),
        (["--listen", "/no/such/folder/s"], "cannot listen on the socket"),
    ],
)
def test_a_wrong_place_to_listen_is_said(tmp_path: Path, words: list[str], part: str) -> None:
    done = subprocess.run(
        [*AGENT, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "MIRRORD_HOME": str(tmp_path)},
    )
    assert done.returncode != 0 and part in done.stderr, done.stderr
