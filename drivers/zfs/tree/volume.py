"""A tree as a volume: its facts and snapshots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from mirrord.core.errors import MirrordError, Refused
from mirrord.core.model import (
    Role,
    Snapshot,
    SnapshotKind,
    VolumeFacts,
)
from mirrord.core.relationship import Relationship
from mirrord.core.units import format_few
from mirrord.drivers import refusals as texts
from mirrord.drivers import snapshottrees
from mirrord.drivers.contract import Clones, Driver
from mirrord.drivers.memberstreams import MEMBERS_MAX
from mirrord.drivers.pins import demand_free
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import (
    locking,
    marks,
    mounting,
    names,
    relationships,
    transfer_record,
)
from mirrord.drivers.zfs.dataset.marks import SnapshotMark
from mirrord.drivers.zfs.driver import ZfsDriver
from mirrord.drivers.zfs.snapshots import deleting, listing, listing_cache
from mirrord.drivers.zfs.tree import commit as tree_commit
from mirrord.drivers.zfs.tree import failover as tree_failover
from mirrord.drivers.zfs.tree import layout, operation_record
from mirrord.drivers.zfs.tree.layout import Tree
from mirrord.system import clock, locks

_TRIES = 3


class TreeVolume(Driver, Clones):
    """A dataset and its descendants. location: `pool/dataset`, the root of the tree."""

    def __init__(self, location: str) -> None:
        super().__init__(names.check_dataset(location, f"zfs-tree:{location}"))

    @property
    def _root(self) -> ZfsDriver:
        """The root as a single dataset; a new object each time, without cached facts."""
        return ZfsDriver(self.location)

    def _look(self, *, beside: bool = False) -> Tree:
        return layout.load(self.location, str(self), beside=beside)

    def facts(self) -> VolumeFacts:
        """See `Driver.facts`. The facts of the root are those of the tree."""
        facts = self._root.facts()._replace(kind=self.kind)
        rollback = operation_record.rollback(self.location)
        begun = operation_record.transfer(self.location)
        notes = facts.notes + self._unseen(facts.role)
        if rollback is not None:
            notes += ("A rollback to an older snapshot is unfinished; the next command ends it.",)
            facts = facts._replace(role=Role.MIRROR, mirror_id=rollback.mirror_id)
        if begun is not None and self._in_between(begun):
            notes += ("An update is partially committed: some of its datasets show the new state.",)
        aside = self._set_aside() if facts.role in (Role.MIRROR, Role.LIVE) else []
        if aside:
            notes += (f"Datasets that were removed from the tree are kept as {format_few(aside)}.",)
        return facts._replace(notes=notes)

    def _unseen(self, role: Role) -> tuple[str, ...]:
        """A note on members that cannot be read because their key is not loaded."""
        if role not in (Role.MIRROR, Role.LIVE):
            return ()
        words = ["zfs", "list", "-Hr", "-t", "filesystem", "-o", "keystatus,name", self.location]
        rows = [line.split("\t") for line in command.result(words).output.splitlines()]
        closed = [
            name
            for status, name in rows
            if status == "unavailable" and layout.is_inside(self.location, name)
        ]
        if not closed:
            return ()
        return (f"The encryption key of {format_few(closed)} is not loaded ('zfs load-key').",)

    def _in_between(self, begun: operation_record.Transfer) -> bool:
        tree = self._look()
        received = sum(tree.holder(one.guid) is not None for one in begun.manifest.members)
        return received > 0 and tree.holder(begun.request.snapshot.guid) is None

    def _set_aside(self) -> list[str]:
        parent, start = names.parent_of(self.location), self.location + names.MARKER
        words = ["zfs", "list", "-H", "-d", "1", "-t", "filesystem,volume", "-o", "name", parent]
        found = command.result(words).output.splitlines()
        return [name for name in found if name.startswith(start) and not layout.is_waiting(name)]

    @contextlib.contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        with locks.exclusive(locking.lock_file(self.location, "lock"), purpose, what=str(self)):
            yield True

    # The relationship: the root's

    def relationships(self) -> dict[str, Relationship | None]:
        """See `Driver.relationships`."""
        return self._root.relationships()

    def relationship(self, mirror_id: str) -> Relationship | None:
        """See `Volume.relationship`."""
        root = self._root
        root.fence = self.fence
        return root.relationship(mirror_id)

    def _relate(self, record: Relationship) -> None:
        relationships.write(self.location, record, str(self))

    def _unrelate(self, mirror_id: str) -> None:
        relationships.remove(self.location, mirror_id, str(self))

    # Snapshots

    def snapshots(self) -> list[Snapshot]:
        """See `Driver.snapshots`."""
        return self._root.snapshots()

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Driver.own_snapshots`: those of the root, from `zfs snapshot -r`."""
        return self._root.own_snapshots(patterns)

    def _live(self) -> Tree:
        if self._root.facts().role is not Role.LIVE:
            raise texts.not_live(str(self))
        tree = self._look()
        for name in tree.mirrored():
            missing = mounting.missing(tree.datasets[name])
            if missing is not None:
                raise missing
        return tree

    def take_snapshot(self, name: str) -> Snapshot:
        """See `Driver.take_snapshot`: atomic for all members. All are held."""
        where = str(self)
        names.check_snapshot(name, where)
        mark = SnapshotMark(SnapshotKind.REFERENCE, "", clock.now_ns()).text()
        for number in range(_TRIES):
            tree = self._live()
            members = tree.mirrored()
            check_count(members, where)
            full = [f"{dataset}@{name}" for dataset in members]
            words = [
                "-o",
                f"{marks.SNAPSHOT}={mark}",
                "-o",
                f"{layout.CONTENTS}={tree.digest()}",
            ]
            try:
                arguments = ["zfs", "snapshot", *words, *full]
                command.lenient("ZFS:TREE:SNAPSHOT", arguments, where, "already exists")
                break
            except MirrordError:
                if number + 1 == _TRIES or self._look().mirrored() == members:
                    raise  # otherwise a child was added or removed at that moment
        tree = self._look()
        entry = next((one for one in tree.own(self.location) if one.name == name), None)
        if entry is None or entry.mark is None or entry.mark.transfer:
            raise Refused(
                f"another snapshot with the name {name} exists",
                where=where,
                why="mirrord did not take it",
            )
        loose = [one for one in tree.together(entry).values() if not one.holds]
        tree_commit.hold(loose, where)
        listing_cache.drop(self.location)
        return listing.snapshot_of(entry, "")

    def delete_snapshot(self, guid: str) -> None:
        """See `Driver.delete_snapshot`: of all members, the root's last."""
        where, tree = str(self), self._look(beside=True)
        entry = tree.root_entry(guid)
        if entry is None:
            return
        if entry.mark is None:
            raise Refused("cannot delete a user snapshot", where=where, why=entry.full)
        if self._root.facts().shown == guid:
            raise Refused(
                "the snapshot is what the destination shows",
                where=where,
                why=entry.name,
                hint="It can be deleted when the destination shows a newer one.",
            )
        found = list(tree.together(entry).values())
        root = tree.datasets.get(self.location)
        pins = snapshottrees.pinned(transfer_record.trees(self.location), root.pins if root else {})
        demand_free(pins, [one.guid for one in found], entry.name, where)
        mark = root.mark if root else None
        listing_cache.drop(self.location)
        deleting.delete_all([*found[1:], found[0]], mark.copy if mark else "", where)

    def pin(self, mirror_id: str, guids: Sequence[str]) -> None:
        """See `Driver.pin`: the root's snapshot represents all of them."""
        self._root.pin(mirror_id, guids)

    def members(self, guid: str) -> dict[str, str]:
        """See `Driver.members`."""
        tree = self._look(beside=True)
        entry = texts.demand_snapshot(tree.root_entry(guid), str(self), guid)
        found = tree.together(entry)
        return {one.guid: tree.path(name) for name, one in found.items()}

    def changed_since(self, guid: str) -> bool:
        """See `Driver.changed_since`. An added, removed or renamed dataset is also a change."""
        where, tree = str(self), self._live()
        entry = next((one for one in tree.own(self.location) if one.guid == guid), None)
        if entry is None:
            if tree.root_entry(guid) is None and self._look(beside=True).root_entry(guid) is None:
                raise texts.snapshot_missing(where, guid)
            return True
        words = ["zfs", "get", "-Hp", "-o", "value", layout.CONTENTS, entry.full]
        if command.run(words, where).strip() != tree.digest():
            return True
        return bool(tree_failover.changed(tree, tree.together(entry), where))

    def _finish_pending(self) -> None:
        """End an unfinished operation: a rollback is finished, a transfer is discarded."""
        rollback = operation_record.rollback(self.location)
        begun = operation_record.transfer(self.location)
        if rollback is not None:
            tree_failover.finish(self._look(beside=True), rollback, None, str(self))
        if begun is not None:
            tree_commit.discard(self._root, begun, str(self))


def check_count(members: list[str], where: str) -> None:
    """Refuse a tree with more datasets than a stream can have."""
    if len(members) > MEMBERS_MAX:
        raise Refused(
            f"the tree has {len(members)} datasets",
            where=where,
            why=f"at most {MEMBERS_MAX} can be mirrored as one volume",
            hint=f"Mirror parts of it, or exclude some: zfs set {layout.EXCLUDE}=off DATASET",
        )
