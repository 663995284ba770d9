"""A source volume and a destination, and whole updates between them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from mirrord.core.model import ReceiveRequest, Snapshot
from mirrord.drivers.btrfs import receivers
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.btrfs.known import Known
from tests.support import btrfs

MIRROR = "m1"


@dataclass
class Pair:
    """The paths of both ends; drivers are made afresh, as a service does for each verb."""

    home: Path
    backup: Path
    known: Known = field(default_factory=Known)
    #: What applies streams at the destination.
    receiver: str = receivers.DEFAULT

    @property
    def source(self) -> BtrfsDriver:
        return BtrfsDriver(str(self.home), self.known)

    @property
    def destination(self) -> BtrfsDriver:
        return BtrfsDriver(str(self.backup), self.known, receiver=lambda: self.receiver)

    @property
    def view(self) -> Path:
        return self.backup / "current"

    def initialize(self) -> Snapshot:
        self.destination.prepare(MIRROR)
        return self.update(None, "base")

    def update(self, base: Snapshot | None, name: str) -> Snapshot:
        return update(self.source, self.destination, base, name)


def request(name: str, base: Snapshot | None, snapshot: Snapshot) -> ReceiveRequest:
    return ReceiveRequest(name, MIRROR, base.guid if base else None, snapshot)


def stream_of(driver: BtrfsDriver, base: Snapshot | None, snapshot: Snapshot) -> bytes:
    whole = b""
    with driver.send(base.guid if base else None, snapshot.guid) as stream:
        while chunk := stream.read():
            whole += bytes(chunk)
    return whole


def transfer(
    source: BtrfsDriver, destination: BtrfsDriver, base: Snapshot | None, snapshot: Snapshot
) -> None:
    name = f"t-{snapshot.name}"
    with (
        destination.receive(request(name, base, snapshot)) as receiver,
        source.send(base.guid if base else None, snapshot.guid) as stream,
    ):
        while chunk := stream.read():
            receiver.write(chunk)
        receiver.finish()
    destination.commit(name, show=True)


def update(
    source: BtrfsDriver, destination: BtrfsDriver, base: Snapshot | None, name: str
) -> Snapshot:
    snapshot = source.take_snapshot(name)
    transfer(source, destination, base, snapshot)
    return snapshot


def run(*command: str | Path) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, errors="surrogateescape"
    ).stdout


def same(one: Path, other: Path) -> bool:
    return btrfs.digest(one) == btrfs.digest(other)
