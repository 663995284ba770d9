"""A live volume with its nested subvolumes: made live, set aside, compared with a snapshot.

All are moved by the one exchange of the outermost. In what was set aside, `parts.json` lists those
that belong to the volume: they are read-only then, like those that never did.
"""

from __future__ import annotations

from pathlib import Path

from mirrord.core.errors import MirrordError
from mirrord.core.model import Divergence, FileChange
from mirrord.drivers.btrfs import assemble, failover, layout, nested, subvolume
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.nested import Found
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.system import files


class NestedParts(failover.Parts):
    """See `failover.Parts`. place: also as it is after the exchange."""

    def __init__(self, place: Layout, where: str) -> None:
        self._place, self._where = place, where

    def copy(self, start: SnapshotEntry, path: Path) -> None:
        """See `Parts.copy`. Placing the nested ones has changed what is around them."""
        assemble.make(self._place, start, path, self._where)
        layout.make_store("BTRFS:PROMOTE", self._place.inner, public=False)
        made = {"": subvolume.info(path), **nested.find(path).members}
        layout.write_parts("BTRFS:PROMOTE:BEGUN", begun_file(self._place), made)

    def paths(self, volume: Path) -> list[Path]:
        """See `Parts.paths`."""
        return [volume, *(volume / path for path in self._found(volume).members)]

    def _found(self, volume: Path) -> Found:
        listed = layout.read_parts(volume.parent / layout.PARTS).values()
        frozen = layout.read_frozen(self._place)
        ours = {uuid for uuid, _last in listed}
        if subvolume.info(volume).uuid in frozen:
            ours.update(frozen)
        return nested.find(volume, ours)

    def record(self, volume: Path) -> None:
        """See `Parts.record`."""
        parts = {"": subvolume.info(volume), **self._found(volume).members}
        layout.write_parts("BTRFS:ROLLBACK:PARTS", volume.parent / layout.PARTS, parts)

    def unchanged(self, volume: Path, target: SnapshotEntry) -> bool:
        """See `Parts.unchanged`: nor has it anything that is not mirrored, even another's store."""
        found = self._found(volume)
        if set(found.members) != set(subvolume.below(volume)):
            return False
        return unchanged(self._place, volume, found, target, self._where)

    def delete(self, wrapper: Path) -> None:
        """See `Parts.delete`. It disappears in one step: what is kept is complete."""
        assemble.remove(self._place, wrapper)


def make_copy(place: Layout, where: str, shown: SnapshotEntry, path: Path) -> None:
    """Assemble the writable copy of what a destination shows (copies.py), list what is nested in
    it, and move it to its path.
    """
    folder = assemble.begun(place)
    tree = folder / layout.TREE / path.name
    try:
        assemble.make(place, shown, tree, where)
        made = nested.find(tree).members
        layout.write_parts("BTRFS:COPY:PARTS", copy_file(place), made)
        files.rename("BTRFS:COPY:PLACE", tree, path)
    finally:
        assemble.discard(folder)


def copy_file(place: Layout) -> Path:
    """The file that lists the nested subvolumes of the writable copy."""
    return place.inner.store / "copy.json"


def begun_file(place: Layout) -> Path:
    """The file that records the live volume as it was when it became live."""
    return place.inner.store / "begun.json"


def unchanged(place: Layout, volume: Path, found: Found, target: SnapshotEntry, where: str) -> bool:
    """Whether the volume, in which that is nested, certainly has the content of the snapshot. A
    new, removed or renamed nested subvolume is a change.
    """
    try:
        members = nested.entries(place, target, where)
    except MirrordError:
        return False
    begun = dict(layout.read_parts(begun_file(place)).values())
    now = {"": subvolume.info(volume), **found.members}
    return set(now) == set(members) and all(
        failover.unchanged(
            volume / path,
            entry,
            begun.get(now[path].uuid, 0) if now[path].parent_uuid == entry.info.uuid else 0,
        )
        for path, (_member, entry) in members.items()
    )


def intact(one: SnapshotEntry) -> bool:
    """Whether the nested subvolumes of what was set aside are as they were then. Without the list
    of them nobody knows.
    """
    there = dict(subvolume.below_with_info(one.path))
    parts = layout.read_parts(one.folder / layout.PARTS)
    if not parts:
        return not there
    return all(
        path in there and there[path].read_only and (there[path].uuid, there[path].ctransid) == then
        for path, then in parts.items()
        if path
    )


def divergence(place: Layout, start: SnapshotEntry, *, limit: int, where: str) -> Divergence:
    """See `Driver.divergence`: each member is compared with its snapshot in `start`."""
    if not place.live:
        return failover.divergence(place, start, limit=limit, where=where)
    found = nested.of(place)
    if unchanged(place, place.view, found, start, where):
        return failover.diverged(place, start, (), limit)
    volumes = {"": subvolume.info(place.view), **found.members}
    lineages = nested.lineages_of(place, volumes)
    members = nested.entries(place, start, where)
    before = {member.name: (path, entry) for path, (member, entry) in members.items()}
    changes = list[FileChange]()
    for path in volumes:
        was, entry = before.pop(lineages[path], (None, None))
        if was is None:
            changes.append(FileChange(f"{path}/", "added"))
        elif was != path:
            changes.append(FileChange(f"{path}/", "renamed"))
        placed = {
            inner[len(path) :].lstrip("/").rpartition("/")[0]
            for inner in {*volumes, *members}
            if inner != path and _within(inner, path)
        }
        changes += [
            each._replace(path=f"{path}/{each.path}".lstrip("/"))
            for each in failover.changed_files(place.inner, place.view / path, entry, where, placed)
        ]
    changes += [FileChange(f"{path}/", "deleted") for path, _entry in before.values()]
    return failover.diverged(place, start, changes, limit)


def _within(inner: str, path: str) -> bool:
    """Whether a path is in the subvolume at `path`."""
    return not path or f"{inner}/".startswith(f"{path}/")
