"""What is at a location: its role, and notes for the administrator."""

from __future__ import annotations

import os

from mirrord.core.errors import Damaged
from mirrord.core.model import Role, VolumeFacts
from mirrord.core.text import escaped
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import copies, failover, ioctl, layout, store, subvolume
from mirrord.drivers.btrfs.layout import Layout

_NESTED_NOTES_MAX = 10


def role(place: Layout) -> tuple[Role, tuple[str, ...]]:
    """The role, and notes for the administrator."""
    if place.live:
        return Role.LIVE, ()
    prepared = place.mirror_file.exists()
    if place.shown_wrapper() is not None:
        if prepared:
            return Role.MIRROR, ()
        return Role.FOREIGN, ("it is the view of a mirror that was deleted or lost its record",)
    if os.path.lexists(place.view):
        if place.view != place.location and subvolume.is_subvolume(place.view):
            note = f"it is a folder; the subvolume in it is {place.view}: give that path"
            return Role.FOREIGN, (note,)
        return Role.FOREIGN, (f"{place.view} is neither a subvolume nor a mirrord view",)
    if prepared:
        return Role.MIRROR, ()
    if not os.path.lexists(place.location):
        if place.view == place.location:
            return Role.ABSENT, ("the volume no longer exists; mirrord still has snapshots of it",)
        missing = not place.location.parent.is_dir()
        note = f"the folder {place.location.parent} does not exist"
        return Role.ABSENT, ((note,) if missing else ())
    return _role_of_folder(place)


def demand_copy(place: Layout, mirror_id: str, where: str) -> None:
    """Refuse a location that shows no snapshot, or is the destination of another mirror."""
    if place.shown_wrapper() is None:
        raise refusals.view_replaced(str(place.view))
    owner = failover.legible_mirror_id(place)
    if owner not in ("", mirror_id):
        raise refusals.other_mirror(where, owner)


def _role_of_folder(place: Layout) -> tuple[Role, tuple[str, ...]]:
    if not place.location.is_dir():
        return Role.FOREIGN, ("it is a file, not a folder",)
    names = [name for name in os.listdir(place.location) if name != layout.STORE]
    if not names and not store.kept(place):
        return Role.ABSENT, ("it is an empty folder, not a subvolume",)
    found = f"'{min(names)}'" if names else "snapshots of a mirror that was deleted"
    note = f"it is a plain folder that contains {found}, not a subvolume"
    return Role.FOREIGN, (note,)


def facts(place: Layout, location: str) -> VolumeFacts:
    """See `Driver.facts`. A damaged mirrord record is only a note."""
    what, notes = role(place)
    there = layout.nearest_existing(place.location)
    size = os.statvfs(there)
    identity, fixed, shown, origin = "", "", None, None
    if what is Role.LIVE:
        live = subvolume.info(place.view)
        identity, fixed = live.uuid, failover.pinned_reason(place)
        origin = _origin(place, live)
        notes += () if place.nested else _nested_notes(place)
    elif what is Role.MIRROR:
        one = store.shown(place)
        shown = one.snapshot.guid if one else None
        if one is None and place.shown_wrapper() is not None:
            notes += ("The snapshot that it should show has been deleted.",)
    mirror_id = copy = ""
    try:
        copy = str(copies.find(place) or "")
        mirror_id = layout.read_mirror_id(place)
    except Damaged as error:
        notes = (*notes, f"{error}.")
    return VolumeFacts(
        kind="btrfs",
        location=location,
        role=what,
        identity=identity,
        filesystem=ioctl.filesystem_facts(there)[0],
        view=str(place.view),
        shown=shown,
        mirror_id=mirror_id,
        origin=origin,
        used_bytes=(size.f_blocks - size.f_bfree) * size.f_frsize,
        free_bytes=size.f_bavail * size.f_frsize,
        notes=notes,
        fixed=fixed,
        copy=copy,
        frozen=bool(layout.frozen(place)),
        mount=str(layout.mount_of(there)),
        parent_missing=what is Role.ABSENT and not place.location.parent.is_dir(),
    )


def _origin(place: Layout, live: subvolume.Info) -> str | None:
    for one in store.kept(place):
        if live.parent_uuid and one.info.uuid == live.parent_uuid:
            return one.snapshot.guid
    return None


def _nested_notes(place: Layout) -> tuple[str, ...]:
    names = store.nested_names(place.view, limit=_NESTED_NOTES_MAX + 1)
    notes = [
        f"The nested subvolume '{escaped(name)}' is not mirrored: a btrfs snapshot does not "
        "contain it. Create a separate mirror for it."
        for name in names[:_NESTED_NOTES_MAX]
    ]
    if len(names) > _NESTED_NOTES_MAX:
        notes.append("There are more nested subvolumes; none of them is mirrored.")
    return tuple(notes)
