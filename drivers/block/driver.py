"""The block driver: implements drivers/contract.py for block volumes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from mirrord.core.errors import MIRROR, Damaged, NotFound, Refused
from mirrord.core.model import (
    Changes,
    Delta,
    Divergence,
    OpenWriter,
    ReceiveRequest,
    Role,
    Snapshot,
    SnapshotKind,
    Staging,
    VolumeFacts,
)
from mirrord.drivers import pinfiles, pins, snapshottrees
from mirrord.drivers.block import copies, roles, rootrecord, staging
from mirrord.drivers.block.activemap import cut_files
from mirrord.drivers.block.content import changed_blocks
from mirrord.drivers.block.format import BLOCK_BYTES, Root
from mirrord.drivers.block.place import (
    foreign_content,
    is_volume,
    mount_point,
    nearest_directory,
)
from mirrord.drivers.block.receive import BlockReceiver, open_state
from mirrord.drivers.block.reclaim import reclaim_snapshots, reclaim_unheld
from mirrord.drivers.block.rootrecord import Entry, RootRecord
from mirrord.drivers.block.staging import StagingRecord
from mirrord.drivers.block.store import BlockStore, io_errors
from mirrord.drivers.block.stream import BlockSendStream, changes_of, delta_of, start_of
from mirrord.drivers.block.trees import Trees
from mirrord.drivers.block.volume import (
    Volume,
    is_frozen,
    open_volume,
    write_first_record,
    writer_of,
)
from mirrord.drivers.contract import Capability, Clones, Driver
from mirrord.drivers.filerecords import FileRecords
from mirrord.drivers.refusals import (
    base_missing,
    demand_snapshot,
    not_a_mirror,
    not_empty,
    not_live,
    nothing_shown,
    other_mirror,
    staging_missing,
)
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.system import locks
from mirrord.system.openers import name_of


class BlockDriver(Trees, FileRecords, Driver, Clones):
    """A block volume in the directory `location`, an absolute path."""

    kind = "block"
    capabilities = (
        (Capability.RESUME | Capability.BLOCK_FOR_BLOCK | Capability.COPY | Capability.SHOW_LATER)
        | Capability.VERIFY
        | Capability.VERIFY_RECEIVED
    )

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._path = Path(location)
        self._freeze: Volume | None = None

    def detach(self) -> None:
        """Thaw what this object froze."""
        self.verify_end()
        frozen, self._freeze = self._freeze, None
        if frozen is not None:
            frozen.thaw()

    def facts(self) -> VolumeFacts:
        """Reads the root record, and the sizes of the data files."""
        space = os.statvfs(nearest_directory(self._path))
        device = nearest_directory(self._path).stat().st_dev
        facts = VolumeFacts(
            kind=self.kind,
            location=self.location,
            role=Role.ABSENT,
            identity="",
            filesystem=f"{space.f_fsid:x}-{device:x}",
            view=self.location,
            used_bytes=(space.f_blocks - space.f_bfree) * space.f_frsize,
            free_bytes=space.f_bavail * space.f_frsize,
            mount=str(mount_point(self._path)),
        )
        if not is_volume(self._path):
            found = foreign_content(self._path)
            if found is not None:
                return facts._replace(role=Role.FOREIGN, notes=(f"it holds {found}",))
            empty = ("it is an empty folder, not a volume",) if self._path.is_dir() else ()
            return facts._replace(notes=empty)
        record, damage = rootrecord.load_noting_damage(self._path)
        cut = set(cut_files(self._path, record.live))
        if cut:  # another process removes a file once the record does not name it any more
            cut &= set(cut_files(self._path, self._record().live))
        return facts._replace(
            role=record.role,
            notes=(
                *((f"{damage[0].upper()}{damage[1:]}.",) if damage else ()),
                *sorted(cut),
            ),
            frozen=record.role is Role.LIVE and is_frozen(self._path),
            identity=record.identity,
            shown=record.shown if record.role is Role.MIRROR else None,
            mirror_id=record.mirror_id,
            origin=record.origin if record.role is Role.LIVE else None,
            copy=str(copies.find(self._path) or ""),
        )

    @contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        """The file `lock`; writers of the live volume use another lock and are not blocked."""
        if not is_volume(self._path):
            yield False
            return
        with locks.exclusive(self._path / "lock", purpose, what=f"the volume '{self}'"):
            yield True

    # Snapshots

    def snapshots(self) -> list[Snapshot]:
        """From the table of the root record."""
        if not is_volume(self._path):
            return []
        pinned = pinfiles.legible(self._path / pinfiles.NAME)
        pinned = snapshottrees.pinned(self._path / snapshottrees.NAME, pinned)
        return [
            one.snapshot()._replace(pinned=pins.of_snapshot(pinned, one.guid))
            for one in self._record().snapshots
            if not one.owners
        ]

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """Those that `Volume.snapshot` made."""
        if not is_volume(self._path):
            return []
        return [
            one.snapshot()
            for one in self._record().snapshots
            if one.owners and any(fnmatchcase(one.name, glob) for glob in patterns)
        ]

    def take_snapshot(self, name: str) -> Snapshot:
        """Flush, and one root record."""
        self._record_of_role(Role.LIVE)
        with self._managed("taking a snapshot") as volume:
            found = roles.epochs(self.relationships().values())
            return volume.take_snapshot(
                name, SnapshotKind.REFERENCE, lambda record: roles.in_epochs(record, found)
            )

    def delete_snapshot(self, guid: str) -> None:
        """One root record; then the space is given back."""
        if not is_volume(self._path):
            return
        with self._managed("deleting a snapshot") as volume:
            entry = volume.record.entry(guid)
            if entry is not None and entry.owners:
                raise Refused("cannot delete a user snapshot", where=str(self), why=entry.name)
            if volume.record.role is Role.MIRROR and volume.record.shown == guid:
                raise Refused(
                    "the destination shows this snapshot",
                    where=str(self),
                    hint="It can be deleted once a newer one is shown.",
                )
            if entry is not None:
                self._demand_unpinned(guid, entry.name)
            volume.drop_snapshots({guid})

    def _records(self) -> Path | None:
        return self._path if is_volume(self._path) else None

    def _keep(self, work: Callable[[], None]) -> None:
        with io_errors(str(self), "writing a record"):
            work()

    def changed_since(self, guid: str) -> bool:
        """Whether the live root differs; true as well while another process writes."""
        if self._may_have_changed():
            return True
        record = self._record()
        return not roles.same_content(record.live, self._entry(record, guid).root)

    # Source

    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """Always counts all four states: they need no additional reads."""
        record, one, other = self._pair(base, incremental)
        with closing(BlockStore(self._path, writable=False)) as store:
            return delta_of(store, record.identity, one, other)

    def changes(self, base: str, incremental: str) -> Changes:
        """The differences of the two active maps: of content, nodes and the maps themselves."""
        _record, one, other = self._pair(base, incremental)
        assert one is not None
        with closing(BlockStore(self._path, writable=False)) as store:
            return changes_of(store, one, other)

    def send(
        self,
        base: str | None,
        incremental: str,
        *,
        checkpoint: dict[str, int | str] | None = None,
    ) -> SendStream:
        """See stream.py."""
        record, one, other = self._pair(base, incremental)
        start = start_of(checkpoint, str(self))
        return BlockSendStream(self._path, record.identity, one, other, start)

    # Destination

    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """A root record without content."""
        if is_volume(self._path):
            record = self._record()
            if record.role is not Role.MIRROR:
                raise not_empty(str(self), "it is a live block volume")
            if record.mirror_id and record.mirror_id != mirror_id:
                raise other_mirror(str(self), record.mirror_id)
            if not record.mirror_id:
                with self._managed("preparing") as volume:
                    volume.commit(
                        "BLOCK:PREPARE:ROOT", lambda old: replace(old, mirror_id=mirror_id)
                    )
            return
        found = foreign_content(self._path)
        if found is not None:
            raise not_empty(str(self), f"it holds {found}")
        record = RootRecord(str(uuid.uuid4()), Role.MIRROR, Root(0), mirror_id=mirror_id)
        write_first_record(self._path, record)

    def receive(self, request: ReceiveRequest) -> Receiver:
        """See receive.py."""
        record = self._record_of_role(Role.MIRROR)
        if record.mirror_id != request.mirror_id:
            raise other_mirror(str(self), record.mirror_id)
        if request.base is not None:
            self._intact_base(record, request.base)
        state = StagingRecord(
            request.transfer_id, request.mirror_id, request.base, request.snapshot
        )
        state = open_state(self._path, state)
        often = request.resumable and not request.local
        return BlockReceiver(self._path, record, state, often=often)

    def stagings(self) -> list[Staging]:
        """From the staging records, without committed ones."""
        if not is_volume(self._path):
            return []
        committed = {one.transfer for one in self._record().snapshots}
        found = (staging.load(self._path, one) for one in staging.transfer_ids(self._path))
        return [one.staging() for one in found if one and one.transfer_id not in committed]

    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """One root record."""
        record = self._record_of_role(Role.MIRROR)
        done = next((one for one in record.snapshots if one.transfer == transfer_id), None)
        if done is None or (show and record.shown != done.guid):
            state = staging.load(self._path, transfer_id)
            if done is None and (state is None or not state.complete):
                raise staging_missing(str(self), transfer_id)
            with self._managed("committing an update") as volume:
                done = self._commit(volume, done or self._staged(volume, state), show)
        staging.remove("BLOCK:COMMIT:CLEAN", self._path, transfer_id)
        return done.snapshot()

    def discard(self, transfer_id: str) -> None:
        """Remove the record; frees the received blocks when no other transfer is staged."""
        if not is_volume(self._path) or staging.load(self._path, transfer_id) is None:
            staging.remove("BLOCK:DISCARD:CLEAN", self._path, transfer_id)
            return
        staging.remove("BLOCK:DISCARD:CLEAN", self._path, transfer_id)
        with self._managed("discarding a transfer") as volume:
            reclaim_unheld(volume.store, volume.image)

    # Failing over and back

    def promote(self, guid: str | None = None) -> None:
        """One root record: role, content, and a new segment to allocate in (format.py)."""
        if not is_volume(self._path):
            raise not_a_mirror(str(self))
        if self._record().role is Role.LIVE:
            return
        with self._managed("promoting") as volume:
            start = self._to_promote(volume.record, guid)
            volume.commit("BLOCK:PROMOTE:ROOT", lambda old: roles.live(old, start.root, start.guid))

    def _to_promote(self, record: RootRecord, guid: str | None) -> Entry:
        if guid is not None:
            return self._intact_base(record, guid)
        shown = record.entry(record.shown) if record.shown else None
        if shown is not None and shown.intact:
            return shown
        intact = [
            one for one in record.snapshots if one.intact and one.kind is not SnapshotKind.DIVERGED
        ]
        if not intact:
            raise nothing_shown(str(self))
        return max(intact, key=lambda one: one.order)

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """The process that has the volume open, if any. (A kept volume cannot be opened.)"""
        writer = None if kept or not is_volume(self._path) else writer_of(self._path)
        if writer is None or limit < 1:
            return []
        return [OpenWriter(writer.pid, name_of(writer.pid), self.location)]

    def freeze(self) -> None:
        """Hold the writers' lock until the thaw. `Busy` when a writer has it."""
        self._record_of_role(Role.LIVE)
        self._freeze = Volume.freeze(self._path)

    def thaw(self) -> None:
        """See `Driver.thaw`. `Busy` when a running process holds the freeze."""
        self.detach()
        shared = open_volume(self._path)
        if shared is not None:
            shared.thaw()
        elif is_volume(self._path) and is_frozen(self._path):
            with self._managed("thawing"):
                pass

    def mark(self) -> str:
        """Any write changes the live root."""
        if not is_volume(self._path):
            return self.facts().role.value
        shared = open_volume(self._path)
        if shared is not None and shared.image.changed:
            with self._managed("marking") as volume:
                volume.commit("BLOCK:FLUSH:ROOT")
        return roles.mark(self._record())

    def is_marked(self, mark: str) -> bool:
        """False while another process may have unflushed writes."""
        if not is_volume(self._path):
            return mark == self.facts().role.value
        return not self._may_have_changed() and mark == roles.mark(self._record())

    def _may_have_changed(self) -> bool:
        """Whether there may be writes that are not in a root record yet."""
        shared = open_volume(self._path)
        if shared is not None:
            return shared.image.changed
        return locks.holder_of(self._path / "writer") is not None

    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Driver.begin_test`: shared or copied data files, and a root record."""
        record = self._record_of_role(Role.MIRROR)
        made = copies.begin(self._path, record, roles.new_segment(record), place, str(self))
        return BlockDriver(str(made)).facts()

    def end_test(self) -> bool:
        """See `Driver.end_test`."""
        there = copies.find(self._path)
        if there is None:
            return copies.end(self._path)
        with Volume.managed(there, "removing the copy"):
            return copies.end(self._path)

    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """Compares the two content trees; a block volume has no files to list."""
        if not is_volume(self._path):
            raise not_live(str(self))
        with self._managed("comparing") as volume:
            entry = self._intact_base(volume.record, guid)
            volume.commit("BLOCK:FLUSH:ROOT")
            changed = changed_blocks(volume.store, entry.root, volume.record.live)
            newer = tuple(
                one.name
                for one in volume.record.snapshots
                if one.order > entry.order and one.kind is not SnapshotKind.DIVERGED
            )
        return Divergence(guid, changed * BLOCK_BYTES, None, changed, newer)

    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """One root record: role, view, and the live image as a snapshot, if it differs from that of
        `guid`. It is compared under the writers' lock, in the same step, so no write can happen in
        between; an open volume of this process is read-only from then on.
        """
        with self._managed("rolling back") as volume:
            record = volume.record
            if record.role is Role.MIRROR and record.mirror_id not in ("", mirror_id):
                raise other_mirror(str(self), record.mirror_id)
            entry = self._intact_base(record, guid)
            if (record.role, record.mirror_id, record.shown) != (Role.MIRROR, mirror_id, guid):
                before: list[Root] = []

                def back(old: RootRecord) -> RootRecord:
                    before[:] = [old.live]
                    return roles.rolled_back(old, entry, mirror_id=mirror_id, keep_as=keep_as)

                volume.commit("BLOCK:ROLLBACK:ROOT", back)
                lost = replace(roles.diverged("", before[0]), order=volume.record.next_order)
                reclaim_snapshots(volume.store, volume.image, volume.record, [lost])
            kept = roles.kept_as(volume.record, keep_as)
        self.thaw()  # nothing is left that could be frozen
        return kept.name if kept else None

    def reinstate(self, name: str) -> None:
        """One root record. It allocates in a new segment, as after a promotion, because blocks that
        a transfer has staged in the meantime use numbers of the old one.
        """
        if not is_volume(self._path):
            raise not_a_mirror(str(self))
        if self._record().role is Role.LIVE:
            return
        with self._managed("reinstating the live volume") as volume:
            kept = roles.kept_as(volume.record, name)
            if kept is None or not kept.intact:
                raise NotFound("nothing is set aside under that name", where=str(self), why=name)
            volume.commit(
                "BLOCK:REINSTATE:ROOT",
                lambda old: roles.live(old.without({kept.guid}), kept.root, old.origin),
            )

    def forget(self) -> None:
        """Drop the mirror's id and all stagings."""
        if not is_volume(self._path):
            return
        for transfer_id in staging.transfer_ids(self._path):
            self.discard(transfer_id)
        with self._managed("forgetting the mirror") as volume:
            volume.commit("BLOCK:FORGET:ROOT", lambda old: replace(old, mirror_id=""))

    # Helpers

    def _managed(self, purpose: str) -> AbstractContextManager[Volume]:
        return Volume.managed(self._path, purpose)

    def _record(self) -> RootRecord:
        return rootrecord.load(self._path)

    def _record_of_role(self, role: Role) -> RootRecord:
        wrong = not_live(str(self)) if role is Role.LIVE else not_a_mirror(str(self))
        if not is_volume(self._path):
            raise wrong
        record = self._record()
        if record.role is not role:
            raise wrong
        return record

    def _entry(self, record: RootRecord, guid: str) -> Entry:
        return demand_snapshot(record.entry(guid), str(self), guid)

    def _intact_base(self, record: RootRecord, guid: str) -> Entry:
        entry = record.entry(guid)
        if entry is None or not entry.intact:
            raise base_missing(str(self), guid)
        return entry

    def _pair(self, base: str | None, incremental: str) -> tuple[RootRecord, Entry | None, Entry]:
        record = self._record()
        entry = self._entry(record, incremental)
        if not entry.intact:
            raise Damaged(
                f"the snapshot '{entry.name}' is not intact",
                where=str(self),
                why="its root does not match its identity",
                hint=f"Take a new one: 'mirrord update {MIRROR}'.",
            )
        return record, self._intact_base(record, base) if base is not None else None, entry

    def _staged(self, volume: Volume, state: StagingRecord | None) -> Entry:
        assert state is not None
        assert state.entry is not None
        if state.base is not None:
            self._intact_base(volume.record, state.base)
        return replace(state.entry, received=True, transfer=state.transfer_id)

    def _commit(self, volume: Volume, entry: Entry, show: bool) -> Entry:
        def switch(old: RootRecord) -> RootRecord:
            if old.entry(entry.guid) is None:
                old = old.with_snapshot(entry)
            return replace(old, live=entry.root, shown=entry.guid) if show else old

        volume.commit("BLOCK:COMMIT:ROOT", switch)
        return volume.entry(entry.guid)
