"""Taking a reference snapshot: by one program, or command by command."""

from __future__ import annotations

from mirrord.core.errors import Refused
from mirrord.core.model import SnapshotKind
from mirrord.drivers.refusals import snapshot_missing
from mirrord.drivers.zfs import (
    cache,
    command,
    counters,
    holding,
    listing,
    marks,
    mounting,
    programs,
)
from mirrord.drivers.zfs.marks import SnapshotMark
from mirrord.drivers.zfs.place import Place
from mirrord.drivers.zfs.programs import Taken


def at_once(place: Place, name: str, mark: SnapshotMark) -> Taken | None:
    """By one program, if the volume is what was seen of it last. None: it was not taken so."""
    volume = place.here
    if volume is None or not programs.possible():
        return None
    mounting.flush("ZFS:SNAPSHOT:FLUSH", volume)
    change, writes = cache.Change(place), counters.read(volume)
    taken = programs.take(volume, name, mark)
    if taken is None:
        return None
    change.done(added=taken.entry._replace(holds=1))  # (it will be)
    counters.save(volume, taken.entry.guid, writes)
    return taken


def one_by_one(place: Place, name: str, mark: SnapshotMark, where: str) -> Taken:
    """Command by command; one of an earlier try is taken for it."""
    volume = place.here
    assert volume is not None
    full = f"{volume.name}@{name}"
    mounting.flush("ZFS:SNAPSHOT:FLUSH", volume)
    change, writes = cache.Change(place), counters.read(volume)
    words = ["zfs", "snapshot", "-o", f"{marks.SNAPSHOT}={mark.text()}", full]
    new = command.lenient("ZFS:SNAPSHOT:TAKE", words, where, "already exists")
    one = listing.load_one(full, where)
    if one is None:
        raise snapshot_missing(where, full)
    if one.mark is None or one.mark.transfer or one.mark.kind is not SnapshotKind.REFERENCE:
        raise Refused(
            f"a snapshot of the name {name} is there", where=where, why="mirrord did not take it"
        )
    if not one.holds:
        # Should somebody force the snapshot away, the next update goes on from the bookmark.
        words = ["zfs", "bookmark", full, f"{volume.name}#{name}"]
        insured = command.Wish("ZFS:SNAPSHOT:BOOKMARK", words, None)
        command.together([holding.hold("ZFS:SNAPSHOT:HOLD", full), insured], where)
        one = one._replace(holds=1)
    change.done(added=one)
    if new:
        counters.save(volume, one.guid, writes)
    return Taken(one, None, 0)
