"""The datasets of a tree, their snapshots, and the datasets beside it that belong to it.

A snapshot of a tree consists of the root's, whose guid it has, and those of the other members that
belong to it: taken in the same transaction group with the same name, or received by one transfer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, names, place
from mirrord.drivers.zfs.dataset.place import Dataset, Place
from mirrord.drivers.zfs.snapshots import listing
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing

#: "off" on a descendant of the root: it and its descendants are not mirrored.
EXCLUDE = "mirrord:mirror"
#: On the root's snapshot: which datasets were in the tree when it was taken (`Tree.digest`).
CONTENTS = "mirrord:tree"
#: Datasets that wait to take their place are beside the root, with this in their names.
_WAITING = f"{names.MARKER}tree-"
_PROPERTIES = (
    "type", "guid", "written", "mountpoint", "mounted", "readonly", "canmount", "overlay",
    "used", "available", "origin", "inconsistent", "volblocksize", "receive_resume_token",
    "encryption", "keystatus", marks.MARK, marks.STAGING, marks.FROZEN, marks.PINS,
    EXCLUDE,
)  # fmt: skip


class Tree(NamedTuple):
    """datasets: by name, including those beside the root; listings: their snapshots."""

    root: str
    datasets: Mapping[str, Dataset]
    listings: Mapping[str, Listing]

    def inside(self) -> list[str]:
        """The datasets of the tree, parents first."""
        found = [name for name in self.datasets if is_inside(self.root, name)]
        return sorted(found, key=lambda name: (name.count("/"), name))

    def beside(self) -> list[str]:
        """The datasets that wait or were set aside."""
        return [name for name in self.datasets if not is_inside(self.root, name)]

    def mirrored(self) -> list[str]:
        """The mirrored datasets of the tree: without excluded ones and their descendants."""
        taken: list[str] = []
        for name in self.inside():
            there = self.datasets[name]  # (a partially received one has no snapshot yet)
            out = there.get(EXCLUDE) == "off" or there.get("inconsistent") == "1"
            if name == self.root or (not out and names.parent_of(name) in taken):
                taken.append(name)
        return taken

    def path(self, name: str) -> str:
        """The path of a dataset in the tree; "" for the root."""
        return name[len(self.root) + 1 :]

    def place(self, name: str) -> Place:
        """A dataset for the modules that work on single ones."""
        return Place(name, self.datasets.get(name), None, None, None, "")

    def own(self, name: str) -> list[Entry]:
        """The snapshots of a dataset, oldest first."""
        return self.listings[name].own() if name in self.listings else []

    def root_entry(self, guid: str) -> Entry | None:
        """The root's snapshot with that guid, inside or beside."""
        every = (self.root, *self.beside())
        return next((one for name in every for one in self.own(name) if one.guid == guid), None)

    def together(self, root: Entry) -> dict[str, Entry]:
        """The members' snapshots in a snapshot of the tree, by dataset, the root's first."""
        found = {root.dataset: root}
        for name, listed in self.listings.items():
            for one in listed.own():
                if name != root.dataset and _belong(root, one):
                    found[name] = one
        return found

    def holder(self, guid: str) -> str | None:
        """The dataset that has the snapshot with that guid; inside rather than beside."""
        every = (*self.inside(), *self.beside())
        return next((n for n in every if any(one.guid == guid for one in self.own(n))), None)

    def digest(self) -> str:
        """A digest of the mirrored datasets and their paths: it changes when a child is added,
        removed or renamed.
        """
        lines = [f"{self.path(name)}\t{self.datasets[name].guid}\n" for name in self.mirrored()]
        digest = hashlib.sha256("".join(lines).encode()).hexdigest()[:32]
        return f"{len(lines)} {digest}"


def is_inside(root: str, name: str) -> bool:
    """Whether a dataset is the root or a descendant, and not internal to mirrord."""
    return name == root or (name.startswith(f"{root}/") and names.MARKER not in name)


def _belong(root: Entry, one: Entry) -> bool:
    transfer = root.mark.transfer if root.mark else ""
    if transfer:
        return one.mark is not None and one.mark.transfer == transfer
    same = (one.name, one.order) == (root.name, root.order)
    return same and (one.mark is None or not one.mark.transfer)


def waiting(root: str, guid: str) -> str:
    """The name under which the dataset with that snapshot waits to take its place in the tree."""
    return f"{root}{_WAITING}{int(guid):x}"


def is_waiting(name: str) -> bool:
    """Whether it waits, or is a descendant of one that does."""
    return _WAITING in name


def load(root: str, where: str, *, beside: bool = False) -> Tree:
    """Read all of a tree. beside: including the datasets beside it."""
    roots = [root, *(_beside(root) if beside else ())]
    words = ["zfs", "get", "-r", "-Hp", "-t", "filesystem,volume", "-o"]
    said = _answer([*words, "name,property,value,source", ",".join(_PROPERTIES), *roots], where)
    found = place.parse(said)
    if not found:
        return Tree(root, {}, {})
    words = ["zfs", "list", "-r", "-Hp", "-t", "snapshot,bookmark", "-o", listing.COLUMNS]
    entries: dict[str, list[Entry]] = {name: [] for name in found}
    for one in listing.parse(_answer([*words, *roots], where)):
        entries.setdefault(one.dataset, []).append(one)
    listings = {
        name: listing.made(name, entries[name], marks.parse_staging(each.local(marks.STAGING)))
        for name, each in found.items()
    }
    return Tree(root, found, listings)


def _beside(root: str) -> list[str]:
    parent = names.parent_of(root)
    words = ["zfs", "list", "-Hp", "-d", "1", "-t", "filesystem,volume", "-o", "name", parent]
    said = command.result(words)
    return [name for name in said.output.splitlines() if name.startswith(root + names.MARKER)]


def _answer(words: list[str], where: str) -> str:
    """The output of a command; missing datasets are no error."""
    done = command.result(words)
    errors = [line for line in done.errors.splitlines() if line.strip()]
    absent = errors and all(_is_absence(line) for line in errors)
    if done.status != 0 and not absent:
        raise command.failure(where, words, done.errors)
    return done.output


def _is_absence(line: str) -> bool:
    return any(text in line for text in ("does not exist", "no such pool", "no such dataset"))


def filesystems(tree: Tree, wanted: Iterable[str]) -> tuple[list[str], list[str]]:
    """The datasets that are file systems, and those that are volumes."""
    every = list(wanted)
    volumes = [name for name in every if tree.datasets[name].is_zvol]
    return [name for name in every if name not in volumes], volumes
