"""mirrord as its users have it: a command line in a process of its own, and the daemon."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.soak.history import History, Violation

ROOT = Path(__file__).parents[2]
NAME = "home"
#: Longer than any command on these volumes takes on a machine with much else to do.
_TIMEOUT_S = 150.0
_BAD = re.compile(
    r"Traceback|PanicException|panicked|[Uu]nexpected|\bbug\b|KeyError|AssertionError"
)
_WAY = re.compile(r"mirrord ([a-z][a-z-]*)((?: (?:-[-a-z]+|[A-Za-z0-9_./-]+))*)")


class Outcome(NamedTuple):
    """What a command said. status: negative where a signal ended it."""

    words: tuple[str, ...]
    status: int
    output: str

    @property
    def good(self) -> bool:
        return self.status == 0

    def ways(self) -> list[tuple[str, ...]]:
        """The commands that it names, without those that only look."""
        found = [(verb, *rest.split()) for verb, rest in _WAY.findall(self.output)]
        return [way for way in dict.fromkeys(found) if way[0] not in _LOOKING]


_LOOKING = {"status", "explain", "history", "snapshots", "monitor", "alarms", "delta", "daemon"}


@functools.cache
def helptext(verb: str) -> str:
    words = [sys.executable, "-m", "mirrord", *([verb] if verb else []), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout


def has(verb: str, option: str = "") -> bool:
    """Whether this version of mirrord has a command, or an option of it."""
    if re.search(rf"^(?:│ |  ){re.escape(verb)} ", helptext(""), re.MULTILINE) is None:
        return False
    return not option or re.search(rf"{re.escape(option)}\b", helptext(verb)) is not None


class Commands:
    """Runs mirrord on the host whose folders are below `home`."""

    def __init__(self, home: Path, history: History) -> None:
        self.home = home
        self._history = history
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MIRRORD", "NOTIFY"))}
        self.environment = {**kept, "MIRRORD_HOME": str(home), "TZ": "UTC", "COLUMNS": "200"}
        self.daemon: subprocess.Popen[bytes] | None = None
        self.count = 0

    def start(self, *words: str, fault: tuple[str, int] | None = None) -> subprocess.Popen[bytes]:
        run = ["mirrord"] if fault is None else ["tests.soak.at_step", fault[0], str(fault[1])]
        self._output = self.home / "output"
        with self._output.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", *run, *words],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def run(
        self,
        *words: str,
        fault: tuple[str, int] | None = None,
        during: Callable[[subprocess.Popen[bytes]], None] | None = None,
    ) -> Outcome:
        """Run a command to its end, with what happens meanwhile, and look at what it says."""
        self.count += 1
        began_s = time.monotonic()
        process = self.start(*words, fault=fault)
        try:
            if during is not None:
                during(process)
            status = process.wait(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Violation("hang", f"{' '.join(words)} took {_TIMEOUT_S:g} s") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        output = self._output.read_text(errors="replace")
        outcome = Outcome(words, status, output)
        first = next((line for line in output.splitlines() if line), "")
        took_s = time.monotonic() - began_s
        how = f" [{fault[0]} {fault[1]}]" if fault else ""
        self._history.add(
            f"$ mirrord {' '.join(words)}{how} -> {status}, {took_s:.1f} s: {first[:150]}", output
        )
        self.look(outcome.output, " ".join(words))
        return outcome

    def look(self, output: str, what: str) -> None:
        """Nothing that a command says may look like an accident."""
        if found := _BAD.search(output):
            at = output[max(0, found.start() - 300) : found.end() + 2000]
            raise Violation("message", f"{what} said {found[0]!r}: …{at}")

    def status(self) -> dict[str, Any]:
        """The mirror as `status --json` has it; {} where that fails."""
        done = subprocess.run(
            [sys.executable, "-m", "mirrord", "status", NAME, "--json"],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        self.look(done.stdout + done.stderr, "status --json")
        if done.returncode != 0:
            return {}
        mirrors = json.loads(done.stdout)["mirrors"]
        return dict(mirrors[0]) if mirrors else {}

    def start_daemon(self, fault: tuple[str, int] | None = None) -> bool:
        """Start it; whether it is ready (a fault may end it first)."""
        run = ["mirrord"] if fault is None else ["tests.soak.at_step", fault[0], str(fault[1])]
        log = self.home / "daemon.log"
        with log.open("ab") as output:
            begin = output.tell()
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", *run, "daemon"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self.environment, "PYTHONUNBUFFERED": "1"},
            )
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and self.daemon.poll() is None:
            if b"ready: " in log.read_bytes()[begin:]:
                return True
            time.sleep(0.05)
        return False

    def stop_daemon(self, number: int = signal.SIGTERM) -> int | None:
        """End it, if it runs; returns its exit status."""
        if self.daemon is None:
            return None
        if self.daemon.poll() is None:
            self.daemon.send_signal(number)
        try:
            status = self.daemon.wait(timeout=90)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
            raise Violation("hang", "the daemon did not end within 90 s of SIGTERM") from None
        finally:
            self.daemon = None
        log = self.home / "daemon.log"
        text = log.read_text(errors="replace")
        log.write_text("")
        self._history.add(f"the daemon ended with {status}", text)
        self.look(text, "the daemon")
        return status
