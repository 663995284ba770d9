"""Real cgroups of version 2, with real processes in them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

_numbers = itertools.count(1)


def top() -> Path:
    """Where cgroup v2 is mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    pytest.fail("cgroup v2 is not mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")


class Cgroup:
    """A cgroup. name: unique on this host; path: as a definition names it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self.name = folder.name
        self.path = f"/{folder.relative_to(top())}"

    def run(self, words: Sequence[str | Path], **options: object) -> subprocess.Popen[str]:
        """Start a program in it."""

        def enter() -> None:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

        process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
            [str(word) for word in words], preexec_fn=enter, text=True, **options
        )
        self._processes.append(process)
        return process

    def python(self, code: str, *words: str | Path) -> subprocess.Popen[str]:
        """Start a Python program in it."""
        return self.run([sys.executable, "-c", code, *words])

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def asked(self) -> bool:
        """Whether it is to be frozen."""
        return (self.folder / "cgroup.freeze").read_text().strip() == "1"

    def frozen(self) -> bool:
        return "frozen 1" in (self.folder / "cgroup.events").read_text()

    def freeze(self, on: bool) -> None:
        (self.folder / "cgroup.freeze").write_text("1" if on else "0")

    def remove(self) -> None:
        """Kill what is in it, and remove it."""
        with suppress(FileNotFoundError):
            (self.folder / "cgroup.freeze").write_text("0")
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.wait()
        if self.folder.exists():
            until_s = time.monotonic() + 10
            while True:
                with suppress(OSError):
                    self.folder.rmdir()
                    return
                assert time.monotonic() < until_s, self.pids()
                time.sleep(0.01)


@contextmanager
def cgroup(name: str = "", inside: Cgroup | None = None) -> Iterator[Cgroup]:
    """A fresh cgroup, gone afterwards with its processes."""
    if os.geteuid() != 0:
        pytest.skip("cgroups need root")
    folder = (inside.folder if inside else top()) / (
        name or f"mirrord-test-{os.getpid()}-{next(_numbers)}"
    )
    folder.mkdir()
    made = Cgroup(folder)
    with ExitStack() as stack:
        stack.callback(made.remove)
        yield made
