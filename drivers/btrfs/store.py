"""The snapshots in the store of a volume, and what the kernel reports about them."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import Busy, Damaged, Diverged, Refused
from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.text import escaped
from mirrord.drivers import pinfiles, refusals, snapshottrees
from mirrord.drivers.btrfs import ioctl, layout, subvolume
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.pins import demand_free, of_snapshot
from mirrord.system import files, mounts, steps


class SnapshotEntry(NamedTuple):
    """A snapshot with its driver data. wrapper: its folder, None outside the store."""

    snapshot: Snapshot
    info: subvolume.Info
    path: Path
    wrapper: Path | None = None
    record: Record | None = None

    @property
    def folder(self) -> Path:
        """The wrapper of a snapshot that is known to be in the store."""
        assert self.wrapper is not None, self
        return self.wrapper


def kept(place: Layout) -> list[SnapshotEntry]:
    """All snapshots in the store, oldest first."""
    found: list[SnapshotEntry] = []
    hints: dict[str, tuple[Path, SnapshotKind]] = {}
    kinds = {SnapshotKind.REFERENCE: place.snapshots, SnapshotKind.DIVERGED: place.diverged}
    for kind, folder in kinds.items():
        for one in _in_folder(place, folder, kind):
            found.append(one)
            if one.wrapper is not None and one.snapshot.intact:
                hints[one.snapshot.guid] = one.wrapper, kind
    place.known.places[place.store] = hints
    pinned = snapshottrees.pinned(place.verify, pinfiles.legible(place.pins))
    if pinned:
        found = [
            one._replace(
                snapshot=one.snapshot._replace(pinned=of_snapshot(pinned, one.snapshot.guid))
            )
            for one in found
        ]
    return sorted(found, key=lambda one: (one.snapshot.order, one.info.id))


def _in_folder(place: Layout, folder: Path, kind: SnapshotKind) -> Iterator[SnapshotEntry]:
    names = files.names_in(folder)
    layout.forget_records_but(place.known, folder, names)
    for name in names:
        wrapper = folder / name
        if kind is SnapshotKind.REFERENCE and is_tree(wrapper) != place.nested:
            continue  # of a mirror that includes nested subvolumes, or of one that does not
        one = in_wrapper(place, wrapper, kind)
        if one is not None:
            yield one


def is_tree(wrapper: Path) -> bool:
    """Whether the snapshot in a folder of the store has a list of members (nested.py)."""
    return os.path.exists(f"{wrapper}/{layout.MEMBERS}")


def in_wrapper(place: Layout, wrapper: Path, kind: SnapshotKind) -> SnapshotEntry | None:
    """The snapshot in a folder of the store; None when the folder has none."""
    path = wrapper / wrapper.name
    if not subvolume.is_subvolume(path):
        return None
    info = subvolume.info(path)
    try:
        record = layout.known_record(place.known, wrapper)
    except Damaged:  # the snapshot is still listed; without a record it is no longer a base
        record = None
    return SnapshotEntry(_snapshot(path, info, kind, record), info, path, wrapper, record)


def _snapshot(
    path: Path, info: subvolume.Info, kind: SnapshotKind, record: Record | None
) -> Snapshot:
    """The snapshot's description; `intact` is decided here.

    A snapshot taken here is intact when nothing changed it after the transaction that created it.
    A received or kept one was written to after its creation: its record has the transaction at
    which it was complete.
    """
    if record is None:
        return Snapshot(
            guid=info.guid,
            name=path.name,
            kind=kind,
            order=info.otransid,
            taken_at_ns=subvolume.made_at_ns(path, info),
            path=str(path),
            intact=info.read_only
            and not info.received_uuid
            and kind is not SnapshotKind.DIVERGED
            and info.ctransid <= info.otransid,
        )
    diverged = record.snapshot.kind is SnapshotKind.DIVERGED
    return record.snapshot._replace(
        order=record.snapshot.order if diverged else info.otransid,
        path=str(path),
        intact=record.complete
        and info.read_only
        and info.ctransid == record.ctransid
        and info.guid == record.snapshot.guid,
    )


def find(place: Layout, guid: str) -> SnapshotEntry | None:
    """The snapshot with that identity, preferably an intact one. A changed snapshot is found by the
    identity in its record or by its original one, so that it can be reported as changed.
    """
    hints = place.known.places.get(place.store, {})
    wrapper, kind = hints.get(guid, (None, SnapshotKind.REFERENCE))
    if wrapper is not None:
        one = in_wrapper(place, wrapper, kind)
        if one is not None and one.snapshot.intact and one.snapshot.guid == guid:
            return one
    matching = [one for one in kept(place) if guid in (one.snapshot.guid, one.info.guid)]
    return next((one for one in matching if one.snapshot.intact), next(iter(matching), None))


def shown(place: Layout) -> SnapshotEntry | None:
    """The snapshot that the view shows."""
    wrapper = place.shown_wrapper()
    if wrapper is None:
        return None
    return in_wrapper(place, place.snapshots / wrapper, SnapshotKind.REFERENCE)


def delete(place: Layout, one: SnapshotEntry, where: str) -> None:
    """Delete a snapshot of the store and its folder; durable."""
    demand_deletable(place, one, where)
    remove(place, one)


def remove(place: Layout, one: SnapshotEntry, parts: Collection[str] = ()) -> None:
    """The same for a snapshot that passed `demand_deletable`. parts: the paths of the nested
    subvolumes that belong to it.
    """
    subvolume.delete_all("BTRFS:DELETE:SUBVOLUME", one.path, parts)
    sweep(place)
    if place.live:  # do not force out users' writes that are in memory
        subvolume.begin_commit(place.store, place.known.committing)
    else:
        subvolume.reclaim(place.store)


def mounted_at(place: Layout, one: SnapshotEntry | None) -> str:
    """Where a snapshot is mounted by itself, or its assembled tree is, in whole or in part; "" for
    nowhere. At a destination, in any mount namespace; at a live volume, whose snapshots only root
    can reach, in that of this process.
    """
    if one is None or one.wrapper is None:
        return ""
    folder = f"/{os.path.dirname(subvolume.path_inside(one.path))}"
    for mount in mounts.here() if place.live else mounts.everywhere(within=folder):
        if not f"{mount.root}/".startswith(f"{folder}/"):
            continue
        if mount.device == layout.mount_points()[layout.mount_of(one.path)].device:
            return mount.path
    return ""


def demand_unused(place: Layout, one: SnapshotEntry, where: str) -> None:
    """`Refused` for a snapshot that is shown; `Busy` for one that is mounted: whoever uses the
    mount would find nothing there.
    """
    if one.wrapper is not None and one.wrapper.name == place.shown_wrapper():
        raise Refused(
            "the destination shows this snapshot",
            where=where,
            why=one.snapshot.name,
            hint="It can be deleted once a newer one is shown.",
        )
    if path := mounted_at(place, one):
        raise Busy(
            f"'{one.snapshot.name}' is mounted at {path}",
            where=where,
            hint="Unmount it there, and try again. An update tries again by itself.",
        )


def demand_deletable(
    place: Layout, one: SnapshotEntry, where: str, parts: Collection[str] = ()
) -> None:
    """`Refused` for a snapshot that is pinned, is not of the store, or has other data in it."""
    if one.wrapper is None:
        raise Refused("cannot delete a user snapshot", where=where, why=str(one.path))
    # (A snapshot that was changed since has another identity than the pinned one.)
    guids = {one.snapshot.guid, one.info.guid}
    pinned = snapshottrees.pinned(place.verify, pinfiles.load(place.pins))
    demand_free(pinned, guids, one.snapshot.name, where)
    nested = [name for name in subvolume.below(one.path) if name not in parts]
    if nested:
        raise Refused(
            f"'{one.snapshot.name}' contains the nested subvolume '{nested[0]}'",
            where=where,
            why="it was part of a volume that was set aside, and contains data of its own",
            hint="Make the snapshot writable ('btrfs property set -ts "
            f"{shlex.quote(str(one.path))} ro false'), move {nested[0]} elsewhere or delete it, "
            "and try again.",
        )


def sweep(place: Layout) -> None:
    """Remove the folders of deleted snapshots, and make the deletions durable."""
    for folder in (place.snapshots, place.diverged):
        for name in files.names_in(folder):
            wrapper = f"{folder}/{name}"
            if not subvolume.is_subvolume(f"{wrapper}/{name}"):
                tree = f"{wrapper}/{layout.TREE}"
                if os.path.isdir(tree):  # the snapshot was deleted by hand
                    if os.listdir(tree):
                        continue  # perhaps it is shown
                    files.remove_directory("BTRFS:DELETE:TREE", tree)
                for rest in os.listdir(wrapper):
                    steps.reached("BTRFS:DELETE:RECORD")
                    os.unlink(f"{wrapper}/{rest}")
                files.remove_directory("BTRFS:DELETE:FOLDER", wrapper)


def nested_names(path: Path, *, limit: int | None = None) -> list[str]:
    """Paths of (at most `limit`) subvolumes inside the one at `path`, without our own store."""
    theirs = (name for name in subvolume.below(path) if layout.STORE not in name.split("/"))
    return list(itertools.islice(theirs, limit))


def owned(place: Layout, live: subvolume.Info) -> Iterator[SnapshotEntry]:
    """The user snapshots: read-only snapshots of the live volume outside all stores."""
    top = topmost_mount(place.view)
    for name, info in subvolume.below_with_info(top):
        if not info.read_only or info.parent_uuid != live.uuid:
            continue
        path = top / name
        if layout.STORE in path.parts or not subvolume.is_subvolume(path):
            continue
        snapshot = Snapshot(
            guid=info.guid,
            name=_own_name(path),
            kind=SnapshotKind.OWN,
            order=info.otransid,
            taken_at_ns=info.otime_ns,
            path=str(path),
            intact=not info.received_uuid and info.ctransid <= info.otransid,
        )
        yield SnapshotEntry(snapshot, info, path)


def _own_name(path: Path) -> str:
    """The snapshot's name, escaped: it is stored in the catalogue and used as a folder name.
    Snapper names each one `snapshot`, in a numbered folder.
    """
    name = f"{path.parent.name}-{path.name}" if path.name == "snapshot" else path.name
    return escaped(name)


def matches(one: SnapshotEntry, patterns: tuple[str, ...]) -> bool:
    """Whether the snapshot's name matches one of the patterns."""
    names = {one.snapshot.name, one.path.name}
    from fnmatch import fnmatchcase  # loaded only where a definition names snapshots

    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def topmost_mount(path: Path) -> Path:
    """The mount of the file system of `path` that is closest to its top level."""
    found = layout.mount_points()
    holding = found[layout.mount_of(path)]
    same = [
        (len(mount.root), where)
        for where, mount in found.items()
        if mount.device == holding.device and subvolume.is_subvolume(where)
    ]
    return min(same)[1] if same else Path(os.path.realpath(path))


