"""A dataset and its descendants as one volume: `mirrord create --recursive`.

One atomic snapshot of all, one stream with a part for each member, one commit, one view. Each
member is sent and received like a single dataset (`ZfsDriver`); the root represents the tree: it
has the guid of a snapshot, the role and the mirror. The other modules do the rest:

| module | task |
|---|---|
| volume | facts and snapshots, and finishing interrupted operations |
| switching | makes the tree live, freezes it, rolls it back |
| layout | the existing datasets, and which snapshots belong together |
| stream, receiver | the one stream, and its members' receivers |
| commit | all ENDs together, the root's last; and discarding |
| renames, arrange | renames: children that were moved, added or removed at the source |
| failover | making a tree live, and rolling it back |
| operation_record | records of started operations, to finish them after a crash |
"""

from __future__ import annotations

import functools
import os
from typing import ClassVar

from mirrord.core.model import (
    BlockStates,
    Delta,
    FileChange,
    ReceiveRequest,
    Role,
    Snapshot,
    Staging,
)
from mirrord.drivers import refusals as texts
from mirrord.drivers.contract import Capability
from mirrord.drivers.memberstreams import DONE, FULL, Manifest, Member, TreeSendStream
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import delegation, marks, names
from mirrord.drivers.zfs.receive import held_receive, receiver
from mirrord.drivers.zfs.snapshots import compare, deleting, listing_cache, proof
from mirrord.drivers.zfs.snapshots.listing import Entry
from mirrord.drivers.zfs.stream import deltas, send
from mirrord.drivers.zfs.stream.send import ZfsSendStream
from mirrord.drivers.zfs.tree import commit as tree_commit
from mirrord.drivers.zfs.tree import failover as tree_failover
from mirrord.drivers.zfs.tree import operation_record
from mirrord.drivers.zfs.tree import receiver as tree_receiver
from mirrord.drivers.zfs.tree import stream as tree_stream
from mirrord.drivers.zfs.tree.layout import Tree
from mirrord.drivers.zfs.tree.switching import TreeFailover
from mirrord.drivers.zfs.tree.volume import check_count
from mirrord.drivers.zfs.verify.trees import ZfsTrees


