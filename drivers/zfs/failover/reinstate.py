"""Undoing a rollback: what was set aside takes its place again."""

from __future__ import annotations

from mirrord.core.errors import NotFound
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import mounting, names
from mirrord.drivers.zfs.dataset.place import Place, look
from mirrord.drivers.zfs.failover import failover, freezing
from mirrord.drivers.zfs.snapshots.listing import Listing


def reinstate(place: Place, found: Listing, keep_as: str, where: str) -> None:
    """See `Driver.reinstate`: the swap of failover.py backwards."""
    kept = failover.kept_as(found, keep_as)
    if place.here is not None and place.mark.role != "mirror":
        _thaw_in_place(place, where)
        return
    if kept is None or kept.dataset == place.location:
        raise NotFound("nothing is set aside under that name", where=where, why=keep_as)
    aside = look(kept.dataset, where).there
    shown_here = place.here or place.fresh
    assert shown_here is not None
    if place.here is not None:
        mounting.clear(place.here, where, force=True)
    if aside.get("origin").partition("@")[0] == shown_here.name:
        command.effect("ZFS:REINSTATE:PROMOTE", ["zfs", "promote", aside.name], where)
    if aside.mounted:
        mounting.unmount("ZFS:REINSTATE:UNMOUNT", aside, where)
    if place.here is not None:
        failover.rename("ZFS:REINSTATE:ASIDE", place.here, names.fresh(place.location), where)
    failover.rename("ZFS:REINSTATE:RENAME", aside, place.location, where)
    _thaw_in_place(look(place.location, where), where)


def _thaw_in_place(place: Place, where: str) -> None:
    """The volume that was live is at its location again: thaw and mount it; then remove what was to
    take its place.
    """
    here = place.there
    ending = names.MARKER + names.set_aside("", here.guid).rpartition("-")[2]
    folder = here.local("mountpoint") or ""
    if folder.endswith(ending):
        words = ["zfs", "set", f"mountpoint={folder.removesuffix(ending)}", here.name]
        command.effect("ZFS:REINSTATE:FOLDER", words, where)
    freezing.thaw([here.name], where)
    place = look(place.location, where)
    mounting.require_mounted("ZFS:REINSTATE:MOUNT", place.here or here, where)
    if place.fresh is not None:
        failover.drop_fresh(place, where)
