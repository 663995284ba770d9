"""The snapshots of a volume, with those of what was set aside for it: one `zfs list`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks
from mirrord.drivers.zfs.dataset.marks import SnapshotMark

COLUMNS = f"name,guid,createtxg,creation,defer_destroy,userrefs,clones,{marks.SNAPSHOT}"
_NANO = 1_000_000_000


class Entry(NamedTuple):
    """A snapshot (`pool/ds@name`) or a bookmark (`pool/ds#name`) as ZFS knows it.

    order: the transaction group that created it here. created_ns: by the source's clock, in full
    seconds. going: its destroy is deferred until the last clone or hold is gone. holds: how many.
    mark: that of mirrord; marked: the mark is a property of the snapshot itself.
    """

    dataset: str
    name: str
    guid: str
    order: int
    created_ns: int
    going: bool
    holds: int
    clones: str
    mark: SnapshotMark | None
    bookmark: bool = False
    marked: bool = False

    def line(self) -> str:
        """As `zfs list` prints it."""
        words = (
            self.full, self.guid, str(self.order), str(self.created_ns // _NANO),
            "on" if self.going else "off", str(self.holds), self.clones or "-",
            self.mark.text() if self.mark and self.marked else "-",
        )  # fmt: skip
        return "\t".join(words)

    @property
    def full(self) -> str:
        """The name as `zfs` takes it."""
        return f"{self.dataset}{'#' if self.bookmark else '@'}{self.name}"


class Listing(NamedTuple):
    """All of a volume's snapshots and bookmarks, oldest first."""

    dataset: str
    entries: tuple[Entry, ...]

    def snapshots(self) -> list[Entry]:
        """The snapshots, without bookmarks and deferred destroys."""
        return [one for one in self.entries if not one.bookmark and not one.going]

    def own(self) -> list[Entry]:
        """The snapshots of the volume itself, without what was set aside."""
        return [one for one in self.snapshots() if one.dataset == self.dataset]

    def ours(self) -> list[Entry]:
        """Those that mirrord took or received."""
        return [one for one in self.snapshots() if one.mark is not None]

    def with_one(self, old: Entry, now: Entry | None) -> Listing:
        """The same with one snapshot as it is now; it is removed if None, or if another has its
        name.
        """
        entries = [one for one in self.entries if one.full != old.full]
        if now is not None and now.guid == old.guid:
            entries.append(now._replace(mark=now.mark or old.mark))
        return made(self.dataset, entries, None)

    def history(self) -> dict[str, int]:
        """The datasets with the volume's history (itself, and those it is a clone of), each with
        the newest `order` that belongs to that history. What a clone begins with is part of it even
        when its destroy is deferred.
        """
        found = {self.dataset: 1 << 64}
        name = self.dataset
        while True:
            begun = (one for one in self.entries if name in one.clones.split(","))
            origin = next(begun, None)
            if origin is None or origin.dataset in found:
                return found
            name = origin.dataset
            found[name] = origin.order

    def find(self, guid: str) -> Entry | None:
        """The snapshot with that guid; the volume's own rather than another copy."""
        found = [one for one in self.snapshots() if one.guid == guid]
        return next((one for one in found if one.dataset == self.dataset), next(iter(found), None))

    def bookmark(self, guid: str) -> Entry | None:
        """The bookmark of the snapshot with that guid."""
        return next((one for one in self.entries if one.bookmark and one.guid == guid), None)

    def is_past(self, one: Entry) -> bool:
        """Whether it belongs to the volume's history, and not only to what was set aside."""
        return one.order <= self.history().get(one.dataset, -1)

    def named(self, name: str) -> Entry | None:
        """The volume's own snapshot of that name."""
        return next((one for one in self.own() if one.name == name), None)


def load(dataset: str, kept: Iterable[str], staging: ReceiveRequest | None, where: str) -> Listing:
    """List them. staging: the last transfer: its snapshot belongs to mirrord as soon as it exists,
    marked or not. A missing set-aside dataset is no error.
    """
    others = list(kept)
    arguments = [
        "zfs", "list", "-Hp", "-t", "snapshot,bookmark", "-d", "1", "-o", COLUMNS, dataset, *others
    ]  # fmt: skip
    done = command.result(arguments)
    if done.status != 0 and not _only_gone(done.errors, others):
        raise command.failure(where, arguments, done.errors)
    return made(dataset, parse(done.output), staging)


def made(dataset: str, entries: Iterable[Entry], staging: ReceiveRequest | None) -> Listing:
    """A listing of these, in their order."""
    found = [_with_staging(one, staging) for one in entries]
    found.sort(key=lambda one: (one.order, one.bookmark))
    return Listing(dataset, tuple(found))


def load_one(full: str, where: str) -> Entry | None:
    """One snapshot by its full name, as it is now; None when it does not exist."""
    arguments = ["zfs", "list", "-Hp", "-t", "snapshot", "-o", COLUMNS, full]
    done = command.result(arguments)
    if done.status != 0:
        if "does not exist" in done.errors or "could not find" in done.errors:
            return None
        raise command.failure(where, arguments, done.errors)
    found = parse(done.output)
    return found[0] if found else None


def _only_gone(errors: str, others: Sequence[str]) -> bool:
    lines = [line for line in errors.splitlines() if line.strip()]
    return bool(lines) and all(
        "does not exist" in line and any(f"'{name}'" in line for name in others) for line in lines
    )


def parse(output: str) -> list[Entry]:
    """The entries in the output of `zfs list -Hp` with `COLUMNS`."""
    found = []
    for line in output.splitlines():
        full, guid, order, created, going, holds, clones, mark = line.split("\t")
        bookmark = "@" not in full
        dataset, _, name = full.partition("#" if bookmark else "@")
        ours = None if bookmark or mark == "-" else marks.parse_snapshot(mark)
        found.append(
            Entry(
                dataset,
                name,
                guid,
                int(order),
                int(created) * _NANO,
                going in ("on", "1"),
                int(holds) if holds.isdigit() else 0,
                "" if clones == "-" else clones,
                ours,
                bookmark,
                marked=ours is not None,
            )
        )
    return found


def reread(one: Entry) -> Entry:
    """An entry as it is parsed from its line."""
    whole = one.created_ns % _NANO == 0
    return one if one.mark is None and not one.marked and whole else parse(one.line())[0]


def _with_staging(one: Entry, staging: ReceiveRequest | None) -> Entry:
    if staging is None or one.bookmark or one.mark is not None:
        return one
    if one.guid != staging.snapshot.guid:
        return one
    snapshot = staging.snapshot
    mark = SnapshotMark(snapshot.kind, staging.transfer_id, snapshot.taken_at_ns)
    return one._replace(mark=mark)


def snapshot_of(one: Entry, folder: str) -> Snapshot:
    """As the contract has it. folder: where its dataset is mounted, or ""."""
    kind, taken_ns = SnapshotKind.OWN, one.created_ns
    if one.mark is not None:
        kind, taken_ns = one.mark.kind, one.mark.taken_at_ns
    return Snapshot(
        guid=one.guid,
        name=one.name,
        kind=kind,
        order=one.order,
        taken_at_ns=taken_ns,
        path=f"{folder}/.zfs/snapshot/{one.name}" if folder else "",
    )


def matches(one: Entry, patterns: Sequence[str]) -> bool:
    """Whether its name matches one of the patterns of a definition."""
    return any(fnmatchcase(one.name, pattern) for pattern in patterns)