def find_to_send(place: Layout, guid: str) -> SnapshotEntry | None:
    """A snapshot of the store, or a user snapshot, by its identity."""
    one = find(place, guid)
    if one is None and place.live:
        owners = owned(place, subvolume.info(place.view))
        one = next((other for other in owners if other.snapshot.guid == guid), None)
    return one


def require_base(place: Layout, guid: str, where: str) -> SnapshotEntry:
    """The intact snapshot with that identity; `Diverged` when there is none."""
    one = find_to_send(place, guid)
    if one is None or not one.snapshot.intact:
        raise refusals.base_missing(where, guid)
    return one


def taken_for(place: Layout, here: SnapshotEntry, where: str) -> subvolume.Info:
    """The subvolume that `btrfs receive` uses as this base: the base itself, or an intact copy of
    it; `Diverged` when it would use any other.

    It finds the base of a stream, and the source of a reflink, by the received UUID, and uses the
    first such subvolume of the file system. When that is not our own (for example because both ends
    are on one file system), its record must confirm that it is intact. Otherwise the result could
    contain wrong data.
    """
    copies = ioctl.received_as(here.path, here.info.received_uuid or here.info.uuid)
    if not copies or copies[0] == here.info.id:
        return here.info
    top = topmost_mount(here.path)
    for name, info in subvolume.below_with_info(top):
        if info.id != copies[0]:
            continue
        other = in_wrapper(place, (top / name).parent, SnapshotKind.REFERENCE)
        if other is not None and other.info.id == info.id and other.snapshot.intact:
            return info
        raise _unsound(str(top / name), where)
    raise _unsound(f"the subvolume with the id {copies[0]}", where)


def _unsound(copy: str, where: str) -> Diverged:
    return Diverged(
        "another copy of the base snapshot is in the way",
        where=where,
        why=f"{copy} was received from the same snapshot, and 'btrfs receive' would use its "
        "data, although it may have been changed since",
        hint=f"Delete it (btrfs subvolume delete) if it is not needed: {copy}",
    )
