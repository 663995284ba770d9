"""A mirror between this host and "another": a real sshd with agents behind a proxy that spoils."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mirrord.config.hosts import render
from mirrord.control.documents import of_status
from mirrord.drivers.block.volume import Volume
from mirrord.system.paths import Paths
from tests.support.proxy import Proxy
from tests.support.service import PATIENCE_S
from tests.support.sshd import Sshd
from tests.support.verbs import Service

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
#: Before an attempt to connect is given up (`connect_s`), and before a silence is noticed.
SOON_S = 9.0
#: What is left of a transfer takes many seconds at that rate.
SLOW_BYTES_S = 1.0 * MIB
AGENT = (sys.executable, "-m", "mirrord", "agent")


class Remote:
    """Host "dr" as seen from here: reached through `proxy`; `service` and `cli` are ours.

    allow: arguments of the agent, as a forced command would give them.
    """

    def __init__(self, folder: Path, *, data: str = "ssh", allow: Sequence[str] = ()) -> None:
        self.folder = folder
        self.home, self.there_home = folder / "here", folder / "there"
        self.sshd = Sshd(folder / "sshd").start()
        self.proxy = Proxy((self.sshd.address, self.sshd.port))
        self.prefix = (
            "exec", "env", f"MIRRORD_HOME={self.there_home}", f"PYTHONPATH={ROOT}",
        )  # fmt: skip
        self.command: tuple[str, ...] = (*self.prefix, *AGENT, *allow)
        self.paths = Paths(self.home / "etc", self.home / "state", self.home / "run")
        self.set_host(data=data)
        self.service = Service(self.paths)
        self._started: list[subprocess.Popen[str]] = []

    def set_host(self, name: str = "dr", *, home: Path | None = None, **changes: object) -> None:
        """Write hosts.d: what is not said is right."""
        said: dict[str, object] = {
            "name": name, "port": self.proxy.port, "command": self.command, "data": "ssh", **changes
        }  # fmt: skip
        folder = Paths(*((home or self.home) / part for part in ("etc", "state", "run"))).hosts
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.toml").write_text(render(self.sshd.host(**said)))

    def close(self) -> None:
        """The test is over: nothing of it stays, and nothing of it had to be ended by us."""
        self.service.close()
        for process in self._started:
            process.kill()
            process.communicate()
        self.proxy.go_on()
        self.service.shared.links.close()
        try:
            left = self.agents_after()
        finally:
            for pid in self.agents():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.proxy.close()
            self.sshd.stop()
        assert left == [], "agents outlived their clients"

    def close_links(self) -> None:
        """Our ends of all connections end, in order, and the agents with them."""
        self.service.shared.links.close()
        assert self.agents_after() == []

    # Processes

    def agents(self) -> list[int]:
        """Agents that run at the other end."""
        found = []
        wanted = f"MIRRORD_HOME={self.there_home}\0".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if wanted in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def agents_after(self, within_s: float = PATIENCE_S) -> list[int]:
        """Those that are left when all should have gone within that time."""
        until = time.monotonic() + within_s
        while (left := self.agents()) and time.monotonic() < until:
            time.sleep(0.02)
        return left

    def kill_agents(self) -> None:
        """They end without a word."""
        for pid in self.agents():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # Volumes

    def volume(self, name: str = "v", *, data_bytes: int = 48 * MIB) -> Path:
        """A block volume with so much that does not compress."""
        path = self.folder / name
        made = random.Random(name)
        with Volume.create(path, max(data_bytes + 16 * MIB, 64 * MIB)) as volume:
            for at in range(0, data_bytes, MIB):
                volume.write(at, made.randbytes(min(MIB, data_bytes - at)))
        return path

    def change(self, path: Path, data_bytes: int, seed: int = 1) -> None:
        """Rewrite so much of it."""
        made = random.Random(seed)
        with Volume.open(str(path), writable=True) as volume:
            for at in range(0, data_bytes, MIB):
                volume.write(at, made.randbytes(min(MIB, data_bytes - at)))

    # Work

    def create(self, source: str, destination: str, name: str = "home") -> None:
        self.service.create(name, source, destination)

    def environment(self, home: Path | None = None) -> dict[str, str]:
        return {**os.environ, "MIRRORD_HOME": str(home or self.home)}

    def cli(
        self, *words: str, home: Path | None = None, timeout_s: float = 200
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line as a process."""
        return subprocess.run(
            [sys.executable, "-m", "mirrord", *words],
            env=self.environment(home),
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *words: str, home: Path | None = None) -> subprocess.Popen[str]:
        """Start it, and go on."""
        process = subprocess.Popen(
            [sys.executable, "-m", "mirrord", *words], env=self.environment(home), cwd=ROOT,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._started.append(process)
        return process

    def under_way(self, after_bytes: int = 20 * MIB) -> tuple[Path, Path, subprocess.Popen[str]]:
        """A first transfer by the command line, in the middle: source, destination, process."""
        source, copy = self.volume(), self.folder / "copy"
        self.create(f"block:{source}", f"block://dr{copy}")
        self.close_links()
        process = self.start("initialize", "home")
        self.await_passed(after_bytes)
        return source, copy, process

    def status(self, name: str = "home") -> dict[str, Any]:
        return of_status(self.service.status(name)[0])

    def await_passed(self, more_bytes: int, way: str = "up") -> None:
        """Until so many bytes more went through the proxy.

        From there on the connections are slow, until `proxy.go_on`: however long this process
        has to wait for its turn, it is still in the middle that the test does what it does.
        """
        wanted = self.proxy.passed[way] + more_bytes
        self.proxy.slow_at(wanted, SLOW_BYTES_S, way)
        until = time.monotonic() + PATIENCE_S
        while self.proxy.passed[way] < wanted:
            assert time.monotonic() < until, f"{self.proxy.passed}, wanted {wanted}"
            time.sleep(0.005)


def content(path: Path) -> str:
    """What a block volume shows, as a digest."""
    digest = hashlib.sha256()
    with Volume.open(str(path)) as volume:
        for at in range(0, volume.size_bytes, MIB):
            digest.update(volume.read(at, min(MIB, volume.size_bytes - at)))
    return digest.hexdigest()


def one_error(errors: str) -> tuple[str, str]:
    """The error and the hint of a command that failed as it should."""
    lines = [line for line in errors.splitlines() if line]
    assert lines and lines[0].startswith("error: "), errors
    assert "unexpected" not in errors and "Traceback" not in errors and "bug" not in errors, errors
    assert len([line for line in lines if line.startswith("error: ")]) == 1, errors
    hint = next((line for line in lines if line.startswith("hint: ")), "")
    assert hint, errors
    return lines[0], hint


@contextmanager
def remote(folder: Path, *, data: str = "ssh", allow: Sequence[str] = ()) -> Iterator[Remote]:
    made = Remote(folder, data=data, allow=allow)
    try:
        yield made
    finally:
        made.close()
