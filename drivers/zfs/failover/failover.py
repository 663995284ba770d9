"""Failover and failback: a mirror becomes a live volume, and a live one a mirror again.

ZFS can roll a dataset back only by destroying what is newer. So the dataset is rebuilt instead, as
a clone of the snapshot to go back to; the clone is promoted, which gives it all older snapshots,
and takes the name. The old dataset is set aside, read-only, under another name with all that is
newer. The completed steps can be derived from the existing datasets, so that after a crash at any
point the same call completes the rest:

| at the location | beside it | what is left to do |
|---|---|---|
| the old volume | nothing | keep it by a snapshot, clone |
| the old volume | the clone | promote, set aside, rename, mount |
| nothing | the promoted clone | rename, mount |
| the promoted clone | | nothing |
"""

from __future__ import annotations

import itertools
import re

from mirrord.core.errors import MIRROR, MirrordError, Refused
from mirrord.core.model import SnapshotKind
from mirrord.core.units import format_few
from mirrord.drivers.refusals import other_mirror
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import (
    marks,
    mounting,
    mountpoint,
    names,
    relationships,
    transfer_record,
    writers,
)
from mirrord.drivers.zfs.dataset.marks import Mark, SnapshotMark
from mirrord.drivers.zfs.dataset.place import Dataset, Place, look
from mirrord.drivers.zfs.failover import freezing
from mirrord.drivers.zfs.snapshots import compare, listing
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing
from mirrord.system import clock

#: Properties that are copied to the dataset that takes the place. All others come from the
#: snapshot, are statistics of ZFS, or are set to new values.
_COPIED = [
    "aclinherit",
    "aclmode",
    "acltype",
    "atime",
    "checksum",
    "compression",
    "context",
    "copies",
    "dedup",
    "defcontext",
    "devices",
    "direct",
    "dnodesize",
    "exec",
    "filesystem_limit",
    "fscontext",
    "logbias",
    "longname",
    "mlslabel",
    "mountpoint",
    "nbmand",
    "prefetch",
    "primarycache",
    "quota",
    "recordsize",
    "redundant_metadata",
    "refquota",
    "refreservation",
    "relatime",
    "reservation",
    "rootcontext",
    "secondarycache",
    "setuid",
    "sharenfs",
    "sharesmb",
    "snapdev",
    "snapdir",
    "snapshot_limit",
    "special_small_blocks",
    "sync",
    "volmode",
    "volthreading",
    "vscan",
    "xattr",
    "zoned",
]


def shown(place: Place, found: Listing) -> str | None:
    """The guid of the snapshot that a MIRROR shows."""
    pin = place.mark.pin
    if pin is not None:
        return pin or None
    own = [one for one in found.own() if one.mark is not None]
    return own[-1].guid if own else None


def promote(place: Place, found: Listing, guid: str | None, where: str) -> None:
    """See `Driver.promote`: a mirror becomes writable where it is."""
    volume = place.there
    target = promotion_base(place, found, guid)
    if target is None:
        raise Refused(
            "there is no snapshot to make live",
            where=where,
            why="it has no snapshot" if guid is None else f"no snapshot has the guid {guid}",
            hint=f"'mirrord snapshots {MIRROR}' lists them; 'mirrord initialize {MIRROR}' "
            "transfers the first one.",
        )
    if volume.token:
        command.effect("ZFS:PROMOTE:ABORT", ["zfs", "recv", "-A", place.location], where)
    own = found.own()
    if not own or own[-1].guid != target.guid:  # newer ones are set aside
        rebuild_by_clone(place, found, target, place.mark, None, where)
        place = look(place.location, where)
        volume = place.there
    transfer_record.remove("ZFS:PROMOTE:RECORD", place.location)
    mark = place.mark._replace(role="live", pin=None, origin=target.guid)
    make_writable(volume, mark, where)


