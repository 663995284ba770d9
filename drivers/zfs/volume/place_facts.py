"""The role and the facts of a place, with notes for the user."""

from __future__ import annotations

import shlex

from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, VolumeFacts
from mirrord.drivers import refusals as texts
from mirrord.drivers.zfs.dataset import marks, mounting, names
from mirrord.drivers.zfs.dataset.place import Dataset, Place
from mirrord.drivers.zfs.failover import failover, freezing
from mirrord.drivers.zfs.snapshots import listing
from mirrord.drivers.zfs.snapshots.listing import Listing


def role_of(place: Place) -> tuple[Role, tuple[str, ...]]:
    """The role, and notes on it."""
    volume = place.here
    if volume is None:
        if place.fresh is not None or place.prepared:
            return Role.MIRROR, ()
        if place.pool is None:
            return Role.ABSENT, (f"the pool '{names.pool_of(place.location)}' is not imported",)
        if place.above is None:
            return Role.ABSENT, (f"the dataset {names.parent_of(place.location)} does not exist",)
        return Role.ABSENT, ()
    role = place.mark.role
    if role == "mirror":
        return Role.MIRROR, ()
    if role == "forgotten":
        return Role.FOREIGN, ("it is the view of a deleted mirror",)
    if lost_mark(volume) and volume.local("overlay") == "off":  # (a zvol cannot be recognized)
        return Role.MIRROR, ("The record of the mirror that it belongs to is missing or damaged.",)
    if volume.get("inconsistent") == "1":
        return Role.FOREIGN, ("it is a dataset that another program has partially received",)
    return Role.LIVE, ()


def lost_mark(volume: Dataset) -> bool:
    """Whether a volume without a mark of mirrord has the properties of a received one: the mark of
    a mirror was removed.
    """
    if volume.mark is not None or volume.local(marks.FROZEN):
        return False
    noauto = volume.is_zvol or volume.local("canmount") == "noauto"
    return volume.local("readonly") == "on" and noauto


def facts_of(place: Place, found: Listing | None) -> VolumeFacts:
    """See `Driver.facts`. found: the snapshots of a MIRROR."""
    role, notes = role_of(place)
    there = place.volume or place.above or place.pool
    facts = VolumeFacts(
        kind="zfs",
        location=place.location,
        role=role,
        identity="",
        filesystem=place.pool.guid if place.pool else "",
        view="",
        mirror_id=place.mark.mirror_id or place.prepared,
        used_bytes=int(place.pool.get("used") or 0) if place.pool else 0,
        free_bytes=int(there.get("available") or 0) if there else 0,
        notes=notes,
        copy=place.mark.copy,
        parent_missing=role is Role.ABSENT and place.above is None,
    )
    volume = place.volume
    if volume is None:
        return facts
    facts = facts._replace(view=mounting.view(volume))
    if role is Role.LIVE:
        origin = place.mark.origin if place.mark.role == "live" else None
        notes += _live_notes(volume)
        frozen = freezing.of(volume) is not None
        return facts._replace(identity=volume.guid, origin=origin, notes=notes, frozen=frozen)
    if role is Role.MIRROR and found is not None:
        shown = failover.shown(place, found)
        view, more = _mirror_view(volume, found, shown)
        return facts._replace(shown=shown, view=view, notes=notes + more)
    return facts


def _live_notes(volume: Dataset) -> tuple[str, ...]:
    if volume.is_zvol or volume.mounted:
        return ()
    missing = mounting.missing(volume)
    if missing is not None:
        return (
            f"The dataset is not mounted: {missing.why} ('zfs mount {shlex.quote(volume.name)}').",
        )
    if volume.get("canmount") == "noauto" or volume.get("keystatus") == "unavailable":
        why = mounting.obstacle(volume) or f"mount it with 'zfs mount {shlex.quote(volume.name)}'"
        return (f"It is not mounted: {why}.",)
    return ()


def _mirror_view(volume: Dataset, found: Listing, shown: str | None) -> tuple[str, tuple[str, ...]]:
    """The path of the shown snapshot, and notes on it."""
    view = mounting.view(volume)
    if shown is None:
        return view, ()
    one = found.find(shown)
    if one is None:
        return view, ("The snapshot that it should show was deleted.",)
    if volume.is_zvol:
        newest = found.own()[-1:]
        behind = bool(newest) and newest[0].guid != shown
        return f"/dev/zvol/{one.full}" if behind else view, ()
    if not volume.mounted:
        why = mounting.obstacle(volume) or f"mount it with 'zfs mount {shlex.quote(volume.name)}'"
        return "", (f"It cannot be read here, as it is not mounted: {why}.",)
    if one.dataset != volume.name:  # the volume was rebuilt from an older one for the next update
        folder = mounting.folder_aside(volume, one.dataset)
        note = () if folder else (f"It can be read after {one.dataset} is mounted.",)
        return listing.snapshot_of(one, folder).path, note
    own = found.own()
    if own and own[-1].guid != shown:
        return listing.snapshot_of(one, view).path, ()
    return view, ()


def not_empty(where: str, found: str) -> MirrordError:
    """The place for a mirror is in use."""
    error = texts.not_empty(where, found)
    error.hint = "Give the name of a dataset that does not exist yet."
    return error
