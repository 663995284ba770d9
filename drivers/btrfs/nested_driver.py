"""A subvolume and the writable subvolumes nested inside it as one volume: `nested = true`.

| module | task |
|---|---|
| nested | the existing nested subvolumes, lists of members, taking their snapshots together |
| nested_receive | the receiver of all members; commit and discard |
| assemble | the tree that is shown, and the one that becomes live |
| nested_live | the live volume: what it began as, what is set aside, its changes |

The root represents the volume: it has the guid of a snapshot, the role, the records and the lock.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Sequence
from typing import ClassVar

from mirrord.core.errors import Damaged, Diverged, Unsupported
from mirrord.core.model import (
    Changes,
    Delta,
    Divergence,
    FileChange,
    ReceiveRequest,
    Role,
    Snapshot,
    SnapshotKind,
    Staging,
    VolumeFacts,
)
from mirrord.core.verification import VerifyRequest
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import (
    assemble,
    copies,
    layout,
    nested,
    nested_live,
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
from mirrord.drivers.btrfs.nested_receive import NestedReceiver
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.btrfs.stream import BtrfsSendStream, Checkpoint
from mirrord.drivers.contract import Capability, Pool
from mirrord.drivers.memberstreams import DONE, FULL, Manifest, Member, TreeSendStream
from mirrord.drivers.snapshottrees import Changed, Subject
from mirrord.system import files

_PIECE_BYTES = 1 << 20


class NestedDriver(BtrfsDriver):
    """See `drivers.contract.Driver`. location: that of the outermost subvolume."""

    kind: ClassVar[str] = "btrfs-tree"
    nested: ClassVar[bool] = True
    _delete = staticmethod(assemble.delete_snapshot)
    _commit = staticmethod(nested_receive.commit)
    capabilities: ClassVar[Capability] = Capability.FILES | Capability.RESUME
    capabilities |= Capability.SHOW_LATER | Capability.VERIFY | Capability.COPY

    @guarded
    def facts(self) -> VolumeFacts:
        """See `Driver.facts`."""
        place = self._place()
        found = standing.facts(place, self.location)._replace(kind=self.kind)
        if found.role is not Role.LIVE:
            return found
        return found._replace(notes=found.notes + nested.notes(place))

    # Snapshots

    @guarded
    def snapshots(self) -> list[Snapshot]:
        """See `Driver.snapshots`. The path is that of the assembled tree, where there is one."""
        paths, sound = dict[str, str](), set[str]()
        for one in store.kept(self._place()):
            if one.snapshot.kind is SnapshotKind.REFERENCE:
                paths[one.snapshot.guid] = str(assemble.shown_path(one) or "")
                legible = bool(nested.legible_members(one))
            else:
                paths[one.snapshot.guid] = one.snapshot.path
                legible = nested_live.intact(one)
            if legible:
                sound.add(one.snapshot.guid)
        return [
            one._replace(path=paths.get(one.guid, ""), intact=one.intact and one.guid in sound)
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
    def members(self, guid: str) -> dict[str, str]:
        """See `Driver.members`."""
        one = refusals.demand_snapshot(store.find(self._place(), guid), str(self), guid)
        return {member.guid: member.path for member in nested.manifest_of(one).members}

    @guarded
    def changed_since(self, guid: str) -> bool:
        """See `Driver.changed_since`."""
        place = self._live_place()
        one = refusals.demand_snapshot(store.find(place, guid), str(self), guid)
        found = nested.of(place)
        return not nested_live.unchanged(place, place.view, found, one, str(self))

    # Verification

    def _subject(self, request: VerifyRequest) -> Subject:
        """One member of a snapshot: what users see of it, where its tree was assembled."""
        place = self._place()
        whole, path = nested.holder(place, request.guid) or (None, "")
        whole = refusals.demand_snapshot(whole, str(self), request.guid)
        found = nested.member_entry(place, request.guid)
        own = refusals.demand_snapshot(found, str(self), request.guid)
        tree = assemble.shown_path(whole)
        shown = tree / path if tree is not None else own.path
        if not subvolume.is_subvolume(shown):
            raise Damaged(
                "a nested subvolume is missing in the tree that is shown",
                where=str(shown),
                hint="The next update that transfers anything shows a new tree.",
            )

        def changed() -> Changed | None:
            base = nested.member_entry(place, request.base)
            if base is None or not (base.snapshot.intact and own.snapshot.intact):
                return None
            return walk.changed_since(base, own, str(self))

        parts = len(nested.legible_members(whole))
        return Subject(whole.snapshot.guid, str(shown), changed, parts=parts)

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
        counts = [one.states[1:] for one in found if one.states is not None]
        return Delta(
            base,
            incremental,
            walk.BLOCK_BYTES,
            walk.block_states(place.store, counts) if states else None,
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
                    raise refusals.checkpoint_useless(where, str(error)) from error
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
        for path in (nested_live.begun_file(place), nested_live.copy_file(place)):
            if path.exists():
                files.remove_file("BTRFS:FORGET:MARK", path)
        files.remove_folder("BTRFS:FORGET:STORE", place.inner.store / "transfers")
        if place.inner.store.is_dir():
            layout.remove_empty_store(place.inner)
        super().forget()

    # Failing over

    def _parts(self) -> nested_live.NestedParts:
        return nested_live.NestedParts(self._place(), str(self))

    @guarded
    def mark(self) -> str:
        """See `Driver.mark`."""
        found, place = super().mark(), self._place()
        if not place.live:
            return found
        inner = {
            path: [one.uuid, subvolume.last_change(place.view / path, one)]
            for path, one in nested.of(place).members.items()
        }
        return f"{found} {json.dumps(inner)}"

    @guarded
    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """See `Driver.divergence`."""
        place = self._place()
        start = store.require_base(place, guid, str(self))
        return nested_live.divergence(place, start, limit=limit, where=str(self))

    @guarded
    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """See `Driver.rollback`. The tree that is to be shown is there before anything is moved."""
        place = self._place()
        target = store.find(place, guid)
        if target is not None and target.snapshot.intact:
            reserve.use(place, lambda: assemble.show(place, target, str(self)))
        if place.live and not layout.frozen(place) and place.frozen_file.exists():
            # Of a freeze that ended: what is read-only now is so by somebody else.
            files.remove_file("BTRFS:ROLLBACK:THAWED", place.frozen_file)
        return super().rollback(guid, mirror_id=mirror_id, keep_as=keep_as)

    @guarded
    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Driver.begin_test`."""
        here = self._mirror_place()
        make = functools.partial(nested_live.make_copy, here, str(self))
        return NestedDriver(str(copies.begin(here, place, str(self), make))).facts()

    @guarded
    def end_test(self) -> bool:
        """See `Driver.end_test`."""
        place = self._place()
        parts = functools.partial(assemble.inner_parts, nested_live.copy_file(place))
        return copies.end(place, parts)
