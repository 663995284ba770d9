"""The story: initialize, updates, an abort in mid-transfer, the daemon, a break, a resync."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.cli.demo.places import Place, open_place
from mirrord.core.errors import InvariantError, IoFailed
from mirrord.core.units import format_duration
from mirrord.system import clock, command

#: For what the story waits for, seconds.
TIMEOUT_S = 120.0
_SEEN_BYTES = 32 << 20


def play() -> None:
    """Tell the whole story; removes all that it made, also when it is interrupted."""
    started_s = clock.monotonic_s()
    with tempfile.TemporaryDirectory(prefix="mirrord-demo-") as name:
        folder = Path(name)
        place = open_place(folder)
        try:
            Story(folder, place).tell()
        finally:
            place.close()
    took = format_duration(clock.monotonic_s() - started_s)
    print(f"\nThe demo took {took}. Everything that it created has been removed.")


class Story:
    """Commands shown with what they say, between sentences."""

    def __init__(self, folder: Path, place: Place) -> None:
        self.folder = folder
        self.place = place
        self.environment = {"MIRRORD_HOME": str(folder / "mirrord")}

    def tell(self) -> None:
        """The whole story, from the setup to the failback."""
        place = self.place
        say(f"The volumes: {place.story}.")
        say(f"The source gets its content: {place.fill()}.")
        self.run("create", "home", place.source, place.destination)
        say("The first transfer takes the base snapshot and sends all of it.")
        self.run("initialize", "home")
        self.run("status", "home")
        for number in (1, 2, 3):
            say(f"Round {number} of changes: {place.change(number)}.")
            if number == 1:
                say("What will be sent? Of the four block states, only `added`.")
                self.run("delta", "home")
            self.run("update", "home")
            self.run("status")
        self.abort()
        self.service()
        self.disaster()

    def abort(self) -> None:
        """A transfer that is ended in its middle shows nothing."""
        say(f"A large change ({self.place.change_much()}), and an abort during the transfer.")
        before = self.place.view()
        with self.background("update", "home") as running:
            self.wait_for_progress()
            self.run("status")
            self.run("abort", "home")
            running.wait(timeout=TIMEOUT_S)
        unchanged(before, self.place.view())
        say("The destination shows what it showed before. The next update completes the transfer:")
        self.run("update", "home")
        self.run("status")

    def service(self) -> None:
        """The daemon updates by itself."""
        say("Until now by hand. Now the daemon updates every second, with an RPO of 10 s.")
        definition = self.folder / "mirrord/etc/mirrors.d/home.toml"
        lines = 'schedule = "every 1s"\nrpo = "10s"\n'
        text = definition.read_text(encoding="utf-8")
        top, table, rest = text.partition("[site.")
        definition.write_text(top + lines + table + rest, encoding="utf-8")
        print('\n$ grep -E \'schedule|rpo\' home.toml\n  schedule = "every 1s"\n  rpo = "10s"')
        with self.background("daemon"):
            self.wait_until(lambda: (self.folder / "mirrord/run/control.sock").exists())
            self.run("schedule", "next", "home", "--count", "3")
            before = self.shown()
            say(f"Work continues at the source: {self.place.change(4)}. No `update` is called.")
            self.wait_until(lambda: self.shown() != before)
            self.run("status", "home")
            self.run("monitor")

    def shown(self) -> str:
        """The name of the snapshot that the destination shows."""
        done = command.run(
            [sys.executable, "-m", "mirrord", "status", "home", "--json"],
            timeout_s=TIMEOUT_S, environment=self.environment,
        )  # fmt: skip
        return str(json.loads(done.output)["mirrors"][0]["shown"])

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until it is so; `IoFailed` when that takes too long."""
        deadline_s = clock.monotonic_s() + TIMEOUT_S
        while not condition():
            if clock.monotonic_s() > deadline_s:
                raise IoFailed("the demo's daemon did not update in time")
            clock.sleep_s(0.05)

    def disaster(self) -> None:
        """Break, and resync."""
        say("Disaster: the source is gone for a while. `break` makes the destination writable.")
        self.run("break", "home")
        say(f"Work goes on at the destination: {self.place.write_at_destination()}.")
        self.run("status")
        say("The source is back, and its content is to be kept. What would the destination lose?")
        self.run("resync", "home", fails=True)
        say("Yes. (What it loses is kept as a `diverged` snapshot.)")
        self.run("resync", "home", "--yes")
        self.run("status", "home")
        self.run("snapshots", "home")
        self.run("history", "home")

    def run(self, *words: str, fails: bool = False) -> None:
        """Run a command and show it with what it says."""
        print(f"\n$ mirrord {' '.join(words)}", flush=True)
        done = command.run(
            [sys.executable, "-m", "mirrord", *words],
            timeout_s=TIMEOUT_S, environment=self.environment,
        )  # fmt: skip
        for line in (done.output + done.errors).rstrip().splitlines():
            print(f"  {line}")
        if (done.status != 0) is not fails:
            raise IoFailed(f"the demo's 'mirrord {words[0]}' ended with status {done.status}")

    def wait_for_progress(self) -> None:
        """Until the transfer in the background has moved something."""
        file = self.folder / "mirrord" / "run" / "home.progress"
        deadline_s = clock.monotonic_s() + TIMEOUT_S
        while clock.monotonic_s() < deadline_s:
            try:
                if json.loads(file.read_text()).get("done_bytes", 0) > _SEEN_BYTES:
                    return
            except (OSError, ValueError):
                pass
            clock.sleep_s(0.01)

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


def unchanged(before: str, after: str) -> None:
    """The point of the story: an abort must not be seen at the destination."""
    if before != after:
        raise InvariantError("the destination changed although the transfer was aborted")
