"""Taking reference snapshots: by one channel program, or command by command."""

from __future__ import annotations

from collections.abc import Sequence

from mirrord.core.errors import Refused
from mirrord.core.model import SnapshotKind
from mirrord.drivers.refusals import demand_snapshot
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, mounting
from mirrord.drivers.zfs.dataset.marks import SnapshotMark
from mirrord.drivers.zfs.dataset.place import Place
from mirrord.drivers.zfs.snapshots import counters, listing, listing_cache, programs
from mirrord.drivers.zfs.snapshots.listing import Entry
from mirrord.drivers.zfs.snapshots.programs import Taken

#: Errors that are ignored: the hold already exists, or the snapshot no longer exists.
_IGNORED = "tag already exists", "does not exist"


def hold(label: str, snapshot: str) -> command.Task:
    """The command that holds a snapshot: what mirrord needs is then not destroyed by mistake."""
    return command.Task(label, ["zfs", "hold", marks.HOLD, snapshot], _IGNORED)


def at_once(
    place: Place, name: str, mark: SnapshotMark, unchanged: Sequence[str] = ()
) -> Taken | None:
    """By one channel program, if the volume is as it was last seen, with its properties
    `unchanged`. None: none was taken.
    """
    volume = place.here
    if volume is None or not programs.possible():
        return None
    mounting.flush("ZFS:SNAPSHOT:FLUSH", volume)
    change, writes = listing_cache.Change(place), counters.read(volume)
    taken = programs.take(volume, name, mark, unchanged)
    if taken is None:
        return None
    change.done(added=taken.entry._replace(holds=1))  # (it will be)
    counters.save(volume, taken.entry.guid, writes)
    return taken


def by_commands(places: Sequence[Place], name: str, mark: SnapshotMark, where: str) -> list[Taken]:
    """Command by command; atomic for all volumes, which are in one pool. Snapshots of an earlier
    attempt are used.
    """
    volumes = [place.here for place in places if place.here is not None]
    fulls = [f"{volume.name}@{name}" for volume in volumes]
    for volume in volumes:
        mounting.flush("ZFS:SNAPSHOT:FLUSH", volume)
    changes = [listing_cache.Change(place) for place in places]
    writes = [counters.read(volume) for volume in volumes]
    words = ["zfs", "snapshot", "-o", f"{marks.SNAPSHOT}={mark.text()}"]
    new = command.lenient("ZFS:SNAPSHOT:TAKE", [*words, *fulls], where, "already exists")
    missing = [] if new else [full for full in fulls if listing.load_one(full, where) is None]
    if missing:
        command.effect("ZFS:SNAPSHOT:TAKE", [*words, *missing], where)
    taken = [_own(listing.load_one(full, where), full, where) for full in fulls]
    # If a snapshot is destroyed by force, the next update continues from the bookmark.
    insured = [
        task
        for one in taken
        if not one.holds
        for task in (
            hold("ZFS:SNAPSHOT:HOLD", one.full),
            command.Task(
                "ZFS:SNAPSHOT:BOOKMARK",
                ["zfs", "bookmark", one.full, f"{one.dataset}#{name}"],
                None,
            ),
        )
    ]
    if insured:
        command.together(insured, where)
    held = [one._replace(holds=one.holds or 1) for one in taken]
    for volume, one, change, before in zip(volumes, held, changes, writes, strict=True):
        change.done(added=one)
        if new or one.full in missing:
            counters.save(volume, one.guid, before)
    return [Taken(one, None, 0) for one in held]


def _own(found: Entry | None, full: str, where: str) -> Entry:
    one = demand_snapshot(found, where, full)
    if one.mark is None or one.mark.transfer or one.mark.kind is not SnapshotKind.REFERENCE:
        raise Refused(
            f"another snapshot with the name {one.name} exists",
            where=where,
            why="mirrord did not take it",
        )
    return one
