"""An agent that listens, and may open few files: it serves on, and takes clients again later."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mirrord.admin.pki import Authority
from mirrord.config.peers import Peers
from mirrord.core.errors import Busy, MirrordError, Untrusted
from mirrord.core.model import RemoteHost
from mirrord.link.connect import Link
from mirrord.system.waiting import Waiting
from tests.support.service import PATIENCE_S, until

FILES_MAX = 48


class Listening:
    """An agent with these limits, soft and hard; `place` is where it listens."""

    def __init__(self, home: Path, listen: str, soft: int, hard: int) -> None:
        words = ["prlimit", f"--nofile={soft}:{hard}", sys.executable, "-m", "mirrord", "agent"]
        if listen.startswith("/"):
            words += ["--allow", f"receive={home}/copies"]
        self.log = home / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*words, "--listen", listen],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "MIRRORD_HOME": str(home)},
            )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("listening on "), self.log.read_text()
        self.place = said.split()[-1]

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def close(self) -> None:
        """It has served until now, and ends in order."""
        assert self.process.poll() is None, self.log.read_text()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def listening(
    home: Path, listen: str, soft: int = FILES_MAX, hard: int = FILES_MAX
) -> Iterator[Listening]:
    made = Listening(home, listen, soft, hard)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    authority, peers = Authority(tmp_path / "etc/pki"), Peers(tmp_path / "etc/peers.d")
    authority.init()
    bundle = tmp_path / "berlin.pem"
    authority.issue("berlin", [f"receive={tmp_path}/copies"], bundle, peers)
    return bundle


def crowd(stack: ExitStack, connect: Callable[[], socket.socket], agent: Listening) -> None:
    """Connections of strangers, until the agent can open no more files."""
    for _ in range(FILES_MAX):
        stack.enter_context(connect())
    until(lambda: agent.open_files >= FILES_MAX)


def connected(link: Link) -> None:
    """It gets in, in time, whatever was said before."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            link.session(Waiting()).call("ping", timeout_s=PATIENCE_S)
            return
        except Untrusted:
            raise
        except MirrordError:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)


def test_a_tls_agent_serves_on_while_it_can_open_no_more_files(
    tmp_path: Path, bundle: Path
) -> None:
    with listening(tmp_path, "127.0.0.1:0") as agent, ExitStack() as stack:
        port = int(agent.place.rpartition(":")[2])
        host = RemoteHost("dr", "127.0.0.1", port=port, transport="tls", key=str(bundle))
        first, later = Link(host), Link(host)
        stack.callback(later.close)
        stack.callback(first.close)
        session = first.session(Waiting())
        with ExitStack() as strangers:
            # Strangers are left after some seconds, so new ones come all the time; meanwhile the
            # permissions of the peer that is there are checked several times.
            until_s = time.monotonic() + 9
            while time.monotonic() < until_s:
                crowd(strangers, lambda: socket.create_connection(("127.0.0.1", port)), agent)
                time.sleep(1)
                assert agent.process.poll() is None, agent.log.read_text()
                session.call("ping", timeout_s=PATIENCE_S)
        assert agent.log.read_text().count("permissions cannot be checked") >= 1
        assert session.alive
        connected(later)
        (tmp_path / "etc/peers.d/berlin.toml").unlink()
        until(lambda: not session.alive)  # its permissions are checked again
        assert agent.process.poll() is None


def test_a_peer_with_many_sessions_leaves_files_for_others(tmp_path: Path, bundle: Path) -> None:
    authority, peers = Authority(tmp_path / "etc/pki"), Peers(tmp_path / "etc/peers.d")
    authority.issue("paris", [f"receive={tmp_path}/other"], tmp_path / "paris.pem", peers)
    with listening(tmp_path, "127.0.0.1:0") as agent, ExitStack() as stack:
        port = int(agent.place.rpartition(":")[2])

        def link(key: Path) -> Link:
            made = Link(RemoteHost("dr", "127.0.0.1", port=port, transport="tls", key=str(key)))
            stack.callback(made.close)
            return made

        link(bundle).session(Waiting())
        link(bundle).session(Waiting())
        with pytest.raises(Busy, match="accepts no more connections"):
            for _ in range(FILES_MAX):
                link(bundle).session(Waiting())
        assert agent.open_files < FILES_MAX - 10
        link(tmp_path / "paris.pem").session(Waiting()).call("ping", timeout_s=PATIENCE_S)


def test_an_agent_at_a_unix_socket_takes_clients_again(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with listening(tmp_path, str(path)) as agent, ExitStack() as stack:

        def connect() -> socket.socket:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(PATIENCE_S)
            made.connect(str(path))
            return made

        with ExitStack() as strangers:
            crowd(strangers, connect, agent)
            time.sleep(1)
            assert agent.process.poll() is None, agent.log.read_text()
        link = Link(RemoteHost("box", str(path), transport="unix"))
        stack.callback(link.close)
        connected(link)


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    with listening(tmp_path, str(tmp_path / "agent.sock"), 64, 777) as agent:
        assert resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE) == (777, 777)
