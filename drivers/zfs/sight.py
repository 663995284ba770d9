"""What a driver object has seen of its volume: each question to ZFS costs a program's start.

Under the volume's lock nobody but us changes what mirrord relies on, so what was seen is true until
we change it. Without the lock it is a hint: it says under which name a snapshot was, and whoever
uses that asks ZFS for the identity in the same breath.
"""

from __future__ import annotations

from mirrord.drivers import refusals as texts
from mirrord.drivers.zfs import cache, listing, receive
from mirrord.drivers.zfs.listing import Entry, Listing
from mirrord.drivers.zfs.place import Dataset, Place, look


class Sight:
    """trusted: the volume's lock is held."""

    def __init__(self, location: str, where: str) -> None:
        self._location, self._where = location, where
        self._asked: tuple[str, ...] = ()
        self._place: Place | None = None
        self._listing: Listing | None = None
        self._hints: dict[str, Entry] = {}
        self._trusted = self._true = False
        self._gap: tuple[str, str, int] | None = None

    def trust(self, locked: bool) -> None:
        """The lock was taken, or is given back: what was seen before is but a hint."""
        self._trusted = locked
        self.forget()

    def forget(self) -> None:
        """Something is about to change, or has."""
        self._true, self._listing = False, None

    def place(self, *more: str, fresh: bool = False) -> Place:
        """What is at the location; more: properties that are needed beside the usual ones."""
        if not set(more) <= set(self._asked):
            self._asked, fresh = more, True
        if fresh or not self._true or self._place is None:
            self._listing = None
            self._place = look(self._location, self._where, *self._asked)
            self._true = self._trusted
        return self._place

    def pinned(self, here: Dataset) -> None:
        """Other snapshots of the dataset are pinned than were; all else is as it was seen."""
        if self._place is not None:
            self._place = self._place._replace(here=here)

    def listing(self, place: Place, *, certain: bool = False) -> Listing:
        """Its snapshots; nothing where there is no volume. certain: see `cache`."""
        if not certain and self._true and self._listing is not None and place is self._place:
            return self._listing
        volume = place.volume
        if volume is None:
            return Listing(self._location, ())
        request = receive.last(place)
        before = cache.key_of(place)
        kept = cache.load(place, certain=certain)
        if kept is not None:
            found = listing.made(volume.name, kept, request)
        else:
            others = list(place.mark.kept)
            if place.here is not None and place.fresh is not None:
                # A swap that was interrupted: what takes the place has the older ones already.
                others.append(place.fresh.name)
            found = listing.load(volume.name, others, request, self._where)
            cache.save(place, found, before)
        self._hints = {one.guid: one for one in found.snapshots()}
        if place is self._place:
            self._listing = found
        return found

    def hint(self, guid: str) -> Entry | None:
        """A snapshot where it was seen last."""
        return self._hints.get(guid)

    def hinted_place(self) -> Place | None:
        """What was at the location when it was looked at last."""
        return self._place

    def added(self, one: Entry) -> None:
        """A snapshot came, of which all is known."""
        self._hints[one.guid] = one
        if self._listing is not None:
            entries = [*(old for old in self._listing.entries if old.full != one.full), one]
            self._listing = listing.made(self._listing.dataset, entries, None)

    def follows(self, one: Entry, before: str | None, written: int) -> None:
        """That snapshot has so many bytes which the one before it, `before`, has not."""
        self._gap = (before, one.guid, written) if before else None

    def gap(self, base: str | None, incremental: str) -> int | None:
        """Bytes written between two snapshots, when that was said as the newer one was taken."""
        if self._gap is None or self._gap[:2] != (base, incremental):
            return None
        return self._gap[2]

    def gone(self, guid: str) -> None:
        """A snapshot was deleted."""
        self._hints.pop(guid, None)
        if self._listing is not None:
            entries = [one for one in self._listing.entries if one.guid != guid]
            self._listing = listing.made(self._listing.dataset, entries, None)

    def pair(self, base: str | None, incremental: str) -> tuple[Place, Entry | None, Entry]:
        """The pair, as it was seen last or is found now. A base of which only a bookmark is left
        will do.
        """
        place, newer = self.hinted_place(), self.hint(incremental)
        older = self.hint(base) if base is not None else None
        if place is not None and newer is not None and (base is None or older is not None):
            return place, older, newer
        return self.found_pair(base, incremental)

    def found_pair(self, base: str | None, incremental: str) -> tuple[Place, Entry | None, Entry]:
        """The pair as it is now. Raises `NotFound`, `Diverged`."""
        place = self.place(fresh=True)
        found = self.listing(place)
        newer = found.find(incremental)
        if newer is None:
            raise texts.snapshot_missing(self._where, incremental)
        older = None
        if base is not None:
            older = found.find(base) or found.bookmark(base)
            if older is None:
                raise texts.base_missing(self._where, base)
        return place, older, newer

    def keeping(self, guid: str, *, live: bool) -> tuple[Place, Listing]:
        """What is needed to delete a snapshot. Of a live volume (as it was seen last) that is the
        snapshot alone, as it is now, under the name that it had.
        """
        place, one = self.hinted_place(), self.hint(guid)
        if live and place is not None and one is not None and not place.mark.kept:
            now = listing.load_one(one.full, self._where)
            if now is not None and now.guid == guid and not now.clones:
                return place, Listing(one.dataset, (now,))
        place = self.place()
        found = self.listing(place)
        one = found.find(guid)
        # What is kept of a listing does not say who has cloned or held it since.
        if one is not None:
            found = found.with_one(one, listing.load_one(one.full, self._where))
        return place, found
