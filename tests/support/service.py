"""A real daemon as a process of its own, for a folder that MIRRORD_HOME names."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from mirrord.control.client import answers
from mirrord.system.paths import Paths
from tests.support.verbs import Client

ROOT = Path(__file__).parents[2]
#: What never happens is told apart from what a machine with much else to do takes its time for.
PATIENCE_S = 90.0


class ServiceProcess:
    """The daemon, started until it answers. What it says goes into a file."""

    def __init__(self, home: Path, *, environment: dict[str, str] | None = None) -> None:
        self.home = home
        self.paths = Paths(home / "etc", home / "state", home / "run")
        self._environment = {
            **os.environ, "MIRRORD_HOME": str(home), "PYTHONUNBUFFERED": "1", **(environment or {}),
        }  # fmt: skip
        self.said = home / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> ServiceProcess:
        self.home.mkdir(parents=True, exist_ok=True)
        with self.said.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mirrord", "daemon"], env=self._environment, cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        if wait:
            self.wait()
        return self

    def wait(self, timeout_s: float = PATIENCE_S) -> None:
        """Until it answers."""
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while "ready: " not in self.text() or not answers(self.paths.act_socket):
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def client(self) -> Client:
        return Client(self.paths.act_socket, self.paths.read_socket)

    def text(self) -> str:
        """All that it said since its start."""
        whole = self.said.read_text(encoding="utf-8") if self.said.exists() else ""
        return whole[whole.rfind("begins: ") :] if "begins: " in whole else whole

    def stop(self) -> int:
        """SIGTERM; returns its status."""
        return self.end(signal.SIGTERM)

    def end(self, number: int) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        with self.said.open("a") as log:
            log.write(f"ended with {status}\n")
        # The next start is told apart by its own first line.
        self.said.write_text("")
        self.process = None
        return status

    def restart(self) -> None:
        self.stop()
        self.start()


def until(condition: object, timeout_s: float = PATIENCE_S, *, what: str = "") -> None:
    """Wait until a condition holds. A shorter time is for a test whose subject the time is."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain {what}"
        time.sleep(0.02)


def takes_clients(path: Path) -> bool:
    """Whether somebody listens at a unix socket: its file is there a moment before."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as made:
        made.connect(str(path))
        return True
    return False


def processor_s(pid: int) -> float:
    """The processor time of a process, also of one that has ended and was not waited for. Does not
    depend on what else the host does.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
