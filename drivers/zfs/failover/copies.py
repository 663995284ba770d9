"""A writable copy of what a destination shows, for tests: a clone beside the dataset.

The mirror's mark names it before it is created, and the clone's mark names the original. The
snapshot that it is cloned from is destroyed only after the copy (`zfs destroy -d`).
"""

from __future__ import annotations

from mirrord.core.errors import Refused
from mirrord.drivers import refusals
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, mounting, names
from mirrord.drivers.zfs.dataset.marks import Mark
from mirrord.drivers.zfs.dataset.place import Place, look
from mirrord.drivers.zfs.failover import failover
from mirrord.drivers.zfs.snapshots import listing_cache
from mirrord.drivers.zfs.snapshots.listing import Listing


def begin(place: Place, found: Listing, wanted: str, where: str) -> str:
    """See `Driver.begin_test`; returns the clone's name."""
    there = find(place, where)
    if there and wanted in ("", there):
        mounting.mount("ZFS:COPY:MOUNT", look(there, where).there)
        return there
    if there:
        raise refusals.other_copy(where, there)
    guid = failover.shown(place, found)
    shown = found.find(guid) if guid else None
    if shown is None:
        raise refusals.nothing_shown(where)
    name = check_place(place.location, wanted, where)
    if look(name, where).here is not None:
        error = refusals.not_empty(where, f"there is a dataset {name}")
        error.hint = "Give the name of a dataset that does not exist yet."
        raise error
    remember(place, name, where)
    clone(
        shown.full,
        name,
        place.location,
        zvol=place.here is not None and place.here.is_zvol,
        where=where,
    )
    listing_cache.drop(place.location)
    return name


def check_place(location: str, wanted: str, where: str) -> str:
    """The name for a copy; `Refused` when a clone cannot have it."""
    name = names.check_dataset(wanted or f"{location}-test", where)
    if names.pool_of(name) != names.pool_of(location):
        raise Refused(
            "the copy must be in the destination's pool",
            where=where,
            why="a clone shares its blocks with the original",
        )
    return name


def remember(place: Place, name: str, where: str) -> None:
    """Record the copy in the mirror's mark, before it is created; "" after it is removed."""
    mark = place.mark._replace(copy=name)
    words = ["zfs", "set", f"{marks.MARK}={mark.text()}", place.location]
    command.effect("ZFS:COPY:MARK", words, where)


def clone(snapshot: str, name: str, location: str, *, zvol: bool, where: str) -> None:
    """Create the writable clone, and mount it if possible."""
    mark = Mark(role="copy", of=location)
    pairs = [f"{marks.MARK}={mark.text()}", "readonly=off"]
    pairs += [] if zvol else ["canmount=noauto", "overlay=off"]
    words = [word for pair in pairs for word in ("-o", pair)]
    command.effect("ZFS:COPY:CLONE", ["zfs", "clone", *words, snapshot, name], where)
    mounting.mount("ZFS:COPY:MOUNT", look(name, where).there)


def find(place: Place, where: str) -> str:
    """The copy's name; "" when there is none, or another dataset has its name."""
    name = place.mark.copy
    there = look(name, where).here if name else None
    mark = there.mark if there else None
    return name if mark is not None and (mark.role, mark.of) == ("copy", place.location) else ""


def end(place: Place, where: str) -> bool:
    """See `Driver.end_test`."""
    name = find(place, where)
    if name:
        words = ["zfs", "list", "-Hr", "-t", "all", "-o", "name", name]
        own = [line for line in command.run(words, where).splitlines() if line != name]
        if own:
            raise Refused(
                f"the copy has its own snapshots or descendants: {own[0]}",
                where=where,
                hint=f"Destroy them first, or keep the copy: zfs promote {name}",
            )
        mounting.unmount("ZFS:COPY:UNMOUNT", look(name, where).there, where)
        command.effect("ZFS:COPY:DESTROY", ["zfs", "destroy", name], where)
    if place.mark.copy:
        remember(place, "", where)
    listing_cache.drop(place.location)
    return bool(name)