def make_writable(volume: Dataset, mark: Mark, where: str) -> None:
    """One `zfs set` makes a mirror a live volume."""
    values = [f"{marks.MARK}={mark.text()}", "readonly=off"]
    values += [] if volume.is_zvol else ["canmount=on"]
    values += [f"{marks.FROZEN}={freezing.THAWED.text()}"] if freezing.of(volume) else []
    command.effect("ZFS:PROMOTE:MARK", ["zfs", "set", *values, volume.name], where)
    if not volume.is_zvol and volume.mountpoint:
        mountpoint.release(volume.mountpoint)
    mounting.mount("ZFS:PROMOTE:MOUNT", volume)


def promotion_base(place: Place, found: Listing, guid: str | None) -> Entry | None:
    """The snapshot whose content a promoted volume gets; None when there is none."""
    if guid is not None:
        return found.find(guid)
    seen = shown(place, found)
    there = found.find(seen) if seen else None
    kept = [
        one for one in found.own() if one.mark is None or one.mark.kind is not SnapshotKind.DIVERGED
    ]
    return there or next(reversed(kept), None)


def rollback(
    place: Place,
    found: Listing,
    target: Entry,
    *,
    mirror_id: str,
    keep_as: str,
    where: str,
) -> str | None:
    """See `Driver.rollback`."""
    old = place.mark
    if old.role == "mirror" and old.mirror_id not in ("", mirror_id):
        raise other_mirror(where, old.mirror_id)
    done = old.role == "mirror" and shown(place, found) == target.guid
    if place.here is None or done:
        if place.here is not None and place.fresh is not None:
            drop_fresh(place, where)
            place = look(place.location, where)
        # (An earlier attempt may not have mounted what it set aside.)
        finish_swap(place, where, certain=True)
        kept = kept_as(found, keep_as)
        return kept.name if kept is not None else None
    refuse_descendants(place.location, where)
    mark = Mark(role="mirror", mirror_id=mirror_id, pin=target.guid, kept=old.kept, copy=old.copy)
    freezing.for_rollback([place.here], where)
    # Nothing is written any more. Only now it is known whether anything was written.
    place = look(place.location, where)
    assert place.here is not None
    try:
        others = [*place.mark.kept, *([place.fresh.name] if place.fresh else [])]
        found = listing.load(place.location, others, None, where)
        newest = next(reversed(found.own()), None)
        writing = bool(writers.of([place.here], 1))
        same = newest is not None and unchanged(place.here, newest, where)
        if same and newest == target and place.fresh is None and not writing:
            words = [f"{marks.MARK}={mark.text()}", f"{marks.FROZEN}={freezing.THAWED.text()}"]
            command.effect("ZFS:ROLLBACK:MARK", ["zfs", "set", *words, place.location], where)
            mounting.mount("ZFS:ROLLBACK:MOUNT", place.here)
            return None
        mounting.clear(place.here, where, force=writing)
    except MirrordError:  # (in use, or not ours to unmount)
        freezing.thaw([place.location], where)
        raise
    keep = old.role != "mirror" or not same
    return rebuild_by_clone(place, found, target, mark, keep_as if keep else None, where)


def refuse_descendants(location: str, where: str) -> None:
    """Refuse a volume with descendants, which would be set aside with it."""
    words = ["zfs", "list", "-H", "-d", "1", "-t", "filesystem,volume", "-o", "name", location]
    below_it = [
        name for name in command.run(words, where).split("\n") if name not in ("", location)
    ]
    if below_it:
        raise Refused(
            f"{location} has descendant datasets",
            where=where,
            why=f"{format_few(below_it)} would be set aside with it",
            hint="Move them out of it ('zfs rename'), or mirror them with it ('mirrord create "
            "--recursive').",
        )


def refuse_diverged(target: Entry, where: str) -> None:
    """Refuse a DIVERGED snapshot as the target of a rollback."""
    if target.mark is not None and target.mark.kind is SnapshotKind.DIVERGED:
        raise Refused("a diverged snapshot cannot be the base of a mirror", where=where)


