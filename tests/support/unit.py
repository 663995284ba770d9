"""A real daemon as systemd would start it: the unit file's words, a notify socket of the test's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging/mirrord.service"
#: The installed command, as the unit file names it, and that of this virtual environment.
INSTALLED, OWN = "/usr/local/bin/mirrord", f"{Path(sys.executable).parent}/mirrord"


def settings(key: str) -> list[str]:
    """What the unit file says of a key, each time that it does."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def exec_start() -> list[str]:
    """The words of ExecStart, with this environment's program for the installed one."""
    [line] = settings("ExecStart")
    words = line.split()
    assert words[0] == INSTALLED
    return [OWN, *words[1:]]


class Daemon:
    """A running service, and what it tells systemd."""

    def __init__(self, home: Path, told: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.home, self.process, self._told = home, process, told
        #: All lines so far, in their order.
        self.lines: list[str] = []

    def hears(self, line: str, *, timeout_s: float = 90.0) -> str:
        """Wait for the next line that begins so; returns it."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._told.settimeout(max(0.01, deadline_s - time.monotonic()))
            found = self._told.recv(4096).decode().splitlines()
            self.lines += found
            for each in found:
                if each.startswith(line):
                    return each

    def fill(self) -> None:
        """Let so much wait that nothing more can be told until some of it is heard."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    other.sendto(b"X=1", self._told.getsockname())

    def ends(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=90)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of this service's host."""
        return subprocess.run(
            [OWN, *words], env=environment(self.home), capture_output=True, text=True, timeout=120
        )


def environment(home: Path) -> dict[str, str]:
    """Of commands and the service whose folders are below `home`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MIRRORD", "NOTIFY"))}
    return {**kept, "MIRRORD_HOME": str(home), "TZ": "UTC"}


@contextmanager
def daemon(home: Path, *, log: Path | None = None) -> Iterator[Daemon]:
    """A daemon that has said that it is ready."""
    home.mkdir(exist_ok=True)
    address = f"\0mirrord-test-{os.getpid()}-{time.monotonic_ns()}"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told,
        (log or home / "log").open("wb") as errors,
    ):
        told.bind(address)
        process = subprocess.Popen(
            exec_start(),
            env=environment(home)
            | {"NOTIFY_SOCKET": "@" + address[1:], "WATCHDOG_USEC": "60000000"},
            stderr=errors,
        )
        try:
            made = Daemon(home, told, process)
            made.hears("READY=1")
            yield made
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
