"""A network namespace with one link to here: another host, as far as the network is concerned."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Namespace(NamedTuple):
    """within: words before a command that shall run there. here, there: IPv4 addresses."""

    name: str
    link: str
    here: str
    there: str

    @property
    def within(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """From now on all that is sent there is lost, without a word."""
        _ip("-n", self.name, "link", "set", "lo", "down")
        _ip("-n", self.name, "addr", "flush", "dev", "there")
        _ip("neigh", "replace", self.there, "lladdr", "02:00:00:00:00:01", "dev", self.link)

    def mend(self) -> None:
        """The end of `cut`."""
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", "there")
        _ip("neigh", "del", self.there, "dev", self.link)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def namespace(number: int = 1) -> Iterator[Namespace]:
    """A namespace for a block of code (root only); `number` tells several apart, 1 to 200."""
    tag = f"{os.getpid() % 100_000}n{number}"
    made = Namespace(f"mirrord{tag}", f"m{tag}", f"10.213.{number}.1", f"10.213.{number}.2")
    _ip("netns", "add", made.name)
    try:
        _ip("link", "add", made.link, "type", "veth", "peer", "name", "there", "netns", made.name)
        _ip("addr", "add", f"{made.here}/24", "dev", made.link)
        _ip("link", "set", made.link, "up")
        for words in (
            ("addr", "add", f"{made.there}/24", "dev", "there"),
            ("link", "set", "there", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", made.name, *words)
        yield made
    finally:
        # The link by itself: a process that is still in the namespace would keep both.
        subprocess.run(["ip", "link", "delete", made.link], check=False, capture_output=True)
        _ip("netns", "delete", made.name)
