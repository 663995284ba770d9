"""Failing over and back: a mirror becomes a live volume, and a live one a mirror again.

ZFS can turn a dataset back only by destroying what is newer. So the dataset is made anew instead,
as a clone of the snapshot that it goes back to; the clone is promoted, which makes it the owner of
all older snapshots, and takes the name. What was there goes aside under a name of its own with
all that was newer, read-only. Each step can be seen from what is there, so that a crash anywhere is
ended by doing it again:

| at the location | beside it | what is left to do |
|---|---|---|
| the old volume | nothing | keep it by a snapshot, clone |
| the old volume | the clone | promote, set aside, rename, mount |
| nothing | the promoted clone | rename, mount |
| the promoted clone | | nothing |
"""

from __future__ import annotations

import itertools

from mirrord.core.errors import Refused
from mirrord.core.model import SnapshotKind
from mirrord.drivers.base import other_mirror
from mirrord.drivers.zfs import command, listing, marks, mounting, names, record
from mirrord.drivers.zfs.listing import Entry, Listing
from mirrord.drivers.zfs.marks import Mark, SnapshotMark
from mirrord.drivers.zfs.place import Dataset, Place, look
from mirrord.system import clock, steps

#: The owner's settings that the dataset which takes the place gets, too. What is not in here is
#: given by the snapshot, is counted by ZFS itself, or is set anew.
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


def promote(place: Place, found: Listing, where: str) -> None:
    """See `Driver.promote`: a mirror becomes writable where it is."""
    volume = place.here
    assert volume is not None
    guid = shown(place, found)
    target = found.find(guid) if guid else None
    if guid is None or target is None:
        raise Refused(
            "there is nothing to make live",
            where=where,
            why="no snapshot is shown here",
            hint="The first transfer must have ended: 'mirrord initialize NAME'.",
        )
    if volume.token:
        command.effect("ZFS:PROMOTE:ABORT", ["zfs", "recv", "-A", place.location], where)
    own = found.own()
    if not own or own[-1].guid != guid:  # newer ones came that are not shown
        make_anew(place, found, target, place.mark, None, where)
        place = look(place.location, where)
        volume = place.here
        assert volume is not None
    record.remove("ZFS:PROMOTE:RECORD", place.location)
    mark = place.mark._replace(role="live", pin=None, origin=guid)
    values = [f"{marks.MARK}={mark.text()}", "readonly=off"]
    values += [] if volume.is_zvol else ["canmount=on"]
    command.effect("ZFS:PROMOTE:MARK", ["zfs", "set", *values, place.location], where)
    mounting.mount("ZFS:PROMOTE:MOUNT", volume)


def rollback(
    place: Place,
    found: Listing,
    target: Entry,
    *,
    mirror_id: str,
    keep_as: str | None,
    where: str,
) -> None:
    """See `Driver.rollback`."""
    if place.here is None:
        finish_swap(place, where)
        return
    old = place.mark
    if old.role == "mirror" and old.mirror_id not in ("", mirror_id):
        raise other_mirror(where, old.mirror_id)
    if old.role == "mirror" and shown(place, found) == target.guid:
        if place.fresh is not None:
            _drop_fresh(place, where)
        finish_swap(place, where)  # an earlier try may not have shown what it set aside
        return
    mark = Mark(role="mirror", mirror_id=mirror_id, pin=target.guid, kept=old.kept, copy=old.copy)
    own = found.own()
    if keep_as is None and own and own[-1].guid == target.guid:
        _freeze(place.here, where)
        steps.reached("ZFS:ROLLBACK:BACK")
        command.run(["zfs", "rollback", target.full], where)
        words = ["zfs", "set", f"{marks.MARK}={mark.text()}", place.location]
        command.effect("ZFS:ROLLBACK:MARK", words, where)
        mounting.mount("ZFS:ROLLBACK:MOUNT", place.here)
        return
    make_anew(place, found, target, mark, keep_as, where)


def make_anew(
    place: Place, found: Listing, target: Entry, mark: Mark, keep_as: str | None, where: str,
    *, pin: str | None = None,
) -> None:  # fmt: skip
    """Let a clone of `target` with that mark take the volume's place; what was there goes aside.
    pin: the snapshot that is to be shown then; None: `target`.
    """
    here = place.here
    assert here is not None
    pin = pin or target.guid
    # What shows another one was perhaps made from another one: it does not last.
    if place.fresh is not None and (
        place.fresh.mark is None or not place.fresh.mark.pin == pin == target.guid
    ):
        _drop_fresh(place, where)
        place = look(place.location, where)
        found = listing.load(place.location, place.mark.kept, None, where)
        again = found.find(target.guid)
        assert again is not None
        target = again
    mounting.unmount("ZFS:SWAP:UNMOUNT", here, where)
    _freeze(here, where)
    if keep_as is not None:
        _keep(here, found, keep_as, where)
    aside = names.set_aside(place.location, here.guid)
    fresh = names.fresh(place.location)
    if place.fresh is None:
        kept = tuple(dict.fromkeys((*mark.kept, aside)))
        made = mark._replace(role="mirror", pin=pin, kept=kept)
        words = [word for pair in copied(here, made, where) for word in ("-o", pair)]
        command.effect("ZFS:SWAP:CLONE", ["zfs", "clone", *words, target.full, fresh], where)
    if place.fresh is None or place.fresh.get("origin"):
        command.effect("ZFS:SWAP:PROMOTE", ["zfs", "promote", fresh], where)
    if here.is_zvol and pin != target.guid:  # what is shown is a device of what goes aside
        command.effect("ZFS:SWAP:DEVICES", ["zfs", "set", "snapdev=visible", here.name], where)
    _rename("ZFS:SWAP:ASIDE", here, aside, where)
    finish_swap(look(place.location, where), where)


