"""Deleting snapshots: mirrord's hold is released first; other holds are reported."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mirrord.core.errors import Busy, MirrordError, Refused
from mirrord.core.model import SnapshotKind
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, names
from mirrord.drivers.zfs.dataset.marks import Mark
from mirrord.drivers.zfs.dataset.place import Place
from mirrord.drivers.zfs.snapshots import compare, programs
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing
from mirrord.system import steps

#: Snapshots in one command: the length of its arguments is limited.
_AT_ONCE = 500
_THREADS = 8


def delete(place: Place, found: Listing, one: Entry, where: str) -> None:
    """Delete a snapshot, and set-aside datasets that have no other snapshots."""
    copy = place.mark.copy
    clones = [name for name in one.clones.split(",") if name and names.MARKER not in name]
    theirs = [name for name in clones if name != copy]
    if theirs:
        raise _cloned(one, theirs, where)
    if one.mark is not None and one.mark.kind is SnapshotKind.DIVERGED:
        _refuse_later_work(found, one, where)
    words = ["zfs", "release", marks.HOLD, one.full]
    gone = ("no such tag", "does not exist")
    tasks = [command.Task("ZFS:DELETE:RELEASE", words, gone)]
    if place.mark.role != "mirror" or found.bookmark(one.guid) is not None:
        words = ["zfs", "destroy", f"{one.dataset}#{one.name}"]
        tasks.append(command.Task("ZFS:DELETE:BOOKMARK", words, None))
    command.together(tasks, where)
    steps.reached("ZFS:DELETE:SNAPSHOT")
    _destroy(one, where)
    sweep(place, found, {one.guid}, where)


def _refuse_later_work(found: Listing, one: Entry, where: str) -> None:
    """Refuse when `one` is the last snapshot of a set-aside dataset, which is destroyed with it,
    and the dataset was written to after it.
    """
    own = [each for each in found.snapshots() if each.dataset == one.dataset]
    if own[-1].guid != one.guid or one.dataset == found.dataset:
        return
    # Acknowledged writes are counted when their transaction group is on disk.
    command.run(["zpool", "sync", names.pool_of(one.dataset)], where)
    if compare.written(one.dataset, one, where) and compare.differs(one.dataset, one):
        raise Refused(
            f"{one.dataset} was written to after it was set aside",
            where=where,
            why=f"it would be destroyed with its last snapshot {one.name}",
            hint="Keep the snapshot; or copy what you need and destroy the dataset: zfs destroy -r "
            f"{one.dataset}",
        )


def delete_all(entries: Sequence[Entry], copy: str, where: str) -> None:
    """Delete a tree's snapshot: those of all its members, the last entry last. copy: see `Mark`."""
    for one in entries:
        clones = [name for name in one.clones.split(",") if name and names.MARKER not in name]
        theirs = [name for name in clones if not (copy and f"{name}/".startswith(f"{copy}/"))]
        if theirs:
            raise _cloned(one, theirs, where)
    _release("ZFS:DELETE:RELEASE", entries, where)
    for _each in entries:
        steps.reached("ZFS:DELETE:SNAPSHOT")
    full = [one.full for one in entries]
    plain = not any(one.clones for one in entries)
    if plain and len(full) > 1 and programs.destroy_all(full):
        return
    with ThreadPoolExecutor(_THREADS) as pool:  # each waits for the pool, so they wait together
        list(pool.map(lambda one: _destroy(one, where), entries[:-1]))
    _destroy(entries[-1], where)


def _destroy(one: Entry, where: str) -> None:
    # The origin of a set-aside clone is destroyed together with the clone.
    later = ["-d"] if one.clones else []
    arguments = ["zfs", "destroy", *later, one.full]
    done = command.result(arguments)
    if done.status != 0 and "could not find any snapshots" not in done.errors:
        if "being held" in done.errors or "busy" in done.errors:
            raise _held(one, where)
        raise command.failure(where, arguments, done.errors)


def _cloned(one: Entry, theirs: Sequence[str], where: str) -> Refused:
    return Refused(
        f"the snapshot {one.name} has clones",
        where=where,
        why=", ".join(theirs),
        hint=f"Promote or destroy them first: zfs promote {theirs[0]}",
    )


def release_all(found: Listing, where: str) -> None:
    """Release all holds of mirrord: it no longer manages these snapshots."""
    _release("ZFS:FORGET:RELEASE", found.ours(), where)


def _release(label: str, entries: Sequence[Entry], where: str) -> None:
    held = [one.full for one in entries if one.holds]
    for start in range(0, len(held), _AT_ONCE):
        words = ["zfs", "release", marks.HOLD, *held[start : start + _AT_ONCE]]
        command.lenient(label, words, where, "no such tag", "does not exist")


def _held(one: Entry, where: str) -> MirrordError:
    tags = []
    done = command.result(["zfs", "holds", "-H", one.full])
    for line in done.output.splitlines():
        fields = line.split("\t")
        if len(fields) >= 2:
            tags.append(fields[1])
    return Busy(
        f"the snapshot {one.name} is held",
        where=where,
        why=f"by {', '.join(tags)}" if tags else "it is in use, perhaps by a running 'zfs send'",
        hint="When the program that set the hold no longer needs it: zfs release "
        f"{tags[0] if tags else 'TAG'} {one.full}",
    )


def sweep(place: Place, found: Listing, gone: set[str], where: str) -> None:
    """Destroy set-aside datasets that have no snapshots any more."""
    kept = place.mark.kept
    holding = {one.dataset for one in found.snapshots() if one.guid not in gone}
    empty = [name for name in kept if name not in holding]
    if not empty or place.here is None:
        return
    left = []
    for name in empty:
        steps.reached("ZFS:DELETE:ASIDE")
        done = command.result(["zfs", "destroy", name])
        if done.status != 0 and "does not exist" not in done.errors:
            left.append(name)  # in use: it is destroyed the next time
    mark = place.mark._replace(kept=tuple(one for one in kept if one in holding or one in left))
    if mark != place.mark:
        words = ["zfs", "set", f"{marks.MARK}={mark.text()}", place.location]
        command.effect("ZFS:DELETE:MARK", words, where)


def forget(place: Place, found: Listing, where: str, *, live: bool) -> None:
    """See `Driver.forget`: removes what is left of the mirror when there is no transfer."""
    if place.prepared:
        above = names.parent_of(place.location)
        words = ["zfs", "inherit", names.prepared_property(place.location), above]
        command.effect("ZFS:FORGET:PREPARED", words, where)
    if place.here is None or place.here.mark is None:
        return
    release_all(found, where)
    old = place.mark
    mark = Mark(kept=old.kept) if live else old._replace(role="forgotten", mirror_id="")
    if mark != old:
        words = ["zfs", "set", f"{marks.MARK}={mark.text()}", place.location]
        command.effect("ZFS:FORGET:MARK", words, where)
    if place.here.local(marks.STAGING) is not None:
        words = ["zfs", "inherit", marks.STAGING, place.location]
        command.effect("ZFS:FORGET:STAGING", words, where)