def unchanged(volume: Dataset, one: Entry, where: str) -> bool:
    """Whether a frozen volume has the same content as its snapshot."""
    command.run(["zpool", "sync", names.pool_of(volume.name)], where)
    return compare.written(volume.name, one, where) == 0


def kept_as(found: Listing, keep_as: str) -> Entry | None:
    """The DIVERGED snapshot by which a rollback kept a volume: its name may end in a number."""
    fits = [
        one
        for one in found.snapshots()
        if one.mark is not None
        and one.mark.kind is SnapshotKind.DIVERGED
        and re.fullmatch(rf"{re.escape(keep_as)}(_\d+)?", one.name)
    ]
    return fits[-1] if fits else None


def rebuild_by_clone(
    place: Place,
    found: Listing,
    target: Entry,
    mark: Mark,
    keep_as: str | None,
    where: str,
    *,
    pin: str | None = None,
) -> str | None:
    """Replace the volume with a clone of `target` that has that mark; the old volume is set aside,
    kept by a DIVERGED snapshot if `keep_as` is given; returns the name of that snapshot.
    pin: the snapshot to be shown then; None: `target`.
    """
    here = place.there
    pin = pin or target.guid
    # A clone that shows another snapshot may have been made from another one: it is destroyed.
    if place.fresh is not None and (
        place.fresh.mark is None or not place.fresh.mark.pin == pin == target.guid
    ):
        drop_fresh(place, where)
        place = look(place.location, where)
        found = listing.load(place.location, place.mark.kept, None, where)
        again = found.find(target.guid)
        assert again is not None
        target = again
    refuse_descendants(place.location, where)
    mounting.clear(here, where, force=False)
    freezing.for_rollback([here], where)
    kept = _keep(here, found, keep_as, where) if keep_as is not None else None
    aside = names.set_aside(place.location, here.guid)
    fresh = names.fresh(place.location)
    if place.fresh is None:
        made = mark._replace(role="mirror", pin=pin, kept=tuple(dict.fromkeys((*mark.kept, aside))))
        words = [word for pair in copied(here, made, where) for word in ("-o", pair)]
        command.effect("ZFS:SWAP:CLONE", ["zfs", "clone", *words, target.full, fresh], where)
    if place.fresh is None or place.fresh.get("origin"):
        command.effect("ZFS:SWAP:PROMOTE", ["zfs", "promote", fresh], where)
    if here.is_zvol and pin != target.guid:  # the shown device belongs to the old volume
        command.effect("ZFS:SWAP:DEVICES", ["zfs", "set", "snapdev=visible", here.name], where)
    rename("ZFS:SWAP:ASIDE", here, aside, where)
    finish_swap(look(place.location, where), where, certain=here.mounted)
    return kept


def finish_swap(place: Place, where: str, *, certain: bool = False) -> None:
    """Give the new volume the name and place of the old one, which is set aside. certain: it is an
    error when it cannot be mounted (`mounting.require_mounted`).
    """
    if place.here is None and place.fresh is not None:
        rename("ZFS:SWAP:RENAME", place.fresh, place.location, where)
        place = look(place.location, where)
    volume = place.there
    try:
        if certain:
            mounting.require_mounted("ZFS:SWAP:MOUNT", volume, where)
        else:
            mounting.mount("ZFS:SWAP:MOUNT", volume)
    finally:
        for name in place.mark.kept:
            _show_aside(place, name, where)