def finish_swap(place: Place, where: str) -> None:
    """The old volume is aside: the new one takes its name and its place."""
    if place.here is None and place.fresh is not None:
        _rename("ZFS:SWAP:RENAME", place.fresh, place.location, where)
        place = look(place.location, where)
    volume = place.here
    assert volume is not None
    mounting.mount("ZFS:SWAP:MOUNT", volume)
    for name in place.mark.kept:
        _show_aside(place, name, where)


def _show_aside(place: Place, name: str, where: str) -> None:
    """What was set aside can be read under a path beside the volume's."""
    volume = place.here
    if volume is None or volume.is_zvol or not volume.mountpoint:
        return
    if mounting.folder_aside(volume, name):
        return
    aside = look_aside(name, where)
    if aside is None:
        return
    if aside.local("mountpoint") == volume.mountpoint:
        folder = volume.mountpoint.rstrip("/") + name[name.index(names.MARKER) :]
        command.effect("ZFS:SWAP:FOLDER", ["zfs", "set", f"mountpoint={folder}", name], where)
        aside = look_aside(name, where)
        assert aside is not None
    mounting.mount("ZFS:SWAP:SHOW", aside)


def look_aside(name: str, where: str) -> Dataset | None:
    """A dataset that was set aside, or None when it is gone."""
    return look(name, where).here


def _freeze(volume: Dataset, where: str) -> None:
    """Nobody writes any more, and nothing mounts it at the next start of the host."""
    values = ["readonly=on"] + ([] if volume.is_zvol else ["canmount=noauto"])
    wanted = [value for value in values if volume.local(value.split("=")[0]) != value.split("=")[1]]
    if wanted:
        command.effect("ZFS:ROLLBACK:FREEZE", ["zfs", "set", *wanted, volume.name], where)


def _keep(volume: Dataset, found: Listing, keep_as: str, where: str) -> None:
    """Keep the volume as it is by a DIVERGED snapshot. One of that name that holds just that is of
    an earlier try; another one stays, and this one gets a number.
    """
    name = names.check_snapshot(keep_as, where)
    for number in itertools.count(2):
        there = found.named(name)
        if there is None:
            break
        if there.mark is not None and there.mark.kind is SnapshotKind.DIVERGED:
            written = command.run(
                ["zfs", "get", "-Hp", "-o", "value", f"written@{name}", volume.name], where
            )
            if written.strip() == "0":
                return
        name = f"{keep_as}_{number}"
    mark = SnapshotMark(SnapshotKind.DIVERGED, "", clock.now_ns())
    words = ["-o", f"{marks.SNAPSHOT}={mark.text()}", f"{volume.name}@{name}"]
    command.effect("ZFS:ROLLBACK:KEEP", ["zfs", "snapshot", *words], where)


def copied(volume: Dataset, mark: Mark, where: str) -> list[str]:
    """What the new volume is set to: the old one's own settings, and those of a mirror."""
    asked = ["zfs", "get", "-Hp", "-s", "local", "-o", "property,value", "all", volume.name]
    pairs = []
    for line in command.run(asked, where).splitlines():
        name, _, value = line.partition("\t")
        users = ":" in name and not name.startswith("mirrord:")
        if users or name in _COPIED:
            pairs.append(f"{name}={value}")
    own = ["readonly=on"] + ([] if volume.is_zvol else ["canmount=noauto", "overlay=off"])
    return [*pairs, *own, f"{marks.MARK}={mark.text()}"]


def _rename(label: str, volume: Dataset, name: str, where: str) -> None:
    quiet = [] if volume.is_zvol else ["-u"]
    command.effect(label, ["zfs", "rename", *quiet, volume.name, name], where)


def _drop_fresh(place: Place, where: str) -> None:
    """Destroy a clone that an interrupted swap to another snapshot left."""
    fresh, here = place.fresh, place.here
    assert fresh is not None and here is not None
    if here.get("origin").startswith(f"{fresh.name}@"):
        command.effect("ZFS:SWAP:BACK", ["zfs", "promote", here.name], where)
    command.effect("ZFS:SWAP:LEFTOVER", ["zfs", "destroy", fresh.name], where)
