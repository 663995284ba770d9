"""The story: initialize, updates, an abort in mid-transfer, the daemon, a break, a resync."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from mirrord.cli.demo.places import Place, open_place
from mirrord.cli.demo.terminal import TIMEOUT_S, Terminal, say, temporary_folder, wait_until
from mirrord.core.errors import InvariantError
from mirrord.system import clock

_SEEN_BYTES = 32 << 20


def play() -> None:
    """Tell the whole story; removes all that it made, also when it is interrupted."""
    with temporary_folder() as folder, closing(open_place(folder)) as place:
        Story(folder, place).tell()


class Story(Terminal):
    """Commands shown with what they say, between sentences."""

    def __init__(self, folder: Path, place: Place) -> None:
        super().__init__(folder)
        self.place = place

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
            wait_until((self.home / "run/control.sock").exists, "the daemon")
            self.run("schedule", "next", "home", "--count", "3")
            before = self.shown()
            say(f"Work continues at the source: {self.place.change(4)}. No `update` is called.")
            wait_until(lambda: self.shown() != before, "an update by the daemon")
            self.run("status", "home")
            self.run("monitor")

    def shown(self) -> str:
        """The name of the snapshot that the destination shows."""
        return str(self.json("status", "home")["mirrors"][0]["shown"])

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


def unchanged(before: str, after: str) -> None:
    """The point of the story: an abort must not be seen at the destination."""
    if before != after:
        raise InvariantError("the destination changed although the transfer was aborted")
