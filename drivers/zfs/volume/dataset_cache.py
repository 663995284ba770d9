"""A cache of what a driver object has read of its volume: each read would start a `zfs` program.

Under the volume's lock no other process changes what mirrord relies on, so the cache is valid until
this process changes something. Without the lock it is a hint: it has the last known name of a
snapshot, and commands that use that name also get the guid from ZFS and compare it.
"""

from __future__ import annotations

import math

from mirrord.drivers import refusals as texts
from mirrord.drivers.zfs.dataset.place import Dataset, Place, look
from mirrord.drivers.zfs.receive import receiver
from mirrord.drivers.zfs.snapshots import listing, listing_cache
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing
from mirrord.system import clock

#: So long may what was read ahead be used.
_AHEAD_S = 1.0


class DatasetCache:
    """trusted: the volume's lock is held."""

    def __init__(self, location: str, where: str) -> None:
        self._location, self._where = location, where
        self._asked: tuple[str, ...] = ()
        #: What was at the location when it was last read.
        self.hinted_place: Place | None = None
        self._listing: Listing | None = None
        self._hints: dict[str, Entry] = {}
        self._trusted = self._valid = False
        #: When the place was read for the look that follows (monotonic).
        self._ahead_s = -math.inf
        self._gap: tuple[str, str, int] | None = None

    def trust(self, locked: bool) -> None:
        """The lock was taken or is released: what was read before is only a hint."""
        self._trusted = locked
        self.forget()

    def forget(self) -> None:
        """Invalidate: something is about to change, or has changed."""
        self._valid, self._listing = False, None
        self.change()

    def change(self) -> None:
        """Something is about to change: nothing that was read ahead is used."""
        self._ahead_s = -math.inf

    def read_ahead(self, *more: str) -> Place:
        """`place`, and the next look that would read it again uses this, if it follows at once: a
        verb begins with the relationship record, which is read together with all the rest.
        """
        before, self._ahead_s = self.hinted_place if self._valid else None, -math.inf
        found = self.place(*more)
        if found is not before:
            self._ahead_s = clock.monotonic_s()
        return found

    def place(self, *more: str, fresh: bool = False) -> Place:
        """What is at the location; more: additional properties that are needed."""
        if not set(more) <= set(self._asked):
            self._asked, self.hinted_place = more, None
        if fresh or not self._valid or self.hinted_place is None:
            ahead, self._ahead_s = clock.monotonic_s() - self._ahead_s < _AHEAD_S, -math.inf
            if not ahead or self.hinted_place is None:
                self._listing = None
                self.hinted_place = look(self._location, self._where, *self._asked)
                self._valid = self._trusted
        return self.hinted_place

    def pinned(self, here: Dataset) -> None:
        """The pins of the dataset have changed; everything else is unchanged."""
        if self.hinted_place is not None:
            self.hinted_place = self.hinted_place._replace(here=here)

    def listing(self, place: Place, *, certain: bool = False) -> Listing:
        """Its snapshots; empty when there is no volume. certain: see `cache`."""
        if not certain and self._valid and self._listing is not None and place is self.hinted_place:
            return self._listing
        volume = place.volume
        if volume is None:
            return Listing(self._location, ())
        request = receiver.last(place)
        before = listing_cache.key_of(place)
        kept = listing_cache.load(place, certain=certain)
        if kept is not None:
            found = listing.made(volume.name, kept, request)
        else:
            others = list(place.mark.kept)
            if place.here is not None and place.fresh is not None:
                # An interrupted swap: the new volume already has the older snapshots.
                others.append(place.fresh.name)
            found = listing.load(volume.name, others, request, self._where)
            listing_cache.save(place, found, before)
        self._hints = {one.guid: one for one in found.snapshots()}
        if place is self.hinted_place:
            self._listing = found
        return found

    def hint(self, guid: str) -> Entry | None:
        """A snapshot as it was last seen."""
        return self._hints.get(guid)

    def added(self, one: Entry) -> None:
        """Add a snapshot that was taken or received."""
        self.change()
        self._hints[one.guid] = one
        if self._listing is not None:
            entries = [*(old for old in self._listing.entries if old.full != one.full), one]
            self._listing = listing.made(self._listing.dataset, entries, None)

    def follows(self, one: Entry, before: str | None, written: int) -> None:
        """Record how many bytes were written between the snapshot `before` and this one."""
        self._gap = (before, one.guid, written) if before else None

    def gap(self, base: str | None, incremental: str) -> int | None:
        """Bytes written between two snapshots, if known since the newer one was taken."""
        if self._gap is None or self._gap[:2] != (base, incremental):
            return None
        return self._gap[2]

    def gone(self, guid: str) -> None:
        """Remove a snapshot that was deleted."""
        self.change()
        self._hints.pop(guid, None)
        if self._listing is not None:
            entries = [one for one in self._listing.entries if one.guid != guid]
            self._listing = listing.made(self._listing.dataset, entries, None)

    def pair(self, base: str | None, incremental: str) -> tuple[Place, Entry | None, Entry]:
        """The pair as it was last seen, or is found now. A bookmark of the base is sufficient."""
        place, newer = self.hinted_place, self.hint(incremental)
        older = self.hint(base) if base is not None else None
        if place is not None and newer is not None and (base is None or older is not None):
            return place, older, newer
        return self.found_pair(base, incremental)

    def found_pair(self, base: str | None, incremental: str) -> tuple[Place, Entry | None, Entry]:
        """The pair as it is now. Raises `NotFound`, `Diverged`."""
        place = self.place(fresh=True)
        found = self.listing(place)
        newer = texts.demand_snapshot(found.find(incremental), self._where, incremental)
        older = None
        if base is not None:
            left = found.find(base) or found.bookmark(base)
            older = texts.demand_base(left, self._where, base)
        return place, older, newer

    def for_deletion(self, guid: str, *, live: bool) -> tuple[Place, Listing]:
        """What is needed to delete a snapshot. Of a live volume (as it was last seen) that is only
        the snapshot, as it is now, under its last known name.
        """
        place, one = self.hinted_place, self.hint(guid)
        if live and place is not None and one is not None and not place.mark.kept:
            now = listing.load_one(one.full, self._where)
            if now is not None and now.guid == guid and not now.clones:
                return place, Listing(one.dataset, (now,))
        place = self.place()
        found = self.listing(place)
        one = found.find(guid)
        # A cached listing does not show newer clones and holds.
        if one is not None:
            found = found.with_one(one, listing.load_one(one.full, self._where))
        return place, found
