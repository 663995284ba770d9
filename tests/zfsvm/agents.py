"""Agents in the machine: over the worker (quick, and they can be told to break), or over SSH."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mirrord.core.model import RemoteHost
from mirrord.transport.fds import FdStream
from mirrord.transport.known_hosts import fingerprint
from tests.support.agents import Agents
from tests.zfsvm.guest import PYTHON, TREE, Guest

_HOMES = itertools.count(1)


def new_home(user: str = "root") -> str:
    """A folder in the machine for MIRRORD_HOME, which nobody else has. (The one above it belongs to
    whoever makes it.)
    """
    return f"/var/tmp/mirrord-{user}/{next(_HOMES)}"


class GuestAgents(Agents):
    """See `tests.support.agents.Agents`; `pids` are of the machine."""

    def __init__(self, guest: Guest, home: str, *arguments: str, user: str = "root") -> None:
        super().__init__(Path(home), *arguments)
        self._guest, self._user = guest, user
        self.pids: list[int] = []
        #: For the agents to come: what is to happen at their labelled steps (inside.Script).
        self.script: dict[str, Any] = {}

    def stream(self) -> FdStream:
        """A fresh agent."""
        connection, pid = self._guest.agent(
            str(self._home), *self._arguments, user=self._user, script=self.script
        )
        self.pids.append(pid)
        descriptor = connection.detach()
        return FdStream(descriptor, descriptor, self._peer)

    def kill(self) -> None:
        """See `Agents.kill`."""
        self._guest.user("kill", self.pids[-1])

    def close(self) -> None:
        """See `Agents.close`: all have ended."""
        if self._current is not None:
            self._current.close()
        left = [pid for pid in self.pids if not self._guest.user("gone", pid)]
        for pid in left:
            self._guest.user("kill", pid)
        assert left == [], "agents outlived their client"


@contextmanager
def guest_agents(guest: Guest, *arguments: str, user: str = "root") -> Iterator[GuestAgents]:
    """Agents with a home of their own."""
    made = GuestAgents(guest, new_home(user), *arguments, user=user)
    try:
        yield made
    finally:
        made.close()


def ssh_host(
    guest: Guest, home: str, *arguments: str, name: str = "there", user: str = "root"
) -> RemoteHost:
    """How the product reaches an agent in the machine by its own SSH."""
    import base64

    public = guest.machine.host_key.split()
    command = ("env", f"MIRRORD_HOME={home}", f"PYTHONPATH={TREE}", PYTHON, "-m", "mirrord")
    return RemoteHost(
        name,
        "127.0.0.1",
        port=guest.machine.port,
        user=user,
        key=str(guest.machine.key),
        fingerprint=fingerprint(base64.b64decode(public[1])),
        command=(*command, "agent", *arguments),
        # The machine has the one port: a data channel of its own would not be reached.
        data="ssh",
        connect_s=30.0,
    )
