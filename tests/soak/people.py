"""The people who work on the volumes: writers as processes, and all that was acknowledged to them.

A writer tells this process each token by a pipe once its line is durable, so what they know is
outside the volumes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).parents[2]
KINDS = ("path", "held", "mapped", "replaced")
#: What the names of their files begin with.
PREFIX = "line-"


class Line(NamedTuple):
    """An acknowledged line. The volume is where its writer was told to work."""

    token: str
    volume: str
    kind: str
    at_s: float


class Worker:
    """A writer that runs, and the thread that listens to it."""

    def __init__(self, kind: str, volume: Path, name: str, pause_ms: int, told: list[Line]) -> None:
        self.kind, self.volume, self.name = kind, volume, name
        self.refused: dict[str, int] = {}
        self.acknowledged = 0
        script = Path(__file__).with_name("writer.py")
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(script), kind, str(volume / name), str(pause_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        assert self.process.stdout is not None
        self._thread = threading.Thread(
            target=self._listen, args=(self.process.stdout, told), daemon=True
        )
        self._thread.start()

    def _listen(self, output: IO[bytes], told: list[Line]) -> None:
        for raw in output:
            word = raw.decode().rstrip("\n")
            if word.startswith("!"):
                self.refused[word[1:]] = self.refused.get(word[1:], 0) + 1
            elif raw.endswith(b"\n"):
                self.acknowledged += 1
                told.append(Line(word, str(self.volume), self.kind, time.monotonic()))

    def stop(self, *, kill: bool = False) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        if kill:
            self.process.kill()
        self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._thread.join(timeout=30)
        self.process.stdout.close()


class People:
    """All writers of a seed, those that ended included."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.lines: list[Line] = []
        self.workers: list[Worker] = []
        self._number = 0

    def start(self, volume: Path, kind: str | None = None) -> Worker:
        """Let one more work on a volume, with a file of its own."""
        self._number += 1
        kind = kind or self._chance.choice(KINDS)
        name = f"{PREFIX}{self._number}"
        pause_ms = self._chance.choice((3, 10, 30))
        worker = Worker(kind, volume, name, pause_ms, self.lines)
        self.workers.append(worker)
        return worker

    def stop(self, *, kill: bool = False) -> str:
        """Let all come to an end; returns what they got done, as words."""
        said = []
        for worker in self.workers:
            worker.stop(kill=kill)
            refused = ", ".join(f"{n} x {why}" for why, n in worker.refused.items())
            where = f"{worker.volume.parent.name}/{worker.volume.name}"
            said.append(
                f"{worker.name} ({worker.kind} in {where}): {worker.acknowledged}"
                + (f" and {refused}" if refused else "")
            )
        self.workers.clear()
        return "; ".join(said)

    def freeze(self) -> None:
        """Let none of them run any more."""
        for worker in self.workers:
            worker.process.send_signal(signal.SIGSTOP)

    def __bool__(self) -> bool:
        return bool(self.workers)


def a_file(volume: Path, name: str, data: bytes) -> bool:
    """One file, made durable; whether that went well."""
    try:
        with (volume / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
