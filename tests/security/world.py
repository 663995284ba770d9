"""A host with a real sshd, and peers that log in there with a key and its forced command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mirrord.core.model import Endpoint, ReceiveRequest, Snapshot
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.link.connect import Link
from mirrord.link.driver import RemoteDriver
from mirrord.link.session import Session
from mirrord.system.waiting import Waiting
from tests.support import btrfs
from tests.support.sshd import Sshd

MIRROR = "m1"


class Host:
    """The host that is attacked: what its agents keep is in `home`."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.sshd = Sshd(folder / "sshd").start()

    def close(self) -> None:
        self.sshd.stop()

    def line(self, *arguments: str, umask: str = "") -> str:
        """The options of an authorized key, as `mirrord host add` prints them."""
        words = [
            "env",
            f"MIRRORD_HOME={self.home}",
            f"PYTHONPATH={Path(__file__).parents[2]}",
            sys.executable,
            "-m",
            "mirrord",
            "agent",
            *arguments,
        ]
        command = " ".join(words)
        return f'restrict,command="{f"umask {umask}; exec " if umask else ""}{command}"'

    @contextmanager
    def peer(self, *arguments: str, umask: str = "", **changes: object) -> Iterator[Peer]:
        """Somebody who logs in with the one key that there is, bound by these arguments."""
        self.sshd.authorize(self.line(*arguments, umask=umask))
        link = Link(self.sshd.host(**{"command": ("mirrord", "agent"), **changes}))
        try:
            link.session(Waiting())
            yield Peer(link)
        finally:
            link.close()


class Peer:
    """A client that may say whatever the protocol can carry."""

    def __init__(self, link: Link) -> None:
        self.link = link

    @property
    def session(self) -> Session:
        return self.link.session(Waiting())

    def call(self, method: str, *words: object) -> object:
        return self.session.call(method, *words, timeout_s=90)

    def open(self, path: Path | str, kind: str = "btrfs") -> int:
        answer = self.call("open", kind, str(path))
        assert isinstance(answer, list)
        return int(answer[0])

    def volume(self, path: Path, kind: str = "btrfs") -> RemoteDriver:
        return RemoteDriver.of(Endpoint(kind, str(path), "dr"), self.link)


def stream_of(source: BtrfsDriver, snapshot: Snapshot, base: Snapshot | None = None) -> bytes:
    with source.send(base.guid if base else None, snapshot.guid) as stream:
        pieces = []
        while piece := stream.read():
            pieces.append(bytes(piece))
    return b"".join(pieces)


def deliver(
    there: RemoteDriver,
    data: bytes,
    snapshot: Snapshot,
    transfer: str,
    base: Snapshot | None = None,
) -> None:
    """Receive it, up to a complete staging."""
    request = ReceiveRequest(transfer, MIRROR, base.guid if base else None, snapshot)
    with there.receive(request) as receiver:
        receiver.write(data)
        receiver.finish()


class Backup:
    """A destination with two snapshots."""

    def __init__(self, root: Path, there: RemoteDriver) -> None:
        self.root, self.there = root, there
        self.source = BtrfsDriver(str(root / "home"))
        there.prepare(MIRROR)
        self.one = self.add("s1", None, "t1")
        self.before = self.content()
        (root / "home/file").write_text("second")
        self.two = self.add("s2", self.one, "t2")
        self.after = self.content()

    def add(self, name: str, base: Snapshot | None, transfer: str) -> Snapshot:
        snapshot = self.source.take_snapshot(name)
        deliver(self.there, stream_of(self.source, snapshot, base), snapshot, transfer, base)
        self.there.commit(transfer, show=True)
        return snapshot

    def content(self, name: str = "current") -> str:
        path = self.root / "backup/home"
        if name != "current":
            path = path / f".mirrord/current/snapshots/{name}"
        return btrfs.digest(path / name)

    def intact(self) -> None:
        assert self.content() == self.content("s2") == self.after
        assert self.content("s1") == self.before
        assert [one.intact for one in self.there.snapshots()] == [True, True]


def listing(folder: Path) -> Mapping[str, tuple[int, int, bytes]]:
    """All that is in a folder: mode, owner and content."""
    found = {}
    for inside, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(inside, name)
            facts = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path)] = facts.st_mode, facts.st_uid, content
    return found
