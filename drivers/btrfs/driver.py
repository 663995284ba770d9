"""The btrfs driver: volumes are subvolumes, the transfer is `btrfs send`'s stream (layout.py)."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, cast

from mirrord.core.errors import Diverged, Refused, Unsupported
from mirrord.core.model import (
    Changes,
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
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import (
    copies,
    failover,
    freezing,
    ioctl,
    layout,
    receivers,
    repair,
    reserve,
    staging,
    standing,
    store,
    subvolume,
    taking,
    walk,
)
from mirrord.drivers.btrfs.ioctl import guarded
from mirrord.drivers.btrfs.known import Known
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.native_receive import NativeReceiver
from mirrord.drivers.btrfs.receive import BtrfsReceiver
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.btrfs.stream import BtrfsSendStream, Checkpoint
from mirrord.drivers.btrfs.trees import Trees
from mirrord.drivers.contract import Capability, Clones, Driver, Pool
from mirrord.drivers.filerecords import FileRecords
from mirrord.system import files, locks
from mirrord.system.openers import writers_on

_NESTED_WATCHED_MAX = 1000


class BtrfsDriver(Trees, FileRecords, Driver, Clones, Pool):
    """One subvolume, or the destination of one. known: a cache shared by this process's drivers.

    stream_version: version of the streams that `send` produces. Version 2 carries compressed
    extents as they are, and needs btrfs-progs 6.0 at the other end. None: the highest version that
    this kernel supports. receiver: what applies streams (receivers.py), asked for when one comes.
    """

    kind: ClassVar[str] = "btrfs"
    #: Whether nested subvolumes are a part of the volume (nested_driver.py).
    nested: ClassVar[bool] = False
    _delete: Callable[[Layout, SnapshotEntry, str], None] = staticmethod(store.delete)
    _commit: Callable[..., Snapshot] = staticmethod(staging.commit)
    capabilities: ClassVar[Capability] = Capability.FILES | Capability.RESUME
    capabilities |= Capability.COPY | Capability.SHOW_LATER | Capability.POOL | Capability.VERIFY
    capabilities |= Capability.REPAIR | Capability.VERIFY_RECEIVED

    def __init__(
        self,
        location: str,
        known: Known | None = None,
        *,
        stream_version: int | None = None,
        receiver: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(location)
        self._receiver = receiver or (lambda: receivers.DEFAULT)
        self._known = known or Known()
        self._stream_version = stream_version
        self._layout: Layout | None = None
        self._seen: tuple[int, int, int] | None = None
        self._blocks: walk.NamedBlocks | None = None
        self._freeze: freezing.Freeze | None = None
        self._listed = ""  # the live volume's uuid when its snapshots were listed last

    # Facts

    def _place(self) -> Layout:
        """The paths; `Unsupported` where there cannot be a btrfs volume. They depend on what is at
        the location, and are computed again when that changes.
        """
        try:
            found = os.lstat(self.location)
            seen = (found.st_dev, found.st_ino, found.st_mode)
        except OSError:
            seen = None
        if seen is None or seen != self._seen or self._layout is None:
            self._layout, self._seen = self._find_place(), seen
        return self._layout

    def _find_place(self) -> Layout:
        subvolume.require_support()
        if os.geteuid() != 0:
            raise refusals.permission_missing(str(self), "btrfs snapshots and streams need root")
        path = Path(self.location)
        there = layout.nearest_existing(Path(os.path.realpath(path)))
        if not ioctl.is_btrfs(there):
            raise Unsupported(
                "this is not on a btrfs file system",
                where=str(self),
                why=f"{there} is on {layout.filesystem_kind(path)}",
                hint="Check that its file system is mounted, or give a path on btrfs.",
            )
        return layout.resolve(self.location, self._known)._replace(nested=self.nested)

    @guarded
    def facts(self) -> VolumeFacts:
        """See `Driver.facts`."""
        return standing.facts(self._place(), self.location)

    @contextlib.contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        path = self._lock_file()
        if path is None:
            yield False
            return
        with locks.exclusive(path, purpose, what=str(self)):
            yield True

    @guarded
    def _lock_file(self) -> Path | None:
        """The file to lock; None while there is no store for it."""
        place = self._place()
        if place.live:
            layout.make_store("BTRFS:STORE", place, public=False)
        return place.lock_file if place.store.is_dir() else None

    # Snapshots

    def _live_place(self) -> Layout:
        place = self._place()
        if not place.live:
            raise refusals.not_live(str(self))
        return place

    @guarded
    def snapshots(self) -> list[Snapshot]:
        """See `Driver.snapshots`."""
        place = self._place()
        kept = store.kept(place)
        if not place.live:
            return [one.snapshot for one in kept]
        live = subvolume.info(place.view)
        self._listed = live.uuid
        if live.parent_uuid and any(one.info.uuid == live.parent_uuid for one in kept):
            return [one.snapshot for one in kept]  # it began as one of these: mirrord created it
        return [one.snapshot._replace(unrelated=one.info.parent_uuid != live.uuid) for one in kept]

    @guarded
    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Driver.own_snapshots`."""
        place = self._place()
        if not patterns or not place.live:
            return []
        owners = store.owned(place, subvolume.info(place.view))
        found = [one for one in owners if store.matches(one, patterns)]
        found.sort(key=lambda one: (one.snapshot.order, one.info.id))
        return [one.snapshot for one in found]

    @guarded
    def take_snapshot(self, name: str) -> Snapshot:
        """See `Driver.take_snapshot`."""
        return self._take_together(name, [self])[0]

    @guarded
    def _take_together(self, name: str, volumes: Sequence[Pool]) -> list[Snapshot]:
        return taking.take([one.ready(name) for one in cast(Sequence[BtrfsDriver], volumes)])

    @guarded
    def make_ready(self, name: str) -> None:
        """See `Source.make_ready`."""
        files.sync_filesystem("BTRFS:SNAPSHOT:SYNC", self.ready(name).place.view)

    @guarded
    def ready(self, name: str) -> taking.Wanted:
        """Prepare everything that a snapshot of that name needs."""
        return taking.ready(self._place(), name, self._listed, str(self))

    @guarded
    def delete_snapshot(self, guid: str) -> None:
        """See `Driver.delete_snapshot`."""
        place = self._place()
        one = store.find(place, guid)
        if one is None:
            return
        if one.wrapper is not None:
            store.demand_unused(place, one, str(self))
        reserve.use(place, lambda: self._delete(place, one, str(self)))

    @guarded
    def in_use(self, guid: str) -> str:
        """See `Driver.in_use`: what is mounted."""
        place = self._place()
        path = store.mounted_at(place, store.find(place, guid))
        return f"it is mounted at {path}" if path else ""

    @guarded
    def _records(self) -> Path | None:
        place = self._place()
        return place.store if place.live or place.store.is_dir() else None

    @guarded
    def _keep(self, work: Callable[[], None]) -> None:
        if not self.locked:
            self._lock_file()  # creates the store of a live volume
        reserve.use(self._place(), work)

    @guarded
    def reclaim(self) -> None:
        """Commit the transaction: the kernel cleans up after a commit, else every 30 s."""
        files.sync_filesystem("BTRFS:RECLAIM:SYNC", self._place().store)

    @guarded
    def changed_since(self, guid: str) -> bool:
        """See `Driver.changed_since`."""
        place = self._live_place()
        one = refusals.demand_snapshot(store.find_to_send(place, guid), str(self), guid)
        return not failover.unchanged(place.view, one)

    # Source

    def _version(self) -> int:
        return self._stream_version or ioctl.send_stream_version()

    def _pair(
        self, guid: str | None, incremental: str
    ) -> tuple[Layout, SnapshotEntry | None, SnapshotEntry]:
        """The place, the base and the incremental, each intact."""
        place = self._place()
        found = store.find_to_send(place, incremental)
        newer = refusals.demand_snapshot(found, str(self), incremental)
        if not newer.snapshot.intact:
            raise Diverged(
                "the snapshot was changed after it was taken",
                where=str(self),
                why=f"{newer.path} was made writable",
                hint="The next update takes a new snapshot.",
            )
        older = store.require_base(place, guid, str(self)) if guid is not None else None
        return place, older, newer

    @guarded
    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """See `Driver.delta`."""
        place, older, newer = self._pair(base, incremental)
        changes: tuple[FileChange, ...] | None = None
        if files:
            changes = tuple(walk.changed_files(older, newer, str(self)))
        live = subvolume.info(place.view) if place.live else None
        return walk.delta(
            older, newer, live=live, states=states, encoded=self._version() > 1, changes=changes
        )

    @guarded
    def changes(self, base: str, incremental: str) -> Changes:
        """See `Driver.changes`. Reads both trees; one may be cached by an earlier call."""
        _place, older, newer = self._pair(base, incremental)
        assert older is not None
        found, self._blocks = walk.changes(older, newer, self._blocks)
        return found

    @guarded
    def send(
        self,
        base: str | None,
        incremental: str,
        *,
        checkpoint: dict[str, int | str] | None = None,
    ) -> BtrfsSendStream:
        """See `Driver.send`. From a checkpoint: the stream is produced again, and the part that
        was received is skipped after its digest was verified.
        """
        _place, older, newer = self._pair(base, incremental)
        return self._stream(older, newer, str(self), Checkpoint.parse(checkpoint, str(self)))

    def _stream(
        self, older: SnapshotEntry | None, newer: SnapshotEntry, where: str, at: Checkpoint | None
    ) -> BtrfsSendStream:
        return walk.stream_of(older, newer, self._version(), where, at)

    # Destination

    @guarded
    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """See `Driver.prepare`."""
        place = self._place()
        if in_place and not os.path.lexists(place.location):
            place = layout.beside(place.location, self._known)._replace(nested=place.nested)
        role, notes = standing.role(place)
        owner = layout.read_mirror_id(place)
        if role in (Role.LIVE, Role.FOREIGN):
            found = "it is a live volume" if role is Role.LIVE else notes[0]
            raise refusals.not_empty(str(self), found)
        if role is Role.MIRROR and owner != mirror_id:
            raise refusals.other_mirror(str(self), owner)
        if not place.location.parent.is_dir():
            parent = str(place.location.parent)
            raise refusals.parent_missing("the destination", str(self), parent)
        files.make_directory("BTRFS:PREPARE:FOLDER", place.view.parent)
        layout.make_store("BTRFS:PREPARE", place, public=True)
        if owner != mirror_id:
            layout.write_mirror_id("BTRFS:PREPARE:MIRROR", place, mirror_id)
        reserve.keep(place)

    def _mirror_place(self) -> Layout:
        place = self._place()
        if standing.role(place)[0] is not Role.MIRROR:
            raise refusals.not_a_mirror(str(self))
        return place

    @guarded
    def receive(self, request: ReceiveRequest) -> BtrfsReceiver | NativeReceiver:
        """See `Driver.receive`."""
        place, native = self._mirror_place(), self._receiver() == "native"
        receivers.demand_owner(place, request, str(self))
        return receivers.open_receiver(place, request, str(self), native=native)

    @guarded
    def stagings(self) -> list[Staging]:
        """See `Driver.stagings`."""
        return staging.stagings(self._place())

    @guarded
    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """See `Driver.commit`."""
        place = self._mirror_place()
        repair.settle(place)
        done = self._commit(place, transfer_id, show=show, where=str(self))
        reserve.keep(place)
        failover.tidy(place, self._parts())
        return done

    @guarded
    def discard(self, transfer_id: str) -> None:
        """See `Driver.discard`."""
        staging.discard(self._place(), transfer_id, str(self))

    # Failing over and back

    @guarded
    def promote(self, guid: str | None = None) -> None:
        """See `Driver.promote`. Also works when the mirror record is missing."""
        place = self._place()
        if place.live:
            if place.store.is_dir():
                failover.promote(place, None, str(self), self._parts())
            return
        start = failover.to_promote(place, guid, str(self)) if place.store.is_dir() else None
        if start is None and standing.role(place)[0] is not Role.MIRROR:
            raise refusals.not_a_mirror(str(self))
        if os.path.lexists(place.view) and place.shown_wrapper() is None:
            raise refusals.view_replaced(str(place.view))
        reserve.use(place, lambda: failover.promote(place, start, str(self), self._parts()))
        failover.tidy(self._place(), self._parts())

    def _parts(self) -> failover.Parts:
        return failover.Parts()

    @guarded
    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """See `Driver.writers`; includes nested subvolumes, which move with the volume."""
        place = self._place()
        volume = place.diverged / layout.component(kept, str(self)) / kept if kept else place.view
        if not subvolume.is_subvolume(volume):
            return []
        nested = store.nested_names(volume, limit=_NESTED_WATCHED_MAX)
        found: list[OpenWriter] = []
        for path in (volume, *(volume / name for name in nested)):
            found += writers_on(os.stat(path).st_dev, limit=limit - len(found))
        return found

    @guarded
    def freeze(self) -> None:
        """See `Driver.freeze`."""
        place = self._live_place()
        if self._freeze is None:
            self._freeze = freezing.Freeze(place, str(self))

    @guarded
    def thaw(self) -> None:
        """See `Driver.thaw`."""
        self._unhold()
        freezing.thaw(self._place(), str(self))

    def _unhold(self) -> None:
        freeze, self._freeze = self._freeze, None
        if freeze is not None:
            freeze.release()

    def detach(self) -> None:
        """See `Driver.detach`."""
        self.verify_end()
        if self._freeze is not None:
            self.thaw()

    @guarded
    def mark(self) -> str:
        """See `Driver.mark`: the transaction of the last change identifies a subvolume's state."""
        place = self._place()
        role = standing.role(place)[0]
        if role is not Role.LIVE:
            shown = store.shown(place) if role is Role.MIRROR else None
            return f"{role.value} {shown.snapshot.guid if shown else ''}"
        files.sync_filesystem("BTRFS:MARK:SYNC", place.view)
        live = subvolume.info(place.view)
        return f"{role.value} {live.uuid} {subvolume.last_change(place.view, live)}"

    @guarded
    def is_marked(self, mark: str) -> bool:
        """See `Driver.is_marked`."""
        return self.mark() == mark

    @guarded
    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Driver.begin_test`: a writable snapshot."""
        here = self._mirror_place()
        return BtrfsDriver(str(copies.begin(here, place, str(self))), self._known).facts()

    @guarded
    def end_test(self) -> bool:
        """See `Driver.end_test`."""
        return copies.end(self._place())

    @guarded
    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """See `Driver.divergence`."""
        place = self._place()
        start = store.require_base(place, guid, str(self))
        return failover.divergence(place, start, limit=limit, where=str(self))

    @guarded
    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """See `Driver.rollback`."""
        place = self._place()
        if not place.live and os.path.lexists(place.view):  # (Or a live volume was deleted.)
            standing.demand_copy(place, mirror_id, str(self))
        target = store.find(place, guid)
        if target is None or not target.snapshot.intact:
            raise refusals.base_missing(str(self), guid)
        if target.snapshot.kind is SnapshotKind.DIVERGED:
            raise Refused("a diverged snapshot cannot be the base of a mirror", where=str(self))
        freezing.ended(place, str(self), self._freeze)
        roll_back = functools.partial(
            failover.rollback,
            target=target,
            mirror_id=mirror_id,
            keep_as=keep_as,
            where=str(self),
            parts=self._parts(),
            set_aside=self._unhold,
        )
        # After an interruption the paths may have changed.
        return reserve.use(place, lambda: roll_back(self._place()))

    @guarded
    def reinstate(self, name: str) -> None:
        """See `Driver.reinstate`."""
        place = self._place()
        reserve.use(place, lambda: failover.reinstate(place, name, str(self), self._parts()))

    @guarded
    def forget(self) -> None:
        """See `Driver.forget`."""
        place = self._place()
        if not place.store.is_dir():
            return
        staging.discard_all(place)
        repair.discard(place)
        self._trees().remove()
        own = (place.mirror_file, place.copy_file, place.frozen_file, place.reserve_file)
        for path in (*own, place.lock_file):
            if path.exists():
                files.remove_file("BTRFS:FORGET:MARK", path)
        layout.remove_empty_store(place)
