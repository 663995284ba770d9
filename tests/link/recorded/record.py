"""Records what two ends of this mirrord say to each other, for the tests of the next protocol.

python -m tests.link.recorded.record FILE: run it in a checkout of the commit that is to be kept.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirrord.core.model import Endpoint
from mirrord.drivers.block.owner import Volume
from mirrord.link.driver import RemoteDriver
from mirrord.transport.base import ByteStream
from tests.support.agents import Agents

#: Where the volumes are: the place is in what the ends say.
HOME = Path("/tmp/mirrord-recorded")
SOURCE, COPY = HOME / "source", HOME / "copy"
SIZE = 1 << 20


class Tap(ByteStream):
    """Keeps what goes through a stream."""

    def __init__(self, stream: ByteStream) -> None:
        self.inner, self.peer = stream, stream.peer
        self.sent, self.heard = bytearray(), bytearray()

    def read(self, most: int) -> bytes:
        data = self.inner.read(most)
        self.heard += data
        return data

    def write(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            self.sent += part
        self.inner.write(*parts)

    def close(self) -> None:
        self.inner.close()


def volumes() -> None:
    """The two places, as they are when the recording begins."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(mode=0o700)
    with Volume.create(SOURCE, SIZE) as volume:
        volume.write(0, b"recorded")


def script(open_driver: Callable[[Endpoint], RemoteDriver]) -> list[tuple[str, Callable[[], Any]]]:
    """What is asked for, one after another."""
    source = open_driver(Endpoint("block", str(SOURCE)))
    copy = open_driver(Endpoint("block", str(COPY)))
    return [
        ("facts", source.facts),
        ("take_snapshot", lambda: source.take_snapshot("one")),
        ("snapshots", source.snapshots),
        ("own_snapshots", lambda: source.own_snapshots(("*",))),
        ("facts", copy.facts),
        ("prepare", lambda: copy.prepare("m1")),
        ("facts", copy.facts),
        ("stagings", copy.stagings),
        ("pin", lambda: copy.pin("m1", [])),
        ("forget", copy.forget),
    ]


def main() -> None:
    volumes()
    agents = Agents(HOME / "there")
    tap = Tap(agents.stream())
    agents.stream = lambda: tap  # type: ignore[method-assign,assignment,return-value]
    exchanges = []
    asked: list[tuple[str, Callable[[], Any]]] = [("hello", agents.session)]
    asked += script(lambda end: RemoteDriver.of(end, agents))
    for name, call in asked:
        call()
        exchanges.append({"asked": name, "client": tap.sent.hex(), "agent": tap.heard.hex()})
        tap.sent.clear()
        tap.heard.clear()
    agents.close()
    Path(sys.argv[1]).write_text(json.dumps(exchanges, indent=1) + "\n")
    shutil.rmtree(HOME)


if __name__ == "__main__":
    main()
