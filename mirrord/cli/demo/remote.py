"""The story with another host: a key that may do one thing, updates over it, a cut, a border."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from mirrord.cli.demo.other_host import OtherHost
from mirrord.cli.demo.places import Place, open_place
from mirrord.cli.demo.story import Story
from mirrord.cli.demo.terminal import TIMEOUT_S, say, temporary_folder
from mirrord.core.errors import IoFailed
from mirrord.core.model import Endpoint


def play() -> None:
    """Tell the whole story; removes all that it made, also when it is interrupted."""
    with (
        temporary_folder() as folder,
        closing(open_place(folder)) as place,
        closing(OtherHost(folder, namespaced=os.geteuid() == 0)) as host,
    ):
        RemoteStory(folder, place, host).tell()


class RemoteStory(Story):
    """The same, with the destination over there."""

    def __init__(self, folder: Path, place: Place, host: OtherHost) -> None:
        super().__init__(folder, place)
        self.host = host
        kind, _, location = place.destination.partition(":")
        self.location = location
        self.destination = str(Endpoint(kind, location, "dr"))

    def tell(self) -> None:
        """All of it, from the stage to the break."""
        say(f"The volumes: {self.place.story}; the other host is {self.host.make()}.")
        say(f"The source gets its content: {self.place.fill()}.")
        self.know()
        self.run("create", "home", self.place.source, self.destination)
        say("The first transfer. Data is sent over TLS, with one-time certificates.")
        self.run("initialize", "home")
        for number in (1, 2):
            say(f"Changes: {self.place.change(number)}.")
            self.run("update", "home")
        self.run("status", "home")
        self.cut()
        self.border()
        say("Disaster: the source is lost. `break` makes the copy on the other host writable.")
        self.run("break", "home")
        say(f"Work goes on there: {self.place.write_at_destination()}.")
        self.run("status", "home")
        self.run("history", "home")

    def know(self) -> None:
        """From nothing to a connection."""
        say("An administrator compares its host key, which is then pinned. The new key of this")
        print("# host may do one thing there: keep copies below one folder.", flush=True)
        settings = self.folder / "mirrord/etc/hosts.d/dr.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(self.host.settings())
        words = [
            "host", "add", "dr", "--address", self.host.address, "--port", str(self.host.port),
            "--fingerprint", self.host.fingerprint,
            "--allow-receive", str(Path(self.location).parent),
        ]  # fmt: skip
        line = str(self.json(*words)["authorized_keys"])
        self.run(*words, fails=True)
        say("The line goes into authorized_keys on the other host.")
        self.host.authorized.write_text(line + "\n")
        self.run("host", "check", "dr")

    def cut(self) -> None:
        """A transfer goes on by itself after its connection was cut."""
        say(f"A large change ({self.place.change_much()}); its transfer loses the connection.")
        with self.background("update", "home") as running:
            self.wait_for_progress()
            self.host.cut()
            print("\n# (cut: the agent on the other host was killed)", flush=True)
            if running.wait(timeout=TIMEOUT_S) != 0:
                raise IoFailed("the demo's update did not continue after the connection was cut")
        say("It reconnected and resumed from the data already stored there, without a command:")
        self.run("history", "home")

    def border(self) -> None:
        """The key opens its own folder only."""
        say("This key may do nothing else on the other host:")
        kind = self.destination.partition(":")[0]
        self.run("create", "sly", self.place.source, f"{kind}://dr/etc/mirrord-demo", fails=True)
