"""Mirrors on real pools that things happen to: of a dataset, and of a tree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.contract.zfs import ZfsLab, zfs_lab
from tests.support.world import NAME
from tests.zfsvm.bridge import Bridged
from tests.zfsvm.guest import PYTHON, TREE, Guest

DISK_BYTES = 8 << 20


Kind = TypeVar("Kind", bound=Bridged)


class Trouble(Bridged):
    """A mirror of a file system; `place` is its destination."""

    def mirrored(self, place: str = "") -> Trouble:
        """Initialized to that dataset."""
        self.place = place or self.lab.destination().location
        self.service.create(NAME, f"zfs://there/{self.source}", f"zfs://there/{self.place}")
        self.service.initialize(NAME)
        return self

    def change(self, seed: int = 1) -> None:
        self.lab.change(self.lab.source(), seed)

    def shown(self) -> str:
        return self.lab.content(self.lab.driver(self.place))

    def update(self) -> object:
        return self.service.update(NAME)

    def goes_on(self) -> None:
        """The next update brings everything."""
        self.update()
        assert self.shown() == self.source_content()
        assert self.status()["healthy"]


class Trees(Bridged):
    """A tree `home` with `a`, `a/deep`, `b` and the volume `disk`, and a place for its mirror."""

    def __init__(self, lab: ZfsLab, folder: Path) -> None:
        super().__init__(lab, folder)
        self.place = lab.destination().location
        for child in ("a", "a/deep", "b"):
            self.run("zfs", "create", f"{self.source}/{child}")
            self.write(f"{child}/file", child)
        self.run("zfs", "create", "-s", "-b", "8K", "-V", str(DISK_BYTES), f"{self.source}/disk")
        self.change_disk(-1)

    def write(self, path: str, text: str, root: str = "") -> None:
        """A file in the source, or in `root`."""
        self.guest.user("write_text", f"/{root or self.source}/{path}", text)

    def read(self, path: str, root: str = "") -> str:
        """A file of the destination, or of `root`."""
        return str(self.guest.user("read_text", f"/{root or self.place}/{path}"))

    def change_disk(self, seed: int) -> None:
        device = f"/dev/zvol/{self.source}/disk"
        self.guest.user("volume_change", device, seed, DISK_BYTES)

    def mirrored(self) -> Trees:
        """Initialized."""
        ends = f"zfs://there/{self.source}", f"zfs://there/{self.place}"
        self.service.create(NAME, *ends, recursive=True)
        self.service.initialize(NAME)
        return self

    def destroy(self, child: str, root: str = "") -> None:
        """As its owner does, "" for the root: mirrord holds the snapshots that it needs."""
        gone = f"{root or self.source}/{child}".rstrip("/")
        words = ["zfs", "list", "-Ht", "snapshot", "-o", "name,userrefs", gone]
        for line in self.run(*words).splitlines():
            name, holds = line.split("\t")
            if holds != "0":
                self.run("zfs", "release", "mirrord", name)
        self.run("zfs", "destroy", "-r", gone)

    def update(self) -> Any:
        return self.service.update(NAME)

    def children(self, root: str) -> list[str]:
        """Names of all below a dataset, without its own."""
        listed = self.run("zfs", "list", "-Hr", "-t", "filesystem,volume", "-o", "name", root)
        return sorted(name[len(root) :].lstrip("/") for name in listed.splitlines())

    def digests(self, root: str) -> tuple[str, str]:
        """Of all that a user sees below a root."""
        disk = f"/dev/zvol/{root}/disk"
        return (
            str(self.guest.user("digest", f"/{root}")),
            str(self.guest.user("volume_digest", disk)),
        )

    def the_same(self) -> None:
        """The destination shows what the source has."""
        assert self.children(self.place) == self.children(self.source)
        assert self.digests(self.place) == self.digests(self.source)
        assert not [note for note in self.status()["notes"] if "in between" in note]

    def beside(self, root: str) -> list[str]:
        """What lies beside a root."""
        parent = root.rpartition("/")[0]
        listed = self.run("zfs", "list", "-Hd1", "-t", "filesystem,volume", "-o", "name", parent)
        return [name for name in listed.splitlines() if name.startswith(f"{root}.mirrord-")]

    def mend(self) -> None:
        """All is well again; a new process takes over."""
        self.close_links()
        self.bridge.behave()
        self.again()


def _made(kind: type[Kind], folder: Path) -> Iterator[Kind]:
    with zfs_lab(volume=False, large=False) as lab:
        made = kind(lab, folder)
        yield made
        made.clean_up()


@pytest.fixture
def trouble(tmp_path: Path) -> Iterator[Trouble]:
    yield from _made(Trouble, tmp_path)


@pytest.fixture
def trees(tmp_path: Path) -> Iterator[Trees]:
    yield from _made(Trees, tmp_path)


def inside(guest: Guest, script: str, *words: str) -> Any:
    """What a script prints as its last line, as JSON."""
    said = guest.run("env", f"PYTHONPATH={TREE}", PYTHON, "-c", script, *words)
    return json.loads(said.splitlines()[-1])
