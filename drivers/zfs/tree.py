"""A dataset with all below it as one volume: `mirrord create --recursive`.

One atomic snapshot of all, one stream with a part for each member, one commit, one view. Each
member is sent and received like a single dataset (driver.py); what is said of the tree is said by
its root: the identity of a snapshot, the role, the mirror. The modules `tree_*` do the rest:

| module | does |
|---|---|
| tree_look | what is there, and which snapshots belong together |
| tree_stream, tree_receive | the one stream, and its members' receivers |
| tree_commit | all ENDs together, the root's at last; and giving up |
| tree_moves, tree_arrange | renames: children that moved, came, or went at the source |
| tree_failover | going live, and going back |
| tree_record | what was begun, so that a crash is ended by doing it again |
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Iterator
from typing import ClassVar

from mirrord.core.errors import MirrordError, Refused
from mirrord.core.model import (
    BlockStates,
    Delta,
    Divergence,
    FileChange,
    OpenWriter,
    ReceiveRequest,
    Role,
    Snapshot,
    SnapshotKind,
    Staging,
    VolumeFacts,
)
from mirrord.core.units import format_few
from mirrord.drivers import base as texts
from mirrord.drivers.base import Capability, Driver
from mirrord.drivers.zfs import (
    cache,
    command,
    compare,
    delegation,
    deleting,
    deltas,
    failover,
    freezing,
    listing,
    locking,
    marks,
    mounting,
    names,
    proof,
    receive,
    running,
    standing,
    stream,
    tree_arrange,
    tree_commit,
    tree_copies,
    tree_failover,
    tree_look,
    tree_receive,
    tree_record,
    tree_reinstate,
    tree_stream,
    writers,
)
from mirrord.drivers.zfs.driver import ZfsDriver
from mirrord.drivers.zfs.listing import Entry
from mirrord.drivers.zfs.marks import SnapshotMark
from mirrord.drivers.zfs.place import Dataset, look
from mirrord.drivers.zfs.stream import ZfsSendStream
from mirrord.drivers.zfs.tree_look import Tree
from mirrord.drivers.zfs.tree_stream import Manifest, Member, TreeSendStream
from mirrord.system import clock, locks

_TRIES = 3


class TreeDriver(Driver):
    """A dataset and all below it. location: `pool/dataset`, the root of the tree."""

    kind: ClassVar[str] = "zfs-tree"
    capabilities: ClassVar[Capability] = Capability.RESUME | Capability.COPY

    def __init__(self, location: str) -> None:
        super().__init__(names.check_dataset(location, f"zfs-tree:{location}"))

        self._freeze: freezing.Freeze | None = None

    @property
    def _root(self) -> ZfsDriver:
        """The root as a dataset by itself; a new one each time, as what it saw may have changed."""
        return ZfsDriver(self.location)

    def _look(self, *, beside: bool = False) -> Tree:
        return tree_look.load(self.location, str(self), beside=beside)

    def facts(self) -> VolumeFacts:
        """See `Driver.facts`. What is true of the root is true of the tree."""
        facts = self._root.facts()._replace(kind=self.kind)
        turn, begun = tree_record.turn(self.location), tree_record.transfer(self.location)
        notes = facts.notes + self._unseen(facts.role)
        if turn is not None:
            notes += ("It was being turned back to an older snapshot; the next command ends that.",)
            facts = facts._replace(role=Role.MIRROR, mirror_id=turn.mirror_id)
        if begun is not None and self._in_between(begun):
            notes += ("It is in between two updates: some of its datasets show the newer one.",)
        aside = self._set_aside() if facts.role in (Role.MIRROR, Role.LIVE) else []
        if aside:
            notes += (f"Datasets that left the tree are kept as {format_few(aside)}.",)
        return facts._replace(notes=notes)

    def _unseen(self, role: Role) -> tuple[str, ...]:
        """A note of the members that cannot be seen for want of a key."""
        if role not in (Role.MIRROR, Role.LIVE):
            return ()
        words = ["zfs", "list", "-Hr", "-t", "filesystem", "-o", "keystatus,name", self.location]
        rows = [line.split("\t") for line in command.result(words).output.splitlines()]
        closed = [
            name for status, name in rows
            if status == "unavailable" and tree_look.is_inside(self.location, name)
        ]  # fmt: skip
        if not closed:
            return ()
        return (f"The key of {format_few(closed)} is not loaded: 'zfs load-key'.",)

    def _in_between(self, begun: tree_record.Transfer) -> bool:
        tree = self._look()
        came = sum(tree.holder(one.guid) is not None for one in begun.manifest.members)
        return came > 0 and tree.holder(begun.request.snapshot.guid) is None

    def _set_aside(self) -> list[str]:
        parent, start = names.parent_of(self.location), self.location + names.MARKER
        words = ["zfs", "list", "-H", "-d", "1", "-t", "filesystem,volume", "-o", "name", parent]
        found = command.result(words).output.splitlines()
        return [name for name in found if name.startswith(start) and not tree_look.is_waiting(name)]

    @contextlib.contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        with locks.exclusive(locking.lock_file(self.location, "lock"), purpose, what=str(self)):
            yield True

    # Snapshots

    def snapshots(self) -> list[Snapshot]:
        """See `Driver.snapshots`."""
        return self._root.snapshots()

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Driver.own_snapshots`: those of the whole tree (`zfs snapshot -r`)."""
        return self._root.own_snapshots(patterns)

    def _live(self, *, mounted: bool = True) -> Tree:
        if self._root.facts().role is not Role.LIVE:
            raise texts.not_live(str(self))
        tree = self._look()
        for name in tree.mirrored():
            missing = mounting.missing(tree.datasets[name])
            if mounted and missing is not None:
                raise missing
        return tree

    def take_snapshot(self, name: str) -> Snapshot:
        """See `Driver.take_snapshot`: of all members at one moment. All are held."""
        where = str(self)
        names.check_snapshot(name, where)
        mark = SnapshotMark(SnapshotKind.REFERENCE, "", clock.now_ns()).text()
        for number in range(_TRIES):
            tree = self._live()
            members = tree.mirrored()
            _check_count(members, where)
            full = [f"{dataset}@{name}" for dataset in members]
            words = [
                "-o",
                f"{marks.SNAPSHOT}={mark}",
                "-o",
                f"{tree_look.CONTENTS}={tree.digest()}",
            ]
            try:
                arguments = ["zfs", "snapshot", *words, *full]
                command.lenient("ZFS:TREE:SNAPSHOT", arguments, where, "already exists")
                break
            except MirrordError:
                if number + 1 == _TRIES or self._look().mirrored() == members:
                    raise  # otherwise a child came or went in that moment
        tree = self._look()
        entry = next((one for one in tree.own(self.location) if one.name == name), None)
        if entry is None or entry.mark is None or entry.mark.transfer:
            raise Refused(
                f"a snapshot of the name {name} is there",
                where=where,
                why="mirrord did not take it",
            )
        loose = [one for one in tree.together(entry).values() if not one.holds]
        tree_commit.hold(loose, where)
        cache.drop(self.location)
        return listing.snapshot_of(entry, "")

    def delete_snapshot(self, guid: str) -> None:
        """See `Driver.delete_snapshot`: of all members, the root's at last."""
        where, tree = str(self), self._look(beside=True)
        entry = tree.root_entry(guid)
        if entry is None:
            return
        if entry.mark is None:
            raise Refused("the snapshot is its owner's", where=where, why=entry.full)
        if self._root.facts().shown == guid:
            raise Refused(
                "the snapshot is what the destination shows", where=where, why=entry.name,
                hint="It goes when a newer one is shown.",
            )  # fmt: skip
        found = list(tree.together(entry).values())
        root = tree.datasets.get(self.location)
        mark = root.mark if root else None
        cache.drop(self.location)
        deleting.delete_all([*found[1:], found[0]], mark.copy if mark else "", where)

    def members(self, guid: str) -> dict[str, str]:
        """See `Driver.members`."""
        tree = self._look(beside=True)
        entry = tree.root_entry(guid)
        if entry is None:
            raise texts.snapshot_missing(str(self), guid)
        found = tree.together(entry)
        return {one.guid: tree.path(name) for name, one in found.items()}

    def changed_since(self, guid: str) -> bool:
        """See `Driver.changed_since`. A dataset that came, went or moved is a change, too."""
        where, tree = str(self), self._live()
        entry = next((one for one in tree.own(self.location) if one.guid == guid), None)
        if entry is None:
            if tree.root_entry(guid) is None and self._look(beside=True).root_entry(guid) is None:
                raise texts.snapshot_missing(where, guid)
            return True
        words = ["zfs", "get", "-Hp", "-o", "value", tree_look.CONTENTS, entry.full]
        if command.run(words, where).strip() != tree.digest():
            return True
        return bool(tree_failover.changed(tree, tree.together(entry), where))

    # Source

    def _members(
        self, tree: Tree, base: str | None, incremental: str
    ) -> list[tuple[str, Entry | None, Entry]]:
        """(dataset, its snapshot in the base, its snapshot) of each member, the root first."""
        where, newer = str(self), tree.root_entry(incremental)
        if newer is None:
            raise texts.snapshot_missing(where, incremental)
        older = tree.root_entry(base) if base is not None else None
        if base is not None and older is None:
            raise texts.base_missing(where, base)
        before = tree.together(older) if older is not None else {}
        after = tree.together(newer)
        _check_count(list(after), where)
        return [
            (name, before.get(name), after[name])
            for name in sorted(after, key=lambda name: (name.count("/"), name))
        ]

    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """See `Driver.delta`: the sum over the members."""
        where, tree = str(self), self._look()
        found = []
        for name, older, newer in self._members(tree, base, incremental):
            accounts = compare.accounts(older, newer, where)
            if accounts is None:
                raise texts.snapshot_missing(where, newer.guid)
            one = deltas.between(
                tree.place(name), older, newer, accounts, where, states=states, files=files
            )
            found.append((tree.path(name), one))
        every = [one for _path, one in found]
        root = self._root.facts()
        total = root.used_bytes + root.free_bytes if states else 0
        return Delta(
            base, incremental, every[0].block_size,
            _sum(every, total) if states else None,
            sum(one.added_bytes for one in every), sum(one.send_bytes for one in every),
            all(one.exact for one in every), _changes(found) if files else None,
        )  # fmt: skip

    def send(
        self,
        base: str | None,
        incremental: str,
        *,
        checkpoint: dict[str, int | str] | None = None,
    ) -> TreeSendStream:
        """See `Driver.send`."""
        tree, where = self._look(), str(self)
        states = checkpoint or {}
        members = [
            (name, None if states.get(newer.guid) == tree_receive.WHOLE else older, newer)
            for name, older, newer in self._members(tree, base, incremental)
        ]
        done = {guid for guid, state in states.items() if state == tree_receive.DONE}
        sendings = {
            newer.guid: deltas.sending(tree.place(name), older, newer)
            for name, older, newer in members
        }
        paths = tree_stream.paths(tree.path(name) for name, _older, _newer in members)
        manifest = Manifest(
            tuple(
                Member(
                    paths[tree.path(name)], newer.guid, newer.name, older.guid if older else None,
                    newer.guid in done,
                )
                for name, older, newer in members
            )
        )  # fmt: skip

        def begin(member: Member) -> ZfsSendStream:
            sending = sendings[member.guid]
            found = tree_receive.checkpoint_of(checkpoint, member.guid)
            token = stream.check_token(found, sending, where)
            return ZfsSendStream(sending, f"zfs:{sending.incremental}", token)

        return TreeSendStream(manifest, begin)

    # Destination

    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """See `Driver.prepare`. New members are renamed into their places."""
        if self._root.facts().role is Role.ABSENT:
            parent = names.parent_of(self.location)
            if command.result(["zfs", "list", "-H", "-o", "name", parent]).status == 0:
                delegation.require(self.location, "destination", str(self), failover=True)
        self._root.prepare(mirror_id, in_place=in_place)

    def receive(self, request: ReceiveRequest) -> tree_receive.TreeReceiver:
        """See `Driver.receive`."""
        where, facts = str(self), self._root.facts()
        if facts.role is not Role.MIRROR:
            raise texts.not_a_mirror(where)
        if facts.mirror_id != request.mirror_id:
            raise texts.other_mirror(where, facts.mirror_id)
        turn = tree_record.turn(self.location)
        if turn is not None:
            tree_failover.finish(self._look(beside=True), turn, None, where)
        tree = self._look(beside=True)
        entry = tree.root_entry(request.base) if request.base is not None else None
        if request.base is not None and entry is None:
            raise texts.base_missing(where, request.base)
        if request.base is None and tree.own(self.location):
            held = tree.own(self.location)[-1]
            if held.guid != request.snapshot.guid:
                raise texts.not_empty(where, f"it holds the snapshot '{held.name}'")
        ready = functools.partial(self._ready, request)
        return tree_receive.TreeReceiver(request, self.location, where, ready)

    def _ready(self, request: ReceiveRequest, manifest: Manifest) -> Tree:
        """Nothing else can be received upon than the newest snapshot: each base is made that."""
        tree, back = self._look(beside=True), False
        for one in manifest.members:
            location = tree_receive.location_of(tree, one)
            if location is None or one.base is None:
                continue
            newest = tree.own(location)[-1].guid
            if newest in (one.base, one.guid):
                continue
            refusal = receive.refuse_foreign(tree.listings[location], one.base, str(self))
            if refusal is not None:
                raise refusal
            back = True
        if back and request.base is not None:
            tree_failover.turn_back(
                tree, request.base, mirror_id=request.mirror_id, keep_as=None, live=False,
                where=str(self),
            )  # fmt: skip
            tree = self._look(beside=True)
        return tree

    def stagings(self) -> list[Staging]:
        """See `Driver.stagings`."""
        begun = tree_record.transfer(self.location)
        if begun is None:
            return []
        tree, late = self._look(beside=True), False
        for one in begun.manifest.members:  # what another process left may just be saved
            location = tree_receive.location_of(tree, one)
            if location is not None and running.kept(location) is None:
                lock, waited = running.alone(location, f"zfs:{location}")
                running.close_lock(lock)
                late |= waited
        tree = self._look(beside=True) if late else tree
        return [tree_receive.staging(tree, begun)]

    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """See `Driver.commit`."""
        begun = tree_record.transfer(self.location)
        if begun is None or begun.request.transfer_id != transfer_id:
            return self._root.commit(transfer_id, show=show)
        cache.drop(self.location)
        return tree_commit.commit(self._root, begun, show=show, where=str(self))

    def discard(self, transfer_id: str) -> None:
        """See `Driver.discard`."""
        begun = tree_record.transfer(self.location)
        if begun is not None and begun.request.transfer_id == transfer_id:
            tree_commit.discard(self._root, begun, str(self))

    # Failing over and back

    def promote(self, guid: str | None = None) -> None:
        """See `Driver.promote`."""
        where, facts = str(self), self.facts()
        here = self._look().datasets.get(self.location)
        damaged = here is not None and standing.nobodys(here)
        if facts.role is Role.LIVE and facts.mirror_id == "" and not damaged:
            return
        if facts.role not in (Role.LIVE, Role.MIRROR):
            raise texts.not_a_mirror(where)
        self._settle()
        facts = self._root.facts()
        if facts.role is Role.MIRROR or damaged:
            tree = self._look(beside=True)
            first = failover.beginning(
                tree.place(self.location), tree.listings[self.location], guid
            )
            late = first is not None and any(
                tree.own(name)[-1].guid != one.guid
                for name, one in tree.together(first).items() if name in tree.mirrored()
            )  # fmt: skip
            if guid is not None and first is None:
                raise texts.snapshot_missing(where, guid)
            if first is not None and late:
                tree_failover.turn_back(
                    tree, first.guid, mirror_id=facts.mirror_id, keep_as=None, live=False,
                    where=where,
                )  # fmt: skip
        tree_failover.promote(self._root, facts.mirror_id, where)

    def _datasets(self, tree: Tree) -> list[Dataset]:
        return [tree.datasets[name] for name in tree.mirrored()]

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """See `Driver.writers`. What is kept is read-only: nobody can go on writing to it."""
        if kept:
            return []
        return writers.of(self._datasets(self._live(mounted=False)), limit)

    def freeze(self) -> None:
        """See `Driver.freeze`: all members."""
        if self._freeze is None:
            self._freeze = freezing.Freeze(self._datasets(self._live()), str(self))

    def thaw(self) -> None:
        """See `Driver.thaw`."""
        if self._root.facts().role is Role.LIVE:
            freezing.thaw(self._look().mirrored(), str(self))
        self._unfreeze()

    def _unfreeze(self) -> None:
        freeze, self._freeze = self._freeze, None
        if freeze is not None:
            freeze.release()

    def detach(self) -> None:
        """See `Driver.detach`."""
        if self._freeze is not None:
            with contextlib.suppress(MirrordError, OSError):
                self.thaw()

    def mark(self) -> str:
        """See `Driver.mark`."""
        role = self.facts().role
        tree = self._look()
        if role is not Role.LIVE:
            return proof.text(role, self._state(tree))
        return proof.text(role, [tree.digest(), proof.live(self._datasets(tree), str(self))])

    def is_marked(self, mark: str) -> bool:
        """See `Driver.is_marked`. A dataset that came, went or moved is a change, too."""
        role, (marked, state) = self.facts().role, proof.parse(mark)
        if marked is not role or role is Role.FOREIGN:
            return False
        tree = self._look()
        if role is not Role.LIVE:
            return state == self._state(tree)
        if not isinstance(state, list) or len(state) != 2 or state[0] != tree.digest():
            return False
        return proof.holds(state[1], self._datasets(tree), str(self))

    def _state(self, tree: Tree) -> list[object]:
        """What a place that is not LIVE is: the root, and what each member has."""
        state: list[object] = [self._root.mark(), tree.digest()]
        for name in tree.inside():
            written = tree.datasets[name].get("written")
            unique = secrets.token_hex(8) if written not in ("", "0") else ""
            state.append([one.guid for one in tree.own(name)[-1:]] + [unique])
        return state

    def _settle(self) -> None:
        """End what was begun: a way back goes on, a transfer is given up."""
        turn, begun = tree_record.turn(self.location), tree_record.transfer(self.location)
        if turn is not None:
            tree_failover.finish(self._look(beside=True), turn, None, str(self))
        if begun is not None:
            tree_commit.discard(self._root, begun, str(self))

    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Driver.begin_test`: a clone of each member."""
        if self._root.facts().role is not Role.MIRROR:
            raise texts.not_a_mirror(str(self))
        name = tree_copies.begin(self._look(), self._root, place, str(self))
        return TreeDriver(name).facts()

    def end_test(self) -> bool:
        """See `Driver.end_test`."""
        return tree_copies.end(self._look(), str(self))

    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """See `Driver.divergence`."""
        return tree_failover.divergence(self._look(), guid, limit=limit, where=str(self))

    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """See `Driver.rollback`."""
        try:
            return self._rollback(guid, mirror_id, keep_as)
        finally:
            self._unfreeze()

    def _rollback(self, guid: str, mirror_id: str, keep_as: str) -> str | None:
        where, facts = str(self), self.facts()
        if facts.role not in (Role.LIVE, Role.MIRROR):
            raise texts.not_a_mirror(where)
        if facts.role is Role.MIRROR and facts.mirror_id not in ("", mirror_id):
            raise texts.other_mirror(where, facts.mirror_id)
        if tree_record.turn(self.location) is None:
            self._settle()
            if facts.role is Role.MIRROR and facts.shown == guid:
                tree_arrange.mount(self._look())
                return self._kept(keep_as)
        tree = self._look(beside=True)
        entry = tree.root_entry(guid)
        if entry is None:
            raise texts.base_missing(where, guid)
        tree_failover.refuse_diverged(entry, where)
        kept = tree_failover.turn_back(
            tree, guid, mirror_id=mirror_id, keep_as=keep_as, live=facts.role is Role.LIVE,
            where=where,
        )  # fmt: skip
        return kept or self._kept(keep_as)

    def _kept(self, keep_as: str) -> str | None:
        """The name by which a way back, this one or an earlier try, has kept the tree."""
        place = look(self.location, str(self))
        listed = listing.load(self.location, place.mark.kept, None, str(self))
        kept = failover.kept_as(listed, keep_as)
        return kept.name if kept is not None else None

    def reinstate(self, name: str) -> None:
        """See `Driver.reinstate`."""
        role = self._root.facts().role
        if role is Role.FOREIGN:
            raise texts.not_live(str(self))
        tree_reinstate.reinstate(self.location, name, str(self), live=role is Role.LIVE)

    def forget(self) -> None:
        """See `Driver.forget`."""
        self._settle()
        where, tree = str(self), self._look()
        mirror = self._root.facts().role is Role.MIRROR
        for name in tree.inside()[1:]:
            if any(one.holds for one in tree.own(name)):
                deleting.release_all(tree.listings[name], where)
        members = [name for name in tree.inside()[1:] if tree.datasets[name].mark is not None]
        if members:
            mark = marks.Mark(role="forgotten" if mirror else "")
            words = ["zfs", "set", f"{marks.MARK}={mark.text()}", *members]
            command.effect("ZFS:FORGET:TREE", words, where)
        proof.remove(tree.mirrored(), "", where)
        self._root.forget()


def _check_count(members: list[str], where: str) -> None:
    if len(members) > tree_stream.MEMBERS_MAX:
        raise Refused(
            f"the tree has {len(members)} datasets", where=where,
            why=f"up to {tree_stream.MEMBERS_MAX} can be mirrored as one",
            hint=f"Mirror parts of it, or leave some out: zfs set {tree_look.EXCLUDE}=off DATASET",
        )  # fmt: skip


def _sum(every: list[Delta], total: int) -> BlockStates:
    counts = [one.states for one in every if one.states is not None]
    size = every[0].block_size
    unchanged, deleted, added = (
        sum(getattr(one, field) for one in counts) for field in ("unchanged", "deleted", "added")
    )
    unused = max(0, total // size - unchanged - deleted - added)
    return BlockStates(unused, unchanged, deleted, added)


def _changes(found: list[tuple[str, Delta]]) -> tuple[FileChange, ...] | None:
    changes: list[FileChange] = []
    for path, one in found:
        for each in one.changes or ():
            changes.append(each._replace(path=f"{path}/{each.path}" if path else each.path))
    return tuple(changes)
