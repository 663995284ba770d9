"""Switches of a live volume under a program that writes: `python -m tests.failover.switches`.

The program opens its file for each line, writes it with O_SYNC, and notes each line that was
acknowledged. After each switch every such line must be found: in a live volume, or in what was
kept aside. After a planned reverse, all of them must be in the new source.
"""

from __future__ import annotations

import argparse
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.core.errors import Busy, Refused
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.contract import Driver
from tests.support import btrfs
from tests.support.blocks import read_snapshot
from tests.support.labs import open_lab
from tests.support.places import driver_at
from tests.support.verbs import Service
from tests.support.world import NAME, World

FILE = "lines"
#: Where a block volume has its lines: numbers of eight bytes, each at its own place.
_AT, _ROOM = 1 << 20, 100_000

_BTRFS = """
import os, random, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number = 0
while True:
    for place in random.sample(sys.argv[2:], 2):
        try:
            file = os.open(place + "/lines", os.O_WRONLY | os.O_APPEND | os.O_SYNC)
        except OSError:
            continue
        try:
            if os.write(file, b"%d\\n" % number):
                os.write(log, b"%d\\n" % number)
                number += 1
                break
        except OSError:
            pass
        finally:
            os.close(file)
    time.sleep(random.random() * 0.004)
"""
_BLOCK = f"""
import os, random, struct, sys, time
from mirrord.core.errors import MirrordError
from mirrord.drivers.block.volume import Volume
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number = 0
while number < {_ROOM}:
    for place in random.sample(sys.argv[2:], 2):
        try:
            with Volume.open(place, writable=True) as volume:
                volume.write({_AT} + 8 * number, struct.pack("<Q", number + 1))
                volume.flush()
        except (MirrordError, OSError):
            continue
        os.write(log, b"%d\\n" % number)
        number += 1
        break
    time.sleep(random.random() * 0.02)
"""


def numbers(text: bytes) -> set[int]:
    return {int(line) for line in text.split(b"\n")[:-1] if line.isdigit()}


def read_lines(driver: Driver, guid: str | None) -> set[int]:
    """The lines in the live volume, or in a snapshot."""
    if driver.kind == "block":
        with Volume.open(driver.location) as volume:
            found = (
                volume.read(_AT, 8 * _ROOM)
                if guid is None
                else read_snapshot(volume, guid, _AT, 8 * _ROOM)
            )
        return {one - 1 for (one,) in struct.iter_unpack("<Q", found) if one}
    path = driver.facts().view
    if guid is not None:
        [path] = [one.path for one in driver.snapshots() if one.guid == guid]
    return numbers((Path(path) / FILE).read_bytes())


class Lost(Exception):
    """Lines that were acknowledged and are nowhere."""


class Game:
    """A mirror, a writer, and switches one after another."""

    def __init__(self, world: World, log: Path, seed: int) -> None:
        self.world = world
        self.service: Service = world.service
        self.log = log
        self.chance = random.Random(seed)
        self.switches = 0
        self.refused = 0
        #: Lines in what was kept aside and looked at.
        self.seen_aside: set[int] = set()

    def ends(self) -> tuple[Driver, Driver]:
        status = self.world.status()
        source, destination = (
            driver_at(self.world.lab, status[end]) for end in ("source", "destination")
        )
        return source, destination

    def acknowledged(self) -> set[int]:
        return numbers(self.log.read_bytes()) if self.log.exists() else set()

    def read(self, driver: Driver, guid: str | None) -> set[int]:
        return read_lines(driver, guid)

    def persist(self, verb: Callable[[], object]) -> None:
        """A verb is refused while the writer has its file open; it is tried again, as a person
        would.
        """
        for _ in range(200):
            try:
                verb()
            except (Refused, Busy):
                self.refused += 1
                continue
            self.switches += 1
            return
        raise AssertionError("it was refused 200 times")

    def check(self, *, planned: bool) -> None:
        written = self.acknowledged()
        source, destination = self.ends()
        live = self.read(source, None)
        if planned and (missing := written - live - self.seen_aside):
            raise Lost(f"a planned reverse left {len(missing)} lines behind: {sorted(missing)[:9]}")
        if destination.facts().role is Role.LIVE:
            live |= self.read(destination, None)
        for driver in (source, destination):
            for one in driver.snapshots():
                if one.kind is SnapshotKind.DIVERGED:
                    self.seen_aside |= self.read(driver, one.guid)
                    with driver.lock("test"):
                        driver.delete_snapshot(one.guid)
        missing = written - live - self.seen_aside
        if missing:
            raise Lost(f"{len(missing)} acknowledged lines are nowhere: {sorted(missing)[:9]}")

    def switch(self) -> None:
        """One of the verbs, from a mirror that works to one that does."""
        service = self.service
        verb = self.chance.choice(["reverse", "reverse", "resync", "restore", "reverse broken"])
        if verb == "reverse":
            self.persist(lambda: service.reverse(NAME, yes=True))
            self.check(planned=True)
            return
        if verb == "restore":
            self.persist(lambda: service.restore_all(NAME, snapshot=None, yes=True))
        else:
            service.break_off(NAME)
            name = verb.partition(" ")[0]
            self.persist(lambda: getattr(service, name)(NAME, yes=True))
        self.check(planned=False)


@contextmanager
def game(kind: str, folder: Path, seed: int) -> Iterator[Game]:
    with open_lab(f"lab_{kind}", folder) as lab:
        world = World(lab, folder / "home")
        source, destination = lab.source(), lab.destination()
        if kind == "btrfs":
            (Path(source.facts().view) / FILE).touch()
        world.initialized()
        log = folder / "acknowledged"
        places = [source.facts().view, destination.facts().view]
        program = _BTRFS if kind == "btrfs" else _BLOCK
        writer = subprocess.Popen([sys.executable, "-c", program, str(log), *places])
        try:
            yield Game(world, log, seed)
            assert writer.poll() is None, "the writer has not ended by itself"
        finally:
            writer.kill()
            writer.wait()
            world.clean_up()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.failover.switches")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--kind", choices=["btrfs", "block"], default="btrfs")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        game(chosen.kind, Path(folder), chosen.seed) as played,
    ):
        while played.switches < chosen.count:
            played.switch()
        lines = len(played.acknowledged())
    btrfs.close_shared()
    print(
        f"seed {chosen.seed}: {played.switches} switches of {chosen.kind}, {lines} acknowledged "
        f"lines, {played.refused} refusals: none lost"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
