"""A dataset as a volume: its facts, role and snapshots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import cast

from mirrord.core import relationship
from mirrord.core.errors import MirrordError, Refused
from mirrord.core.model import (
    Role,
    Snapshot,
    SnapshotKind,
    VolumeFacts,
)
from mirrord.core.relationship import Relationship, check_fence
from mirrord.drivers import refusals as texts
from mirrord.drivers import snapshottrees
from mirrord.drivers.contract import Clones, Driver, Pool, comparing
from mirrord.drivers.pins import Pins, demand_free, of_snapshot, replaced, too_many
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
from mirrord.drivers.zfs.dataset.place import Dataset, Place
from mirrord.drivers.zfs.failover import failover
from mirrord.drivers.zfs.receive import commit
from mirrord.drivers.zfs.snapshots import (
    compare,
    counters,
    deleting,
    listing,
    listing_cache,
    proof,
    taking,
)
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing
from mirrord.drivers.zfs.volume import place_facts
from mirrord.drivers.zfs.volume.dataset_cache import DatasetCache
from mirrord.system import clock, locks

_NONE: Pins = {}


class ZfsDataset(Driver, Clones, Pool):
    """One dataset, or the place that it is mirrored to. location: `pool/dataset`."""

    def __init__(self, location: str) -> None:
        super().__init__(names.check_dataset(location, f"zfs:{location}"))
        self._cache = DatasetCache(location, str(self))
        #: The rest of a commit, to be done before the volume is unlocked.
        self._pending: commit.PendingCommit | None = None
        self._sent: list[str] = []

    def detach(self) -> None:
        """See `Driver.detach`."""
        with contextlib.suppress(MirrordError, OSError):
            self._finish_commit()

    # Facts

    def _look(self, *, fresh: bool = False) -> Place:
        return self._cache.place(*self._record(), fresh=fresh)

    def _record(self) -> list[str]:
        """The relationship record of the current mirror is read by the same command."""
        return [relationships.property_of(self.fence.mirror_id)] if self.fence else []

    def _list(self, place: Place) -> Listing:
        return self._cache.listing(place)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """For changes to more than a snapshot: what was read before is not used afterwards."""
        self._finish_commit()
        self._cache.change()
        try:
            yield
        finally:
            self._cache.forget()

    def _finish_commit(self) -> None:
        """Finish a commit."""
        sent, self._sent = self._sent, []
        if sent:  # each is the next base (if one no longer exists, its bookmark does)
            command.together([taking.hold("ZFS:SEND:HOLD", full) for full in sent], str(self))
        pending, self._pending = self._pending, None
        if pending is not None:
            self._cache.added(commit.finish_commit(pending, str(self)))

    def _recover(self, place: Place) -> Place:
        """Finish the commit of a process that ended."""
        self._finish_commit()
        pending = commit.left(place, self._list(place)) if place.mark.role == "mirror" else None
        if pending is None:
            return place
        commit.finish_commit(pending, str(self))
        return self._look(fresh=True)

    def _role(self, place: Place) -> tuple[Role, tuple[str, ...]]:
        return place_facts.role_of(place)

    def facts(self) -> VolumeFacts:
        """See `Driver.facts`."""
        place = self._look(fresh=True)
        role = self._role(place)[0]
        found = self._list(place) if role is Role.MIRROR else None
        return place_facts.facts_of(place, found)

    @contextlib.contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        """The lock is by name, so that a place that does not exist yet can also be locked."""
        path = locking.lock_file(self.location, "lock")
        with locks.exclusive(path, purpose, what=str(self)):
            self._finish_commit()
            self._cache.trust(True)
            try:
                yield True
            finally:
                # (If this fails, the next operation does it.)
                with contextlib.suppress(MirrordError, OSError):
                    self._finish_commit()
                self._cache.trust(False)

    # The relationship

    def relationships(self) -> dict[str, Relationship | None]:
        """See `Volume.relationships`."""
        volume = self._look().volume
        return relationships.read(volume.name, str(self)) if volume is not None else {}

    def relationship(self, mirror_id: str) -> Relationship | None:
        """See `Volume.relationship`."""
        name, fence = relationships.property_of(mirror_id), self.fence
        known = fence is not None and fence.mirror_id == mirror_id
        volume = self._cache.read_ahead(*([name] if known else self._record())).volume
        if volume is None:
            return None
        if known:
            value = volume.local(name)
        else:
            value = relationships.stored(volume.name, str(self)).get(name)
        return self._decoded(value, mirror_id)

    def _relate(self, record: Relationship) -> None:
        with self._changing():
            relationships.write(self._there().name, record, str(self))

    def _unrelate(self, mirror_id: str) -> None:
        with self._changing():
            relationships.remove(self._there().name, mirror_id, str(self))

    def _there(self) -> Dataset:
        volume = self._look().volume
        if volume is None:
            raise texts.not_a_mirror(str(self))
        return volume

    # Snapshots

    def _snapshot(self, one: Entry, place: Place, pinned: Pins = _NONE) -> Snapshot:
        volume = place.volume
        folder = mounting.folder_of(volume)
        if volume is not None and one.dataset != volume.name:
            folder = mounting.folder_aside(volume, one.dataset)
        found = listing.snapshot_of(one, folder)
        return found._replace(pinned=of_snapshot(pinned, one.guid)) if pinned else found

    def snapshots(self) -> list[Snapshot]:
        """See `Driver.snapshots`."""
        place = self._look()
        if self._role(place)[0] is Role.FOREIGN and place.mark.role != "forgotten":
            return []
        found = self._list(place)
        past = found.history()
        pinned = self._pinned(place)
        return [
            self._snapshot(one, place, pinned)._replace(aside=one.order > past.get(one.dataset, -1))
            for one in found.ours()
        ]

    def _pinned(self, place: Place) -> Pins:
        pins = place.volume.pins if place.volume else _NONE
        return snapshottrees.pinned(transfer_record.trees(self.location), pins)

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Driver.own_snapshots`."""
        if not patterns:
            return []
        place = self._look()
        if self._role(place)[0] is not Role.LIVE:
            return []
        return [
            self._snapshot(one, place)
            for one in self._cache.listing(place, certain=True).own()
            if one.mark is None
            and not one.name.startswith(proof.PREFIX)
            and listing.matches(one, patterns)
        ]

    def _live(self) -> Place:
        place = self._look()
        if self._role(place)[0] is not Role.LIVE:
            raise texts.not_live(str(self))
        missing = mounting.missing(place.here)
        if missing is not None:
            raise missing
        return place

    @comparing
    def take_snapshot(self, name: str) -> Snapshot:
        """See `Driver.take_snapshot`. It is held from its first send until mirrord deletes it. The
        channel program compares the relationship record with the one that was read.
        """
        where = str(self)
        names.check_snapshot(name, where)
        mark = SnapshotMark(SnapshotKind.REFERENCE, "", clock.now_ns())
        place, record = self._cache.hinted_place, self._record()
        if place is None or place.here is None or not place.here.properties.keys() >= set(record):
            place = self._look()
        if self.fence is not None and place.here is not None:
            stored = self._decoded(place.here.local(record[0]), self.fence.mirror_id)
            check_fence(stored, self.fence, where)
        taken = None
        if self._role(place)[0] is Role.LIVE and mounting.there(place.here):
            taken = taking.at_once(place, name, mark, record)
        if taken is None:
            self.demand_fence()
            return self._take_together(name, [self])[0]
        self._cache.added(taken.entry)
        self._cache.follows(taken.entry, taken.before, taken.written)
        return self._snapshot(taken.entry, place)

    def _decoded(self, value: str | None, mirror_id: str) -> Relationship | None:
        return relationship.decode_stored(value, mirror_id, str(self)) if value else None

    def _take_together(self, name: str, volumes: Sequence[Pool]) -> list[Snapshot]:
        drivers = cast(Sequence[ZfsDataset], volumes)
        names.check_snapshot(name, str(self))
        places = {one: one._live() for one in drivers}
        pools: dict[str, list[ZfsDataset]] = {}
        for one in drivers:
            pools.setdefault(names.pool_of(one.location), []).append(one)
        found: dict[ZfsDataset, Snapshot] = {}
        for some in pools.values():
            mark = SnapshotMark(SnapshotKind.REFERENCE, "", clock.now_ns())
            taken = taking.by_commands([places[one] for one in some], name, mark, str(self))
            for one, each in zip(some, taken, strict=True):
                one._cache.added(each.entry)
                one._cache.follows(each.entry, each.before, each.written)
                found[one] = one._snapshot(each.entry, places[one])
        return [found[one] for one in drivers]

    def delete_snapshot(self, guid: str) -> None:
        """See `Driver.delete_snapshot`."""
        self._finish_commit()
        seen = self._cache.hinted_place
        live = seen is not None and self._role(seen)[0] is Role.LIVE
        where, (place, found) = str(self), self._cache.for_deletion(guid, live=live)
        one = found.find(guid)
        if one is None:
            return
        if one.mark is None:
            raise Refused("cannot delete a user snapshot", where=where, why=one.full)
        seen = self._look()  # under the lock, so that no pin is added meanwhile
        demand_free(self._pinned(seen), [guid], one.name, where)
        if place.mark.role == "mirror" and failover.shown(place, found) == guid:
            raise Refused(
                "the snapshot is what the destination shows",
                where=where,
                why=one.name,
                hint="It can be deleted when the destination shows a newer one.",
            )
        change = listing_cache.Change(place)
        deleting.delete(place, found, one, where)
        change.done(gone=guid)
        self._cache.gone(guid)
        if place.mark.kept:
            self._cache.forget()

    def pin(self, mirror_id: str, guids: Sequence[str]) -> None:
        """See `Driver.pin`. The pins are one user property of the dataset, which is set by one
        command and read together with all other properties. (Holds would need two commands per
        update at each end, and a third to read them.)
        """
        where, here = str(self), self._look().volume
        if here is None:
            return
        after = replaced(here.pins, mirror_id, guids, where)
        if after == here.pins:
            return
        text = marks.pins_text(after)
        if text is None:
            raise too_many(where)
        words = ["set", f"{marks.PINS}={text}"] if after else ["inherit", marks.PINS]
        command.effect("ZFS:PIN:SET", ["zfs", *words, here.name], where)
        if here.name == self.location:
            value = (text, "local") if after else ("-", "-")
            properties = {**here.properties, marks.PINS: value}
            self._cache.pinned(here._replace(properties=properties))
        else:
            self._cache.forget()

    def changed_since(self, guid: str) -> bool:
        """See `Driver.changed_since`."""
        where, one, seen = str(self), self._cache.hint(guid), self._cache.hinted_place
        if one is not None and seen is not None and seen.here is not None:
            live = self._role(seen)[0] is Role.LIVE and mounting.there(seen.here)
            if live and counters.has_writes(seen.here, guid):
                return True
            answer = compare.changed(seen.here, one, where) if live else None
            if answer is not None:
                return answer
        place = self._live()
        assert place.here is not None
        found = self._list(place)
        one = texts.demand_snapshot(found.find(guid) or found.bookmark(guid), where, guid)
        if one.dataset != self.location:
            return True  # it was set aside: the volume was rolled back to an older one
        compare.sync([place.here], where)
        return compare.written(self.location, one, where) != 0

    def base_left(self, guid: str) -> Snapshot | None:
        """See `Driver.base_left`: a bookmark."""
        place = self._look(fresh=True)
        found = self._cache.listing(place, certain=True)
        one = found.bookmark(guid)
        if one is None or not found.is_past(one) or self._role(place)[0] is not Role.LIVE:
            return None
        return listing.snapshot_of(one, "")._replace(kind=SnapshotKind.REFERENCE)