class TreeDriver(ZfsTrees, TreeFailover):
    """See `drivers.contract.Driver`. location: `pool/dataset`, the root of the tree."""

    kind: ClassVar[str] = "zfs-tree"
    capabilities: ClassVar[Capability] = Capability.RESUME | Capability.COPY
    capabilities |= Capability.VERIFY

    # Source

    def _members(
        self, tree: Tree, base: str | None, incremental: str
    ) -> list[tuple[str, Entry | None, Entry]]:
        """For each member (dataset, its snapshot in the base, its snapshot), the root first."""
        where, before = str(self), {}
        newer = texts.demand_snapshot(tree.root_entry(incremental), where, incremental)
        if base is not None:
            before = tree.together(texts.demand_base(tree.root_entry(base), where, base))
        after = tree.together(newer)
        check_count(list(after), where)
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
            read = compare.accounts(older, newer, where)
            accounts = texts.demand_snapshot(read, where, newer.guid)
            one = deltas.between(
                tree.place(name), older, newer, accounts, where, states=states, files=files
            )
            found.append((tree.path(name), one))
        every = [one for _path, one in found]
        root = self._root.facts()
        total = root.used_bytes + root.free_bytes if states else 0
        return Delta(
            base,
            incremental,
            every[0].block_size,
            _sum(every, total) if states else None,
            sum(one.added_bytes for one in every),
            sum(one.send_bytes for one in every),
            all(one.exact for one in every),
            _changes(found) if files else None,
        )

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
            (name, None if states.get(newer.guid) == FULL else older, newer)
            for name, older, newer in self._members(tree, base, incremental)
        ]
        done = {guid for guid, state in states.items() if state == DONE}
        sendings = {
            newer.guid: deltas.sending(tree.place(name), older, newer)
            for name, older, newer in members
        }
        paths = tree_stream.paths(tree.path(name) for name, _older, _newer in members)
        manifest = Manifest(
            tuple(
                Member(
                    paths[tree.path(name)],
                    newer.guid,
                    newer.name,
                    older.guid if older else None,
                    newer.guid in done,
                )
                for name, older, newer in members
            )
        )

        def begin(member: Member) -> ZfsSendStream:
            sending = sendings[member.guid]
            found = tree_receiver.checkpoint_of(checkpoint, member.guid)
            token = send.check_token(found, sending, where)
            return ZfsSendStream(sending, f"zfs:{sending.incremental}", token)

        return TreeSendStream(manifest, begin)

    def _find(self, guid: str) -> Entry | None:
        tree = self._look(beside=True)
        name = tree.holder(guid)
        own = tree.own(name) if name is not None else []
        return next((one for one in own if one.guid == guid), None)

    def _parts(self) -> int:
        return len(self._look().mirrored())

    # Destination

    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """See `Driver.prepare`. Needs the failover permissions, as new members are renamed."""
        if self._root.facts().role is Role.ABSENT:
            parent = names.parent_of(self.location)
            if command.result(["zfs", "list", "-H", "-o", "name", parent]).status == 0:
                delegation.require(self.location, "destination", str(self), failover=True)
        self._root.prepare(mirror_id, in_place=in_place)

    def receive(self, request: ReceiveRequest) -> tree_receiver.ZfsTreeReceiver:
        """See `Driver.receive`."""
        where, facts = str(self), self._root.facts()
        if facts.role is not Role.MIRROR:
            raise texts.not_a_mirror(where)
        if facts.mirror_id != request.mirror_id:
            raise texts.other_mirror(where, facts.mirror_id)
        rollback = operation_record.rollback(self.location)
        if rollback is not None:
            tree_failover.finish(self._look(beside=True), rollback, None, where)
        tree = self._look(beside=True)
        if request.base is not None:
            texts.demand_base(tree.root_entry(request.base), where, request.base)
        if request.base is None and tree.own(self.location):
            held = tree.own(self.location)[-1]
            if held.guid != request.snapshot.guid:
                raise texts.not_empty(where, f"it holds the snapshot '{held.name}'")
        ready = functools.partial(self._ready, request)
        return tree_receiver.ZfsTreeReceiver(request, self.location, where, ready)

    def _ready(self, request: ReceiveRequest, manifest: Manifest) -> Tree:
        """Make each base the newest snapshot: ZFS receives only on top of that."""
        tree, back = self._look(beside=True), False
        for one in manifest.members:
            location = tree_receiver.location_of(tree, one)
            if location is None or one.base is None:
                continue
            newest = tree.own(location)[-1].guid
            if newest in (one.base, one.guid):
                continue
            refusal = receiver.later_snapshots_error(tree.listings[location], one.base, str(self))
            if refusal is not None:
                raise refusal
            back = True
        if back and request.base is not None:
            tree_failover.roll_back(
                tree,
                request.base,
                mirror_id=request.mirror_id,
                keep_as=None,
                live=False,
                where=str(self),
            )
            tree = self._look(beside=True)
        return tree

    def stagings(self) -> list[Staging]:
        """See `Driver.stagings`."""
        begun = operation_record.transfer(self.location)
        if begun is None:
            return []
        tree, late = self._look(beside=True), False
        for one in begun.manifest.members:  # an ended process may still be saving received data
            location = tree_receiver.location_of(tree, one)
            if location is not None and held_receive.kept(location) is None:
                lock, waited = held_receive.receive_lock(location, f"zfs:{location}")
                os.close(lock)
                late |= waited
        tree = self._look(beside=True) if late else tree
        return [tree_receiver.staging(tree, begun)]

    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """See `Driver.commit`."""
        begun = operation_record.transfer(self.location)
        if begun is None or begun.request.transfer_id != transfer_id:
            return self._root.commit(transfer_id, show=show)
        listing_cache.drop(self.location)
        return tree_commit.commit(self._root, begun, show=show, where=str(self))

    def discard(self, transfer_id: str) -> None:
        """See `Driver.discard`."""
        begun = operation_record.transfer(self.location)
        if begun is not None and begun.request.transfer_id == transfer_id:
            tree_commit.discard(self._root, begun, str(self))

    def forget(self) -> None:
        """See `Driver.forget`."""
        self._finish_pending()
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
        self._trees().remove()


def _sum(every: list[Delta], total: int) -> BlockStates:
    counts = [one.states for one in every if one.states is not None]
    size = every[0].block_size
    unchanged, deleted, added = (
        sum(getattr(one, field) for one in counts) for field in ("unchanged", "deleted", "added")
    )
    unused = max(0, total // size - unchanged - deleted - added)
    return BlockStates(unused, unchanged, deleted, added)


def _changes(found: list[tuple[str, Delta]]) -> tuple[FileChange, ...]:
    return tuple(
        each._replace(path=f"{path}/{each.path}" if path else each.path)
        for path, one in found
        for each in one.changes or ()
    )
