"""Live mirrors by the command line and the daemon, as an administrator has them."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from mirrord.system import native, sockets
from tests.live.lab import wait_until
from tests.support.service import takes_clients

WORDS = [sys.executable, "-m", "mirrord"]


class Home:
    """A host: its folder for MIRRORD_HOME, and commands on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.environment = {**os.environ, "MIRRORD_HOME": str(folder)}
        self._daemon: subprocess.Popen[bytes] | None = None

    def run(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            [*WORDS, *words], capture_output=True, text=True, env=self.environment, timeout=120
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def refused(self, *words: str, status: int = 1) -> str:
        said = self.run(*words, status=status)
        assert "Traceback" not in said
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, said
        return errors[0]

    def status(self, name: str = "db") -> dict[str, Any]:
        found = json.loads(self.run("status", name, "--json"))["mirrors"][0]
        assert isinstance(found, dict)
        return found

    def is_in_sync(self) -> bool:
        live = self.status()["live"]
        return bool(live["source"] and live["source"]["in_sync"])

    def uri(self, name: str = "db") -> str:
        return f"nbd+unix:///?socket={self.folder}/run/{name}.nbd"

    def start_daemon(self) -> None:
        words = [*WORDS, "daemon"]
        log = (self.folder / "daemon.log").open("ab")
        with log:
            self._daemon = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)
        path = self.folder / "run/control.sock"
        wait_until(lambda: takes_clients(path), "the daemon", 60)

    def stop_daemon(self, number: int = signal.SIGTERM) -> None:
        if self._daemon is not None:
            self._daemon.send_signal(number)
            self._daemon.wait(60)
            self._daemon = None


class Image:
    """An image at one end, and its process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path.parent / ".mirrord" / path.name / "live"
        path.parent.mkdir(exist_ok=True)

    @property
    def pid(self) -> int | None:
        with (
            suppress(OSError),
            closing(sockets.connected(self.store / "control", timeout_s=1)) as it,
        ):
            found = it.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int(struct.unpack("3i", found)[0])
        return None

    def ask(self, *words: str) -> None:
        command = [native.live_program(), "ctl", str(self.store / "control"), *words]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def status(self) -> dict[str, Any]:
        """What its process reports; nothing when there is none."""
        command = [native.live_program(), "ctl", str(self.store / "control"), "status"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        return dict(json.loads(found or "{}"))

    def kill(self) -> None:
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.pid is None, "its end")


class Mirror:
    """A live mirror `db` between two images of one host, or of two."""

    def __init__(self, folder: Path, *, size: int = 8 << 20, host: str = "") -> None:
        self.home = Home(folder / "home")
        self.source, self.destination = Image(folder / "a/db.img"), Image(folder / "b/db.img")
        with self.source.path.open("wb") as image:
            image.truncate(size)
        self.ends = [
            f"image:{self.source.path}",
            f"image:{f'//{host}' if host else ''}{self.destination.path}",
        ]

    def create(self, *words: str) -> None:
        self.home.run("create", "db", *self.ends, *words)

    def initialize(self, *words: str) -> None:
        self.create(*words)
        self.home.run("initialize", "db")

    def assert_equal(self) -> None:
        qemu_io(self.home.uri(), "flush")
        assert self.source.path.read_bytes() == self.destination.path.read_bytes()

    def close(self) -> None:
        self.home.stop_daemon()
        with suppress(AssertionError):
            self.home.run("delete", "db", "--yes")
        for end in (self.source, self.destination):
            end.kill()


def qemu_io(uri: str, *commands: str, status: int = 0) -> str:
    words = [word for command in commands for word in ("-c", command)]
    done = subprocess.run(
        ["qemu-io", "-f", "raw", *words, uri], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout
