"""A machine with the code of this tree in it, and the connection to its worker."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRWPair
from pathlib import Path
from typing import Any

import mirrord
from tests.zfsvm.machine import Machine

ROOT = Path(mirrord.__file__).parents[1]
#: Where this tree is in the machine.
TREE = "/opt/mirrord/tree"
PYTHON = "/opt/mirrord/bin/python"
_FOLDERS = ("mirrord", "tests/support", "tests/zfsvm", "tests/contract", "tests/live")
_NUMBERS = itertools.count(1)
_READY_S = 60.0
#: So long may be what a test wishes to be done in it.
_ANSWER_S = 800.0


class GuestError(AssertionError):
    """Something that a test wished to be done in the machine failed; the guest's own words."""


class Guest:
    """A running machine, its user, and what connects to it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._token = secrets.token_hex(16)
        self._worker: subprocess.Popen[bytes] | None = None
        self._lines: BufferedRWPair | None = None
        self._guard = threading.Lock()
        #: Why nothing can be asked of it any more.
        self.lost = ""

    def start(self) -> Guest:
        """Bring the code in and start the worker."""
        self.deploy()
        words = f"cd {TREE} && exec {PYTHON} -m tests.zfsvm.inside {self._token} 2>/tmp/worker.log"
        self._worker = subprocess.Popen(
            [*self.machine.ssh_words(), words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._worker.stdout is not None
        if self._worker.stdout.readline() != b"ready\n":
            said = self.machine.ssh("cat", "/tmp/worker.log").stdout.decode(errors="replace")
            raise GuestError(f"the worker did not start: {said}")
        with self.connect(role="user") as connection:  # (closed when its file is)
            connection.settimeout(_ANSWER_S)
            self._lines = connection.makefile("rwb")
        return self

    def deploy(self) -> None:
        """Copy mirrord, its native module and the tests; links are followed."""
        with tempfile.TemporaryFile() as packed:
            with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
                for folder in _FOLDERS:
                    archive.add(ROOT / folder, folder, filter=_only_code)
                archive.add(ROOT / "tests/__init__.py", "tests/__init__.py")
                [native] = (ROOT / "mirrord").glob("_native*.so")
                # Made for every Python 3 from 3.11 on, whichever it is named after.
                archive.add(native, "mirrord/_native.abi3.so")
            packed.seek(0)
            self.machine.ssh("mkdir", "-p", TREE)
            unpacking = [*self.machine.ssh_words(), f"tar -C {TREE} -x"]
            subprocess.run(unpacking, stdin=packed, check=True)

    def stop(self) -> None:
        """End the worker."""
        if self._lines is not None:
            self._lines.close()
        if self._worker is not None:
            assert self._worker.stdin is not None and self._worker.stdout is not None
            self._worker.stdin.close()
            self._worker.stdout.close()
            if self.lost:
                self._worker.kill()
            self._worker.wait(10)
            self._worker = None

    # What is done in it

    def connect(self, **asked: Any) -> socket.socket:
        """A connection to the worker that asked for this."""
        made = socket.create_connection(("127.0.0.1", self.machine.work_port), timeout=_READY_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(None)
        made.sendall(json.dumps({"token": self._token, **asked}).encode() + b"\n")
        return made

    def agent(
        self, home: str, *arguments: str, user: str = "root", script: dict[str, Any] | None = None
    ) -> tuple[socket.socket, int]:
        """A fresh agent, what speaks with it, and its process in the machine."""
        made = self.connect(
            role="agent", arguments=arguments, home=home, user=user, script=script or {}
        )
        line = b""
        while not line.endswith(b"\n"):
            part = made.recv(1)
            if not part:
                raise GuestError("the machine's worker gave no agent")
            line += part
        return made, int(json.loads(line)["pid"])

    def user(self, name: str, *arguments: Any) -> Any:
        """Call a function of tests.zfsvm.user in the machine."""
        with self._guard:
            if self.lost:
                raise GuestError(self.lost)
            assert self._lines is not None
            # Whatever interrupts this (also a test's time being over) leaves an answer on its way.
            self.lost = f"the machine did not answer: {name} {arguments}"
            self._lines.write(json.dumps([name, arguments]).encode() + b"\n")
            self._lines.flush()
            answer = json.loads(self._lines.readline())
            self.lost = ""
        if "error" in answer:
            raise GuestError(answer["error"])
        return answer["value"]

    def run(self, *words: str, given: str | None = None) -> str:
        """What a command in the machine prints; `GuestError` when it fails."""
        status, out, errors = self.user("run", words, given)
        if status != 0:
            raise GuestError(f"{' '.join(words)}: exit status {status}: {errors.strip()}")
        return str(out)

    def fails(self, *words: str) -> str:
        """What a command that must fail complains of."""
        status, _, errors = self.user("run", words)
        assert status != 0, words
        return str(errors)

    @contextmanager
    def datasets(self) -> Iterator[str]:
        """A name below both pools, nobody else's, as `lab7`. What was made there stays as long as
        the machine: to destroy it would take a third of the time of the tests.
        """
        name = f"lab{next(_NUMBERS)}"
        for pool in ("here", "there"):
            self.run("zfs", "create", "-o", "atime=off", f"{pool}/{name}")
        yield name


def _only_code(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name.rpartition("/")[2]
    return None if name == "__pycache__" or name.endswith(".so") else entry
