"""A unix socket here that leads to agents in the machine, which break as they are told.

The product reaches it as a host of its own (transport "unix"), without the seconds that SSH and a
fresh Python need in the machine: the crash matrix starts hundreds of agents.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from pathlib import Path
from typing import Any

from mirrord.core.model import RemoteHost
from tests.contract.lab_set_zfs import ZfsSetLab
from tests.contract.zfs import ZfsLab
from tests.support.world import SetWorld, World
from tests.zfsvm.agents import new_home
from tests.zfsvm.guest import Guest

_CHUNK_BYTES = 1 << 18
_NUMBERS = itertools.count(1)


class Bridge:
    """Every connection to `host` gets an agent of its own, with the present script."""

    def __init__(self, guest: Guest, folder: Path, *, name: str = "there") -> None:
        self.guest, self.home = guest, new_home()
        self.pids: list[int] = []
        #: The machine cannot be reached any more once the agent that breaks is gone.
        self.stays_down = False
        self._down = False
        self._script: dict[str, Any] = {}
        self._path = folder / f"bridge{next(_NUMBERS)}"
        self.host = RemoteHost(name, str(self._path), transport="unix", connect_s=30.0)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        self._listener.listen(20)
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    # What the agents to come do at their steps

    def learn(self) -> None:
        """They write down each labelled step that they reach."""
        self._script = {"labels": f"{self.home}.labels{next(_NUMBERS)}"}

    def break_at(self, label: str, time: int, fault: str) -> None:
        """One of them fails as it reaches the label for that time (`inside.Script`)."""
        self.learn()
        self._script |= {"wanted": label, "time": time, "fault": fault}

    def behave(self) -> None:
        """They do nothing of that, and the machine can be reached."""
        self._script, self.stays_down, self._down = {}, False, False

    def labels(self) -> list[str]:
        """The steps that were reached; "!" after the one where it was broken."""
        return str(self.guest.user("read_text", self._script["labels"])).split()

    # The connections

    def _serve(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            if self._down:
                ours.close()
                continue
            theirs, pid = self.guest.agent(self.home, script=self._script)
            # Whoever comes after the one that is broken finds an ordinary agent, or none.
            self._down = self.stays_down
            self._script = {name: self._script[name] for name in ("labels",) if self._script}
            self.pids.append(pid)
            pair = _Pair(ours, theirs)
            for one, other in ((ours, theirs), (theirs, ours)):
                self._threads.append(
                    threading.Thread(target=pair.carry, args=(one, other), daemon=True)
                )
                self._threads[-1].start()

    def close(self) -> None:
        """All agents have ended."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        left = [pid for pid in self.pids if not self.guest.user("gone", pid)]
        for pid in left:
            self.guest.user("kill", pid)
        for thread in self._threads:
            thread.join(10)
        assert left == [], "agents outlived their client"


class _Pair:
    """The two sockets of a connection: closed when nothing is carried any more either way."""

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets, self._left, self._guard = sockets, 2, threading.Lock()

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        """Carry one way until it ends; the end is passed on, too."""
        with contextlib.suppress(OSError):
            while piece := source.recv(_CHUNK_BYTES):
                target.sendall(piece)
        for one, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with contextlib.suppress(OSError):
                one.shutdown(how)
        with self._guard:
            self._left -= 1
            if self._left == 0:
                for one in self._sockets:
                    one.close()


class Bridged(World):
    """A mirror within the machine, reached through a bridge."""

    lab: ZfsLab

    def __init__(self, lab: ZfsLab, folder: Path) -> None:
        self.bridge = Bridge(lab.guest, folder)
        lab.host = self.bridge.host
        super().__init__(lab, folder / "home")
        self.run, self.guest = lab.guest.run, lab.guest
        self.source = lab.source().location

    def clean_up(self) -> None:
        super().clean_up()
        self.bridge.close()


class BridgedSet(SetWorld):
    """The same with a mirror of three members."""

    lab: ZfsSetLab

    def __init__(self, lab: ZfsSetLab, folder: Path) -> None:
        self.bridge = Bridge(lab.guest, folder)
        lab.host = self.bridge.host
        super().__init__(lab, folder / "home")

    def clean_up(self) -> None:
        super().clean_up()
        self.bridge.close()
