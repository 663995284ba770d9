"""What the demos share: a folder that is removed, and commands shown with what they say."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mirrord.core.errors import IoFailed
from mirrord.core.units import format_duration
from mirrord.system import clock, command

#: For what a demo waits for, seconds.
TIMEOUT_S = 120.0
_POLL_S = 0.05


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for everything that the demo makes; its removal is reported."""
    started_s = clock.monotonic_s()
    with tempfile.TemporaryDirectory(prefix="mirrord-demo-") as name:
        yield Path(name)
    took = format_duration(clock.monotonic_s() - started_s)
    print(f"\nThe demo took {took}. Everything that it created has been removed.")


class Terminal:
    """Commands of a mirrord that has all its folders below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "mirrord"
        self.environment = {"MIRRORD_HOME": str(self.home)}

    def run(self, *words: str, fails: bool = False) -> None:
        """Run a command and show it with what it says."""
        print(f"\n$ mirrord {' '.join(words)}", flush=True)
        done = command.run(
            [sys.executable, "-m", "mirrord", *words],
            timeout_s=TIMEOUT_S,
            environment=self.environment,
        )
        for line in (done.output + done.errors).rstrip().splitlines():
            print(f"  {line}")
        if (done.status != 0) is not fails:
            raise IoFailed(f"the demo's 'mirrord {words[0]}' ended with status {done.status}")

    def json(self, *words: str) -> Any:
        """What a command says with `--json`; it is not shown."""
        done = command.run(
            [sys.executable, "-m", "mirrord", *words, "--json"],
            timeout_s=TIMEOUT_S,
            environment=self.environment,
        )
        return json.loads(done.output)

    @contextmanager
    def background(self, *words: str) -> Iterator[command.Process]:
        """A command that goes on while the story does, and is ended after that."""
        print(f"\n$ mirrord {' '.join(words)} &", flush=True)
        running = command.start(
            [sys.executable, "-m", "mirrord", *words],
            stdin=command.NO_INPUT,
            stderr=command.NO_INPUT,
            environment=self.environment,
        )
        try:
            yield running
        finally:
            if running.poll() is None:
                running.terminate()
                running.wait(timeout=TIMEOUT_S)


def say(text: str) -> None:
    """A sentence of the story."""
    print(f"\n# {text}", flush=True)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Until it is so; `IoFailed` when that takes too long. what: is waited for."""
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    while not condition():
        if clock.monotonic_s() > deadline_s:
            raise IoFailed(f"the demo waited too long for {what}")
        clock.sleep_s(_POLL_S)


def kill_processes(home: Path) -> bool:
    """Kill every process that was started with this `MIRRORD_HOME`; whether there was one."""
    wanted = f"MIRRORD_HOME={home}".encode()
    found = False
    for each in Path("/proc").iterdir():
        # It may end meanwhile, or belong to another user.
        with suppress(OSError):
            if each.name.isdigit() and wanted in (each / "environ").read_bytes().split(b"\0"):
                os.kill(int(each.name), signal.SIGKILL)
                found = True
    return found
