"""A driver over volumes in memory that keeps the whole contract of drivers/contract.py.

The volumes and their stagings (volume.py) stand for what is on disk, and survive a crash; drivers
and streams are what a process has in its memory, and do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import count

from mirrord.core.errors import Busy, NotFound, Refused
from mirrord.core.model import (
    BlockStates,
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
from mirrord.drivers import pins
from mirrord.drivers.contract import Capability, Driver
from mirrord.drivers.refusals import (
    base_missing,
    no_space,
    not_a_mirror,
    not_empty,
    not_live,
    other_mirror,
    snapshot_missing,
    staging_missing,
)
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.system import clock, steps
from tests.sim.link import Link
from tests.sim.receiver import MemoryReceiver
from tests.sim.records import MemoryRecords
from tests.sim.stream import Head, MemorySendStream
from tests.sim.volume import Blocks, Body, Disk, Entry, Staged, Volume

_FREE_BYTES = 1 << 40
DIVERGED, REFERENCE = SnapshotKind.DIVERGED, SnapshotKind.REFERENCE


class MemoryDriver(MemoryRecords, Driver):
    """The volume at `location` of a disk; its streams go over `link`, or take no time."""

    kind = "memory"
    capabilities = Capability.RESUME | Capability.SHOW_LATER

    def __init__(self, disk: Disk, location: str, link: Link | None = None) -> None:
        super().__init__(location)
        self._disk = disk
        self._link = link

    def facts(self) -> VolumeFacts:
        """Plain look-up."""
        facts = VolumeFacts(
            self.kind,
            self.location,
            Role.ABSENT,
            "",
            "memory",
            self.location,
            free_bytes=0 if self.location in self._disk.full else _FREE_BYTES,
        )
        volume = self._disk.volumes.get(self.location)
        if volume is None:
            if self.location in self._disk.foreign:
                return facts._replace(role=Role.FOREIGN, notes=("it holds somebody's data",))
            return facts
        live = volume.role is Role.LIVE
        return facts._replace(
            role=volume.role,
            identity=volume.identity,
            mirror_id=volume.mirror_id,
            shown=volume.shown if not live and volume.shown in volume.entries else None,
            origin=volume.origin if live else None,
            frozen=live and volume.frozen,
        )

    @contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        if self.location not in self._disk.volumes:
            yield False
            return
        holder = self._disk.held.get(self.location)
        if holder is not None:
            raise Busy(f"the volume '{self}' is in use by {holder}", hint="Wait for it to end.")
        self._disk.held[self.location] = purpose
        try:
            yield True
        finally:
            del self._disk.held[self.location]

    # Snapshots

    def snapshots(self) -> list[Snapshot]:
        """In the order in which they came: that is how the table grows."""
        volume = self._disk.volumes.get(self.location)
        if volume is None:
            return []
        live = volume.role is Role.LIVE
        return [
            entry.snapshot._replace(
                unrelated=live
                and entry.snapshot.kind is SnapshotKind.REFERENCE
                and not volume.is_related(entry),
                pinned=pins.of_snapshot(volume.pins, entry.snapshot.guid),
            )
            for entry in volume.entries.values()
            if not entry.owners
        ]

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """Those that `own_snapshot` took."""
        volume = self._disk.volumes.get(self.location)
        if volume is None or not patterns:
            return []
        return [
            entry.snapshot
            for entry in volume.entries.values()
            if entry.owners and any(fnmatchcase(entry.snapshot.name, glob) for glob in patterns)
        ]

    def take_snapshot(self, name: str) -> Snapshot:
        """A copy of the map."""
        volume = self._of_role(Role.LIVE)
        for entry in volume.entries.values():
            if entry.snapshot.name == name and entry.snapshot.kind is SnapshotKind.REFERENCE:
                return entry.snapshot
        if self.location in self._disk.full:
            raise no_space(str(self), "the volume is full")
        steps.reached("MEMORY:SNAPSHOT:TAKE")
        return volume.take(f"s{self._disk.draw()}", name, SnapshotKind.REFERENCE).snapshot

    def own_snapshot(self, name: str) -> Snapshot:
        """As the owner would, without mirrord."""
        volume = self._of_role(Role.LIVE)
        return volume.take(f"s{self._disk.draw()}", name, SnapshotKind.OWN).snapshot

    def delete_own(self, guid: str) -> None:
        """As the owner would."""
        del self._of_role(Role.LIVE).entries[guid]

    def delete_snapshot(self, guid: str) -> None:
        """Drop it from the table."""
        volume = self._disk.volumes.get(self.location)
        entry = volume.entries.get(guid) if volume is not None else None
        if volume is None or entry is None:
            return
        if entry.owners:
            raise Refused("the snapshot is the owner's own", where=str(self))
        if volume.role is Role.MIRROR and volume.shown == guid:
            raise Refused("the destination shows this snapshot", where=str(self))
        pins.demand_free(volume.pins, [guid], entry.snapshot.name, str(self))
        steps.reached("MEMORY:SNAPSHOT:DELETE")
        del volume.entries[guid]

    def pin(self, mirror_id: str, guids: Sequence[str]) -> None:
        """One entry of the table."""
        volume = self._disk.volumes.get(self.location)
        if volume is None:
            return
        after = pins.replaced(volume.pins, mirror_id, guids, str(self))
        if after != volume.pins:
            steps.reached("MEMORY:PIN:SET")
            volume.pins = after

    def changed_since(self, guid: str) -> bool:
        """Compares the contents."""
        volume = self._of_role(Role.LIVE)
        return volume.live != self._entry(volume, guid).blocks

    # Source

    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """Of one pass over both maps."""
        old, entry = self._pair(base, incremental)
        size = self._disk.geometry.block_bytes
        added = len(entry.blocks.items() - old.items())
        gone = len(old.keys() - entry.blocks.keys())
        counts = None
        if states:
            unchanged = len(entry.blocks) - added
            deleted = len(old) - unchanged
            last = max([0, *old, *entry.blocks])
            unused = max(0, last - unchanged - deleted - added)
            counts = BlockStates(unused, unchanged, deleted, added)
        return Delta(base, incremental, size, counts, added * size, (added + gone) * size + 64)

    def send(
        self, base: str | None, incremental: str, *, checkpoint: dict[str, int | str] | None = None
    ) -> SendStream:
        """See stream.py."""
        old, entry = self._pair(base, incremental)
        changes = sorted(entry.blocks.items() - old.items())
        gone = old.keys() - entry.blocks.keys()
        if gone:
            changes = sorted([*changes, *((block, 0) for block in gone)])
        first = int((checkpoint or {}).get("block", 0))
        if first:
            changes = [change for change in changes if change[0] >= first]
        head = Head(base, incremental, entry.digest)
        return MemorySendStream(str(self), self._disk.geometry, head, changes, self._link)

    # Destination

    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """An empty volume of the role MIRROR."""
        if self.location in self._disk.foreign:
            raise not_empty(str(self), "it holds somebody's data")
        volume = self._disk.volumes.get(self.location)
        if volume is not None and volume.role is not Role.MIRROR:
            raise not_empty(str(self), "it is a live volume")
        if volume is not None and volume.mirror_id not in ("", mirror_id):
            raise other_mirror(str(self), volume.mirror_id)
        if volume is None or volume.mirror_id != mirror_id:
            steps.reached("MEMORY:PREPARE:MARK")
            volume = volume or Volume(f"v{self._disk.draw()}", Role.MIRROR)
            volume.mirror_id = mirror_id
            self._disk.volumes[self.location] = volume

    def receive(self, request: ReceiveRequest) -> Receiver:
        """See `MemoryReceiver`."""
        volume = self._of_role(Role.MIRROR)
        if volume.mirror_id != request.mirror_id:
            raise other_mirror(str(self), volume.mirror_id)
        if request.base is not None and request.base not in volume.entries:
            raise base_missing(str(self), request.base)
        self._round_trip()
        staged = volume.staged.get(request.transfer_id)
        if staged is None:
            steps.reached("MEMORY:RECEIVE:STAGE")
            staged = volume.staged[request.transfer_id] = Staged(request)
        return MemoryReceiver(self._disk, self.location, volume, staged)

    def stagings(self) -> list[Staging]:
        """Those that were committed do not count."""
        volume = self._disk.volumes.get(self.location)
        if volume is None or not volume.staged:
            return []
        committed = {entry.transfer for entry in volume.entries.values()}
        return [
            staged.staging()
            for transfer_id, staged in volume.staged.items()
            if transfer_id not in committed
        ]

    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """Snapshot and view in one assignment after another, with no step between."""
        volume = self._of_role(Role.MIRROR)
        self._round_trip()
        staged = volume.staged.get(transfer_id)
        done = [entry for entry in volume.entries.values() if entry.transfer == transfer_id]
        entry = done[0] if done else staged.entry if staged else None
        if entry is None:
            raise staging_missing(str(self), transfer_id)
        if not done or (show and volume.shown != entry.snapshot.guid):
            steps.reached("MEMORY:COMMIT:SHOW")
            if not done:
                entry = volume.add(entry.snapshot, entry.blocks, entry.digest, transfer_id)
            if show:
                volume.shown = entry.snapshot.guid
        if staged is not None:
            steps.reached("MEMORY:COMMIT:CLEAN")
            del volume.staged[transfer_id]
        return entry.snapshot

    def discard(self, transfer_id: str) -> None:
        """Drop the record."""
        volume = self._disk.volumes.get(self.location)
        if volume is not None and transfer_id in volume.staged:
            steps.reached("MEMORY:DISCARD:CLEAN")
            del volume.staged[transfer_id]

    # Failing over and back

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """Descriptors that are open, each of a process of its own."""
        volume = self._disk.volumes.get(self.location)
        if volume is None:
            return []
        body = volume.body if volume.role is Role.LIVE and not kept else None
        if kept:
            body = next((e.body for e in volume.entries.values() if e.snapshot.name == kept), None)
        found = min(limit, body.writers) if body is not None else 0
        return [OpenWriter(1000 + n, "writer", f"{self.location}/file{n}") for n in range(found)]

    def freeze(self) -> None:
        """Until `thaw`, `detach`, or the end of the process (`Volume.frozen` is set back then)."""
        volume = self._of_role(Role.LIVE)
        steps.reached("MEMORY:FREEZE")
        volume.frozen = True

    def thaw(self) -> None:
        """Nothing when it is not frozen."""
        volume = self._disk.volumes.get(self.location)
        if volume is not None:
            volume.frozen = False

    def detach(self) -> None:
        """No freeze outlasts it."""
        volume = self._disk.volumes.get(self.location)
        if volume is not None:
            volume.frozen = False

    def mark(self) -> str:
        """Counts the changes."""
        volume = self._disk.volumes.get(self.location)
        if volume is None:
            return Role.ABSENT.value
        if volume.role is Role.LIVE:
            return f"{volume.role.value} {volume.body.number} {volume.body.changes}"
        return f"{volume.role.value} {volume.shown}"

    def is_marked(self, mark: str) -> bool:
        """Compares."""
        return self.mark() == mark

    def promote(self, guid: str | None = None) -> None:
        """The live content begins as a copy of a snapshot."""
        volume = self._volume()
        if volume.role is Role.LIVE and volume.origin is not None:
            return
        volume = self._of_role(Role.MIRROR)
        guid = guid or (volume.shown if volume.shown in volume.entries else self._newest(volume))
        if guid is None:
            raise Refused("the destination shows nothing yet", where=str(self))
        entry = self._entry(volume, guid)
        steps.reached("MEMORY:PROMOTE:SWITCH")
        volume.end_span()
        volume.role = Role.LIVE
        volume.body = Body(self._disk.draw(), entry.blocks.copy(), guid)

    def _newest(self, volume: Volume) -> str | None:
        found = [e.snapshot for e in volume.entries.values() if e.snapshot.kind is REFERENCE]
        return found[-1].guid if found else None

    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """Counts blocks: there are no files."""
        volume = self._of_role(Role.LIVE)
        entry = self._entry(volume, guid)
        changed = len({block for block, _ in volume.live.items() ^ entry.blocks.items()})
        newer = tuple(
            each.snapshot.name
            for each in volume.entries.values()
            if each.snapshot.order > entry.snapshot.order
            and each.snapshot.kind is not SnapshotKind.DIVERGED
        )
        return Divergence(guid, changed * self._disk.geometry.block_bytes, None, changed, newer)

    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """The role and the view in one step; then what was set aside is kept, or dropped."""
        volume = self._volume()
        if volume.role is Role.MIRROR and volume.mirror_id not in ("", mirror_id):
            raise other_mirror(str(self), volume.mirror_id)
        if guid not in volume.entries:
            raise base_missing(str(self), guid)
        if volume.role is Role.LIVE:
            steps.reached("MEMORY:ROLLBACK:SWITCH")
            volume.end_span()
            taken = {entry.snapshot.name for entry in volume.entries.values()}
            names = (f"{keep_as}~{number}" if number > 1 else keep_as for number in count(1))
            volume.aside[next(name for name in names if name not in taken)] = volume.body
            volume.body, volume.frozen = Body(0), False
            volume.role, volume.mirror_id, volume.shown = Role.MIRROR, mirror_id, guid
        elif (volume.mirror_id, volume.shown) != (mirror_id, guid):
            steps.reached("MEMORY:ROLLBACK:SHOW")
            volume.mirror_id, volume.shown = mirror_id, guid
        for name in list(volume.aside):
            self._settle(volume, name, guid)
        kept = [e.snapshot.name for e in volume.entries.values() if e.snapshot.kind is DIVERGED]
        return next((n for n in reversed(kept) if n.split("~")[0] == keep_as), None)

    def _settle(self, volume: Volume, name: str, guid: str) -> None:
        """Keep what was set aside, or drop it when it is what a snapshot holds."""
        steps.reached("MEMORY:ROLLBACK:SETTLE")
        body = volume.aside[name]
        if not self._is_superfluous(volume, body, guid):
            snapshot = Snapshot(f"s{self._disk.draw()}", name, DIVERGED, 0, clock.now_ns())
            volume.add(snapshot, body.blocks, body.digest).body = body
        del volume.aside[name]

    def _is_superfluous(self, volume: Volume, body: Body, guid: str) -> bool:
        return not body.writers and body.blocks == volume.entries[guid].blocks

    def reinstate(self, name: str) -> None:
        """What was set aside is live again."""
        volume = self._volume()
        if volume.role is Role.LIVE:
            return
        body = volume.aside.get(name)
        kept = [
            entry
            for entry in volume.entries.values()
            if (entry.snapshot.name, entry.snapshot.kind) == (name, DIVERGED)
        ]
        if body is None and kept:
            body = kept[0].body
        if body is None:
            raise NotFound("nothing is set aside under that name", where=str(self))
        steps.reached("MEMORY:REINSTATE")
        volume.aside.pop(name, None)
        for entry in kept:
            del volume.entries[entry.snapshot.guid]
        volume.role, volume.body = Role.LIVE, body

    def forget(self) -> None:
        """Drop the mirror's id and all stagings."""
        volume = self._disk.volumes.get(self.location)
        if volume is not None and (volume.mirror_id or volume.staged):
            steps.reached("MEMORY:FORGET:CLEAN")
            volume.mirror_id = ""
            volume.staged.clear()
            if volume.role is Role.MIRROR and not volume.entries:
                del self._disk.volumes[self.location]  # nothing was ever there

    # Helpers

    def _round_trip(self) -> None:
        if self._link is not None:
            self._link.round_trip()

    def _volume(self) -> Volume:
        volume = self._disk.volumes.get(self.location)
        if volume is None:
            raise not_a_mirror(str(self))
        return volume

    def _of_role(self, role: Role) -> Volume:
        volume = self._disk.volumes.get(self.location)
        if volume is None or volume.role is not role:
            raise not_live(str(self)) if role is Role.LIVE else not_a_mirror(str(self))
        return volume

    def _entry(self, volume: Volume, guid: str) -> Entry:
        entry = volume.entries.get(guid)
        if entry is None:
            raise snapshot_missing(str(self), guid)
        return entry

    def _pair(self, base: str | None, incremental: str) -> tuple[Blocks, Entry]:
        volume = self._volume()
        entry = self._entry(volume, incremental)
        if base is None:
            return {}, entry
        if base not in volume.entries:
            raise base_missing(str(self), base)
        return volume.entries[base].blocks, entry
