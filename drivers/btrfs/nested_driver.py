"""A subvolume and the writable subvolumes nested inside it as one volume: `nested = true`.

| module | task |
|---|---|
| nested | the existing nested subvolumes, lists of members, taking their snapshots together |
| nested_receive | the receiver of all members; commit and discard |
| assemble | the tree that is shown, and the one that becomes live |

The root represents the volume: it has the guid of a snapshot, the role, the records and the lock.
A live volume cannot be set aside yet, so its `rollback` and all that prepares it is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from mirrord.core.errors import CheckpointUseless, Diverged, MirrordError, Refused, Unsupported
from mirrord.core.model import (
    BlockStates,
    Changes,
    Delta,
    Divergence,
    FileChange,
    ReceiveRequest,
    Role,
    Snapshot,
    Staging,
    VolumeFacts,
)
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import (
    assemble,
    failover,
    layout,
    nested,
    nested_receive,
    receivers,
    reserve,
    standing,
    store,
    subvolume,
    walk,
)
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.btrfs.ioctl import guarded
from mirrord.drivers.btrfs.nested_receive import DONE, FULL, NestedReceiver
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.btrfs.stream import BtrfsSendStream, Checkpoint
from mirrord.drivers.contract import Capability, Pool
from mirrord.drivers.memberstreams import Manifest, Member, TreeSendStream
from mirrord.system import files

_FIXED = (
    "it includes nested subvolumes, and mirrord cannot yet set such a volume aside with all of them"
)

_PIECE_BYTES = 1 << 20


class NestedDriver(BtrfsDriver):
    """See `drivers.contract.Driver`. location: that of the outermost subvolume."""

    kind: ClassVar[str] = "btrfs-tree"
    nested: ClassVar[bool] = True
    capabilities: ClassVar[Capability] = Capability.FILES | Capability.RESUME
    capabilities |= Capability.SHOW_LATER

    @guarded
    def facts(self) -> VolumeFacts:
        """See `Driver.facts`."""
        place = self._place()
        found = standing.facts(place, self.location)._replace(kind=self.kind)
        if found.role is not Role.LIVE:
            return found
        return found._replace(
            fixed=found.fixed or _FIXED, notes=found.notes + nested.notes(place.view)
        )

    # Snapshots

    @guarded
    def snapshots(self) -> list[Snapshot]:
        """See `Driver.snapshots`. The path is that of the assembled tree, where there is one."""
        paths, damaged = dict[str, str](), set[str]()
        for one in nested.references(self._place()):
            paths[one.snapshot.guid] = str(assemble.shown_path(one) or "")
            if not nested.legible_members(one):
                damaged.add(one.snapshot.guid)
        return [
            one._replace(
                path=paths.get(one.guid, ""), intact=one.intact and one.guid not in damaged
            )
            for one in super().snapshots()
        ]

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Driver.own_snapshots`: the owner's are not of all members."""
        return []

    @guarded
    def take_snapshot(self, name: str) -> Snapshot:
        """See `Driver.take_snapshot`."""
        return nested.take(self._place(), name, self._listed, str(self))

    @guarded
    def make_ready(self, name: str) -> None:
        """See `Source.make_ready`."""
        place = self._live_place()
        layout.make_store("BTRFS:STORE", place, public=False)
        files.sync_filesystem("BTRFS:SNAPSHOT:SYNC", place.view)

    def is_beside(self, other: object) -> bool:
        """See `Pool.is_beside`: its snapshots are taken together with those of its members only."""
        return False

    def _take_together(self, name: str, volumes: Sequence[Pool]) -> list[Snapshot]:
        return [one.take_snapshot(name) for one in volumes]

    @guarded
    def delete_snapshot(self, guid: str) -> None:
        """See `Driver.delete_snapshot`."""
        place = self._place()
        one = store.find(place, guid)
        if one is None:
            return
        if one.wrapper is not None and one.wrapper.name == place.shown_wrapper():
            raise Refused(
                "the destination shows this snapshot",
                where=str(self),
                why=one.snapshot.name,
                hint="It can be deleted once a newer one is shown.",
            )
        reserve.use(place, lambda: assemble.delete_snapshot(place, one, str(self)))

    @guarded
    def members(self, guid: str) -> dict[str, str]:
        """See `Driver.members`."""
        one = store.find(self._place(), guid)
        if one is None:
            raise refusals.snapshot_missing(str(self), guid)
        return {member.guid: member.path for member in nested.manifest_of(one).members}

    @guarded
    def changed_since(self, guid: str) -> bool:
        """See `Driver.changed_since`. A new, removed or renamed nested subvolume is a change."""
        place = self._live_place()
        one = store.find(place, guid)
        if one is None:
            raise refusals.snapshot_missing(str(self), guid)
        try:
            members = nested.entries(place, one, str(self))
        except MirrordError:
            return True
        paths = {"", *nested.find(place.view).members}
        return paths != set(members) or not all(
            failover.unchanged(place.view / path, entry) for path, (_m, entry) in members.items()
        )

    # Source

    def _pairs(
        self, base: str | None, incremental: str
    ) -> list[tuple[Member, SnapshotEntry | None, SnapshotEntry]]:
        """Each member with its snapshot in the base, if it was there, and in the incremental."""
        place, older, newer = self._pair(base, incremental)
        where = str(self)
        before = {}
        if older is not None:
            # A member of the base that is lost here is sent in full.
            with contextlib.suppress(Diverged):
                before = {
                    m.name: entry for m, entry in nested.entries(place, older, where).values()
                }
            before[""] = older
        return [
            (member, before.get(member.name), entry)
            for member, entry in nested.entries(place, newer, where).values()
        ]

    @guarded
    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """See `Driver.delta`: the sum over the members."""
        place, found, changes = self._place(), list[Delta](), list[FileChange]()
        for member, older, newer in self._pairs(base, incremental):
            volume = place.view / member.path
            live = subvolume.info(volume) if place.live and subvolume.is_subvolume(volume) else None
            if files:
                changes += [
                    each._replace(path=f"{member.path}/{each.path}".lstrip("/"))
                    for each in walk.changed_files(older, newer, str(self))
                ]
            encoded = self._version() > 1
            found.append(walk.delta(older, newer, live=live, states=states, encoded=encoded))
        size = os.statvfs(place.store)
        return Delta(
            base,
            incremental,
            walk.BLOCK_BYTES,
            _sum(found, size.f_blocks * size.f_frsize) if states else None,
            sum(one.added_bytes for one in found),
            sum(one.send_bytes for one in found),
            all(one.exact for one in found),
            tuple(changes) if files else None,
        )

    def changes(self, base: str, incremental: str) -> Changes:
        """See `Driver.changes`."""
        raise Unsupported(
            "the workload of a volume with nested subvolumes cannot be recorded", where=str(self)
        )

    @guarded
    def send(  # type: ignore[override]
        self,
        base: str | None,
        incremental: str,
        *,
        checkpoint: dict[str, int | str] | None = None,
    ) -> TreeSendStream:
        """See `Driver.send`."""
        states = checkpoint or {}
        members, bases = list[Member](), dict[str, SnapshotEntry | None]()
        entries = dict[str, SnapshotEntry]()
        for member, older, newer in self._pairs(base, incremental):
            older = None if states.get(member.guid) == FULL else older
            bases[member.guid], entries[member.guid] = older, newer
            guid = older.snapshot.guid if older else None
            done = states.get(member.guid) == DONE
            members.append(member._replace(base=guid, done=done))

        def begin(member: Member) -> BtrfsSendStream:
            found = str(states.get(member.guid, "")).partition(" ")
            where = f"{self}/{member.path}".rstrip("/")
            at = None
            if found[1]:
                try:
                    at = Checkpoint(int(found[0]), found[2])
                except ValueError as error:
                    raise CheckpointUseless(
                        "the transfer cannot be resumed", where=where, why=str(error)
                    ) from error
            return self._stream(bases[member.guid], entries[member.guid], where, at)

        return TreeSendStream(Manifest(tuple(members)), begin, piece_bytes=_PIECE_BYTES)

    # Destination

    @guarded
    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """See `Driver.prepare`."""
        super().prepare(mirror_id, in_place=in_place)
        layout.make_store("BTRFS:PREPARE", self._mirror_place().inner, public=False)

    @guarded
    def receive(self, request: ReceiveRequest) -> NestedReceiver:  # type: ignore[override]
        """See `Driver.receive`."""
        place = self._mirror_place()
        receivers.demand_owner(place, request, str(self))
        if request.base is not None:
            store.require_base(place, request.base, str(self))
        layout.make_store("BTRFS:PREPARE", place.inner, public=False)
        return NestedReceiver(place, request, str(self), native=self._receiver() == "native")

    @guarded
    def stagings(self) -> list[Staging]:
        """See `Driver.stagings`."""
        return nested_receive.stagings(self._place())

    @guarded
    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """See `Driver.commit`."""
        place = self._mirror_place()
        done = nested_receive.commit(place, transfer_id, show=show, where=str(self))
        reserve.keep(place)
        return done

    @guarded
    def discard(self, transfer_id: str) -> None:
        """See `Driver.discard`."""
        nested_receive.discard(self._place(), transfer_id, str(self))

    @guarded
    def forget(self) -> None:
        """See `Driver.forget`."""
        place = self._place()
        for one in nested_receive.stagings(place):
            nested_receive.discard(place, one.transfer_id, str(self))
        assemble.discard(place.inner.store / "building")
        files.remove_directory("BTRFS:FORGET:STORE", place.inner.store / "transfers")
        if place.inner.store.is_dir():
            layout.remove_empty_store("BTRFS:FORGET:STORE", place.inner)
        super().forget()

    # Failing over

    def _copy(self, start: SnapshotEntry, path: Path) -> None:
        assemble.make(self._place(), start, path, str(self))

    @guarded
    def mark(self) -> str:
        """See `Driver.mark`."""
        found, place = super().mark(), self._place()
        if not place.live:
            return found
        inner = {
            path: [one.uuid, subvolume.last_change(place.view / path, one)]
            for path, one in nested.find(place.view).members.items()
        }
        return f"{found} {json.dumps(inner)}"

    def _refuse(self) -> Unsupported:
        return Unsupported(
            "the volume cannot be set aside or frozen",
            where=str(self),
            why=_FIXED,
            hint="Rename it, for example to NAME.old: what is needed is then created in its place.",
        )

    def freeze(self) -> None:
        """See `Driver.freeze`."""
        raise self._refuse()

    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """See `Driver.divergence`."""
        if self._place().live:
            raise self._refuse()
        return super().divergence(guid, limit=limit)

    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """See `Driver.rollback`: of a view, or where the live volume was lost."""
        place = self._place()
        if place.live:
            raise self._refuse()
        target = store.find(place, guid)
        if target is not None and target.snapshot.intact:
            reserve.use(place, lambda: assemble.show(place, target, str(self)))
        return super().rollback(guid, mirror_id=mirror_id, keep_as=keep_as)

    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Driver.begin_test`."""
        raise Unsupported(
            "volumes with nested subvolumes do not support writable copies", where=str(self)
        )

    def end_test(self) -> bool:
        """See `Driver.end_test`."""
        return False


def _sum(every: list[Delta], total: int) -> BlockStates:
    counts = [one.states for one in every if one.states is not None]
    unchanged, deleted, added = (
        sum(getattr(one, field) for one in counts) for field in ("unchanged", "deleted", "added")
    )
    unused = max(0, total // walk.BLOCK_BYTES - unchanged - deleted - added)
    return BlockStates(unused, unchanged, deleted, added)
