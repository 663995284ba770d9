"""Agents as processes, reached over a socket pair: the product's own frames, without a network."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mirrord
from mirrord.link import hello as greeting
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.session import Session
from mirrord.system.waiting import Waiting
from mirrord.transport.fds import FdStream
from tests.support.service import PATIENCE_S


class Agents:
    """Starts an agent for each connection, as sshd does; what a `RemoteDriver` connects by."""

    notes: tuple[str, ...] = ()

    def __init__(self, home: Path, *arguments: str, peer: str = "there") -> None:
        self._home = home
        self._arguments = arguments
        self._peer = peer
        self._token = secrets.token_hex(16)
        self._current: Session | None = None
        self.processes: list[subprocess.Popen[bytes]] = []

    def session(self, _waiting: Waiting | None = None) -> Session:
        if self._current is None or not self._current.alive:
            self._current = self._connect()
        return self._current

    def stream(self) -> FdStream:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-m", "mirrord", "agent", *self._arguments],
            stdin=theirs.fileno(), stdout=theirs.fileno(),
            env={**os.environ, "MIRRORD_HOME": str(self._home)},
        )  # fmt: skip
        theirs.close()
        self.processes.append(process)
        descriptor = ours.detach()
        return FdStream(descriptor, descriptor, self._peer)

    def _connect(self) -> Session:
        lane = greeting.new_lane(self.stream())
        greeting.say(lane, Hello(mirrord.__version__, VERSIONS, self._token, 0, os.getpid()))
        theirs = greeting.expect(lane, timeout_s=PATIENCE_S)
        greeting.agree(VERSIONS, theirs, self._peer)
        session = Session(lane)
        session.start()
        return session

    def kill(self) -> None:
        """The other end ends without a word."""
        self.processes[-1].send_signal(signal.SIGKILL)
        self.processes[-1].wait()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
        for process in self.processes:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


@contextmanager
def agents(home: Path, *arguments: str) -> Iterator[Agents]:
    made = Agents(home, *arguments)
    try:
        yield made
    finally:
        made.close()