def _show_aside(place: Place, name: str, where: str) -> None:
    """Mount what was set aside at a path beside the volume's."""
    volume = place.here
    if volume is None or volume.is_zvol or not volume.mountpoint:
        return
    if mounting.folder_aside(volume, name):
        return
    aside = look(name, where).here
    if aside is None:
        return
    if aside.local("mountpoint") == volume.mountpoint:
        folder = volume.mountpoint.rstrip("/") + name[name.index(names.MARKER) :]
        command.effect("ZFS:SWAP:FOLDER", ["zfs", "set", f"mountpoint={folder}", name], where)
        aside = look(name, where).there
    mounting.mount("ZFS:SWAP:SHOW", aside)


def _keep(volume: Dataset, found: Listing, keep_as: str, where: str) -> str:
    """Keep the volume as it is by a DIVERGED snapshot. One of that name with this content is from
    an earlier attempt; if another one exists, the new one gets a number.
    """
    name = names.check_snapshot(keep_as, where)
    taken = {one.name for one in found.snapshots()}  # those of volumes set aside before, too
    for number in itertools.count(2):
        if name not in taken:
            break
        there = found.named(name)
        if there and there.mark is not None and there.mark.kind is SnapshotKind.DIVERGED:
            written = command.run(
                ["zfs", "get", "-Hp", "-o", "value", f"written@{name}", volume.name], where
            )
            if written.strip() == "0":
                return name
        name = f"{keep_as}_{number}"
    mark = SnapshotMark(SnapshotKind.DIVERGED, "", clock.now_ns())
    words = ["-o", f"{marks.SNAPSHOT}={mark.text()}", f"{volume.name}@{name}"]
    command.effect("ZFS:ROLLBACK:KEEP", ["zfs", "snapshot", *words], where)
    return name


def copied(volume: Dataset, mark: Mark, where: str) -> list[str]:
    """The properties of the new volume: those of the old one, and those of a mirror."""
    asked = ["zfs", "get", "-Hp", "-s", "local", "-o", "property,value", "all", volume.name]
    pairs = []
    for line in command.run(asked, where).splitlines():
        name, _, value = line.partition("\t")
        users = ":" in name and not name.startswith("mirrord:")
        users = users or name.startswith(relationships.PREFIX)
        if users or name in _COPIED:
            pairs.append(f"{name}={value}")
    hides = volume.mounted and mountpoint.names(volume.mountpoint)  # it was mounted over files
    over = "overlay=on" if hides or volume.local("overlay") == "on" else "overlay=off"
    own = ["readonly=on"] + ([] if volume.is_zvol else ["canmount=noauto", over])
    pins = volume.local(marks.PINS)
    pinned = [] if pins is None else [f"{marks.PINS}={pins}"]
    return [*pairs, *own, f"{marks.MARK}={mark.text()}", *pinned]


def rename(label: str, volume: Dataset, name: str, where: str) -> None:
    """Give a dataset another name; a mounted file system stays mounted where it is."""
    quiet = [] if volume.is_zvol else ["-u"]
    command.effect(label, ["zfs", "rename", *quiet, volume.name, name], where)


def drop_fresh(place: Place, where: str) -> None:
    """Destroy a clone that an interrupted swap to another snapshot left, or a reinstatement. One
    that has snapshots of its own (received, or a user's) is set aside.
    """
    fresh, here = place.fresh, place.here
    assert fresh is not None and here is not None
    if here.get("origin").startswith(f"{fresh.name}@"):
        command.effect("ZFS:SWAP:BACK", ["zfs", "promote", here.name], where)
    if not listing.load(fresh.name, (), None, where).snapshots():
        command.effect("ZFS:SWAP:LEFTOVER", ["zfs", "destroy", fresh.name], where)
        return
    aside = names.set_aside(place.location, fresh.guid)
    mark = place.mark._replace(kept=tuple(dict.fromkeys((*place.mark.kept, aside))))
    if mark != place.mark:
        words = ["zfs", "set", f"{marks.MARK}={mark.text()}", here.name]
        command.effect("ZFS:SWAP:KEPT", words, where)
    rename("ZFS:SWAP:LEFTOVER_ASIDE", fresh, aside, where)
