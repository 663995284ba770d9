"""Failing over and back: the view changes between a live volume and a link to a snapshot.

Both directions prepare the new view and exchange it with the old one in a single step (renameat2
RENAME_EXCHANGE), so the view exists at every moment. A volume that becomes live is
prepared in `swap/`. The link that replaces a live volume is prepared next to it
(`Layout.outside`), because a frozen volume cannot be moved to another folder. What a crash leaves
there shows how far the operation got.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from mirrord.core.errors import MIRROR, Damaged, NotFound, Refused
from mirrord.core.model import Divergence, FileChange, Snapshot, SnapshotKind
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import ioctl, layout, store, subvolume, walk
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.system import clock, files, steps
from mirrord.system.openers import sees_all, writers_on

_PROMOTING = "promoting"
_COMPARED = "divergence"
#: Much longer than an open() takes that passed its checks before the volume became read-only.
_OPENING_S = 0.05


class Parts:
    """The subvolumes that a volume consists of: itself. With nested ones see nested_live.py."""

    def copy(self, start: SnapshotEntry, path: Path) -> None:
        """Make `path` a writable copy of a snapshot."""
        subvolume.snapshot("BTRFS:PROMOTE:SNAPSHOT", start.path, path, read_only=False)

    def paths(self, volume: Path) -> list[Path]:
        """The subvolumes of one that was set aside, the outer ones first."""
        return [volume]

    def record(self, volume: Path) -> None:
        """Record which subvolumes one that was set aside consists of."""

    def unchanged(self, volume: Path, target: SnapshotEntry) -> bool:
        """Whether a volume that was set aside certainly has nothing but the content of `target`: no
        subvolume is in it, not even in the store of another mirror.
        """
        return not any(subvolume.below(volume)) and unchanged(volume, target)

    def delete(self, wrapper: Path) -> None:
        """Delete a folder with a volume that was set aside and is superfluous."""
        subvolume.delete("BTRFS:ROLLBACK:DELETE", wrapper / wrapper.name)
        files.remove_folder("BTRFS:ROLLBACK:LEFTOVER", wrapper)


def promote(place: Layout, start: SnapshotEntry | None, where: str, parts: Parts) -> None:
    """See `Driver.promote`: a writable copy of `start` takes the place of the view's link."""
    ready = place.swap / _PROMOTING
    if not place.live:
        if start is None:
            raise Refused(
                "there is nothing to make live",
                where=where,
                why="no intact snapshot exists here",
                hint=f"Complete the first transfer: 'mirrord initialize {MIRROR}'.",
            )
        _refuse_mounted(place, where)
        layout.make_store("BTRFS:PROMOTE", place, public=True)
        sweep(place)  # leftovers of an earlier attempt, perhaps from an older snapshot
        parts.copy(start, ready)
        if os.path.lexists(place.view):
            files.exchange("BTRFS:PROMOTE:EXCHANGE", place.view, ready)
        else:  # the link was removed
            files.rename("BTRFS:PROMOTE:EXCHANGE", ready, place.view)
    if ready.is_symlink():
        files.remove_file("BTRFS:PROMOTE:LINK", ready)
    if stat.S_IMODE(place.snapshots.stat().st_mode) != 0o700:
        steps.reached("BTRFS:PROMOTE:MODE")
        place.snapshots.chmod(0o700)


def to_promote(place: Layout, guid: str | None, where: str) -> SnapshotEntry | None:
    """The snapshot that a promoted volume begins as: `guid` if given, else the one shown, else the
    newest intact one. A received snapshot whose record is missing or damaged is acceptable: it was
    complete when it arrived, and the kernel clears its received UUID when it is made writable.
    """
    if guid is not None:
        one = store.find(place, guid)
        if one is None or not _usable(one):
            raise refusals.base_missing(where, guid)
        return one
    kept = [one for one in store.kept(place) if one.snapshot.kind is SnapshotKind.REFERENCE]
    shown = store.shown(place)
    if shown is not None and store.is_tree(place.snapshots / shown.path.name) != place.nested:
        raise Refused(
            "the destination is of a mirror "
            + ("without nested subvolumes" if place.nested else "with nested subvolumes"),
            where=where,
            why=f"it shows {shown.path.name}",
            hint="Restore the previous value of 'nested' in the definition.",
        )
    intact = [one for one in kept if one.snapshot.intact]
    if shown is not None and _usable(shown):
        return shown
    usable = intact or [one for one in kept if _usable(one)]
    return usable[-1] if usable else None


def _usable(one: SnapshotEntry) -> bool:
    received = one.record is None and one.info.read_only and bool(one.info.received_uuid)
    return one.snapshot.intact or received


def rollback(
    place: Layout,
    target: SnapshotEntry,
    *,
    mirror_id: str,
    keep_as: str,
    where: str,
    parts: Parts,
    set_aside: Callable[[], None],
) -> str | None:
    """See `Driver.rollback`: a link to the snapshot replaces the live volume. The volume is moved
    first and made read-only afterwards, so it contains everything written up to the exchange.

    set_aside: called once the volume is no longer in its place.
    """
    link = place.link_target(target.folder.name)
    if place.live:
        _refuse_mounted(place, where)
        layout.make_store("BTRFS:ROLLBACK", place, public=True)
        _keep_set_aside(place, None, keep_as, parts)  # of an unfinished one: not lost
        layout.write_mirror_id("BTRFS:ROLLBACK:MIRROR", place, mirror_id)
        files.switch_link("BTRFS:ROLLBACK:READY", link, place.outside)
        files.exchange("BTRFS:ROLLBACK:EXCHANGE", place.view, place.outside)
        set_aside()
    else:
        layout.make_store("BTRFS:ROLLBACK", place, public=True)
        if legible_mirror_id(place) != mirror_id:
            layout.write_mirror_id("BTRFS:ROLLBACK:MIRROR", place, mirror_id)
        if place.shown_wrapper() != target.folder.name:
            files.switch_link("BTRFS:ROLLBACK:SHOW", link, place.view)
    kept = _keep_set_aside(place, target, keep_as, parts)
    sweep(place)
    return kept


def legible_mirror_id(place: Layout) -> str:
    """The id of the mirror; "" also when the record cannot be read."""
    try:
        return layout.read_mirror_id(place)
    except Damaged:
        return ""


def reinstate(place: Layout, name: str, where: str, parts: Parts) -> None:
    """See `Driver.reinstate`."""
    wrapper = place.swap / layout.component(name, where)
    if not place.live:
        _move_to_swap(place, name)
        kept = place.diverged / name
        if not subvolume.is_subvolume(wrapper / name) and subvolume.is_subvolume(kept / name):
            files.rename("BTRFS:REINSTATE:MOVE", kept, wrapper)
        if not subvolume.is_subvolume(wrapper / name):
            raise NotFound("nothing is set aside under that name", where=where, why=name)
        for path in reversed(parts.paths(wrapper / name)):
            subvolume.set_read_only("BTRFS:REINSTATE:WRITABLE", path, False)
        if os.path.lexists(place.view):
            files.exchange("BTRFS:REINSTATE:EXCHANGE", place.view, wrapper / name)
        else:
            files.rename("BTRFS:REINSTATE:EXCHANGE", wrapper / name, place.view)
    if wrapper.is_dir() and not subvolume.is_subvolume(wrapper / name):
        files.remove_folder("BTRFS:ROLLBACK:LEFTOVER", wrapper)


def _move_to_swap(place: Layout, name: str) -> None:
    """Move the volume that was just exchanged with the view's link into `swap/`. A frozen volume
    must be writable for that; it is no longer at the path that its users know.
    """
    if subvolume.is_subvolume(place.outside):
        name = _free_name(place, name)
        wrapper = place.swap / name
        files.make_directory("BTRFS:ROLLBACK:FOLDER", wrapper, mode=0o755)
        subvolume.set_read_only("BTRFS:ROLLBACK:WRITABLE", place.outside, False)
        files.rename("BTRFS:ROLLBACK:MOVE", place.outside, wrapper / name)
    elif place.outside.is_symlink():
        files.remove_file("BTRFS:ROLLBACK:LEFTOVER", place.outside)


def _set_aside_folders(place: Layout) -> list[Path]:
    """The folders of formerly live volumes that have not been kept or deleted yet."""
    found = files.paths_in(place.swap)
    return [path for path in found if path.is_dir() and not subvolume.is_subvolume(path)]


def _keep_set_aside(
    place: Layout, target: SnapshotEntry | None, keep_as: str, parts: Parts
) -> str | None:
    """Freeze what was set aside, and keep it as a DIVERGED snapshot; delete it when its content is
    certainly that of `target`. Returns the name under which the volume of `keep_as` is kept.
    """
    _move_to_swap(place, layout.component(keep_as, str(place.location)))
    for wrapper in _set_aside_folders(place):
        volume = wrapper / wrapper.name
        if not subvolume.is_subvolume(volume):
            # The exchange was not reached, or was undone.
            files.remove_folder("BTRFS:ROLLBACK:LEFTOVER", wrapper)
            continue
        _freeze(place, wrapper, parts)
        mine = _has_name(wrapper.name, keep_as)
        if mine and target is not None and _is_redundant(volume, target, parts):
            parts.delete(wrapper)
            continue
        # A read-only subvolume cannot be renamed into another folder; a folder with one can.
        files.rename("BTRFS:ROLLBACK:KEEP", wrapper, place.diverged / wrapper.name)
    kept = files.names_in(place.diverged)
    return max((name for name in kept if _has_name(name, keep_as)), default=None)


def tidy(place: Layout, parts: Parts) -> None:
    """Finish operations whose record was lost: keep what a rollback set aside (no listing shows
    what is in `swap/`), and delete what never was live. What fails now, for example because the
    disk is full, is left for the next call.
    """
    with contextlib.suppress(OSError):
        sweep(place)
        if _set_aside_folders(place) or subvolume.is_subvolume(place.outside):
            _keep_set_aside(place, None, "diverged.unfinished", parts)


def _free_name(place: Layout, name: str) -> str:
    """`name`, with a number appended when that is taken."""
    free = name
    for number in itertools.count(2):
        taken = place.diverged / free, place.swap / free / free
        if not any(os.path.lexists(path) for path in taken):
            break
        free = f"{name}~{number}"
    return free


def _has_name(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}~")


def _is_redundant(volume: Path, target: SnapshotEntry, parts: Parts) -> bool:
    """Whether the snapshot contains everything in the volume, and no process can still write to it.

    False when the open files of some processes are not visible.

    All of it is read-only, so no file can be opened for writing any more. An open() that had
    passed its checks before completes within the pause.
    """
    if not sees_all():
        return False
    devices = [os.stat(path).st_dev for path in parts.paths(volume)]

    def same() -> bool:
        written = any(writers_on(device, limit=1) for device in devices)
        return not written and parts.unchanged(volume, target)

    for _ in range(2):
        if not same():
            return False
        clock.sleep_s(_OPENING_S)
    return same()


def _freeze(place: Layout, wrapper: Path, parts: Parts) -> None:
    """Turn a volume that was set aside into a snapshot, and record its identity."""
    kept = wrapper / wrapper.name
    # Data still in memory belongs to it, and must not count as a change later.
    files.sync_filesystem("BTRFS:ROLLBACK:SYNC", kept)
    writable = [kept]
    while writable:  # while an outer one is writable, others can be created in it
        parts.record(kept)  # what is read-only does not show that it was writable
        for path in writable:
            subvolume.set_read_only("BTRFS:ROLLBACK:READONLY", path)
        writable = [path for path in parts.paths(kept) if not subvolume.info(path).read_only]
    files.sync_filesystem("BTRFS:ROLLBACK:SYNC", kept)
    parts.record(kept)
    info = subvolume.info(kept)
    snapshot = Snapshot(
        guid=info.guid,
        name=wrapper.name,
        kind=SnapshotKind.DIVERGED,
        # The current transaction: whatever is created later has a greater one.
        order=ioctl.filesystem_facts(place.store)[1],
        taken_at_ns=clock.now_ns(),
    )
    record = Record("", None, snapshot, complete=True, ctransid=info.ctransid)
    layout.write_record("BTRFS:ROLLBACK:RECORD", wrapper, record)


def divergence(place: Layout, start: SnapshotEntry, *, limit: int, where: str) -> Divergence:
    """See `Driver.divergence`: a temporary snapshot of the live volume is compared."""
    changes = list[FileChange]()
    if place.live and not unchanged(place.view, start):
        changes = changed_files(place, place.view, start, where)
    return diverged(place, start, changes, limit)


def changed_files(
    place: Layout,
    volume: Path,
    start: SnapshotEntry | None,
    where: str,
    placed: Collection[str] = (),
) -> list[FileChange]:
    """What changed in a live subvolume since a snapshot of it (see `walk.changed_files`).

    place: the store in which a temporary snapshot of it is taken.
    """
    layout.make_store("BTRFS:DIVERGENCE", place, public=False)
    sweep(place)
    path = place.swap / _COMPARED
    subvolume.snapshot("BTRFS:DIVERGENCE:SNAPSHOT", volume, path, read_only=True)
    try:
        info = subvolume.info(path)
        snapshot = Snapshot(info.guid, path.name, SnapshotKind.REFERENCE, info.otransid, 0)
        return walk.changed_files(start, SnapshotEntry(snapshot, info, path), where, placed)
    finally:
        subvolume.delete("BTRFS:DIVERGENCE:DELETE", path)


def diverged(
    place: Layout, start: SnapshotEntry, changes: Sequence[FileChange], limit: int
) -> Divergence:
    """The divergence that consists of these changes and of the newer snapshots."""
    newer = tuple(
        one.snapshot.name
        for one in store.kept(place)
        if one.snapshot.kind is SnapshotKind.REFERENCE and one.snapshot.order > start.snapshot.order
    )
    return Divergence(
        base=start.snapshot.guid,
        changed_bytes=sum(change.data_bytes for change in changes),
        changes=tuple(changes[:limit]),
        total_changes=len(changes),
        newer_snapshots=newer,
    )


def sweep(place: Layout) -> None:
    """Remove what an interrupted comparison, promotion or rollback left; it never was live."""
    links = [link for link in (place.outside, files.beside(place.outside)) if link.is_symlink()]
    for path in (place.swap / _COMPARED, place.swap / _PROMOTING, *links):
        if subvolume.is_subvolume(path):
            subvolume.delete_all("BTRFS:SWAP:LEFTOVER", path)
        elif path.is_symlink():
            files.remove_file("BTRFS:SWAP:LEFTOVER", path)


def unchanged(volume: Path, start: SnapshotEntry, begun: int = 0) -> bool:
    """Whether a live or formerly live volume certainly has the content of the intact `start`.

    begun: the last change of a volume that began as the snapshot, if it was changed when it was
    made live (nested subvolumes were placed in it); otherwise 0.

    Every change of a file updates its inode and the subvolume's ctransid, except after a power
    failure (`subvolume.last_change`). A snapshot inherits both from its origin, and taking one
    changes neither. The kernel's state in memory is enough to detect a change; to rule one out,
    it is written to disk first.
    The volume must be the origin of the snapshot, or have begun as the snapshot.
    """
    wanted = begun or start.info.ctransid
    if ioctl.transaction_in_memory(volume) not in (None, wanted):
        return False
    files.sync_filesystem("BTRFS:CHANGED:SYNC", volume)
    live = subvolume.info(volume)
    related = start.info.parent_uuid == live.uuid or live.parent_uuid == start.info.uuid
    if not (related and start.snapshot.intact and live.ctransid == wanted):
        return False
    then = begun or subvolume.last_change(start.path, start.info)
    return subvolume.last_change(volume, live) == then


def pinned_reason(place: Layout) -> str:
    """Why the view cannot be exchanged, or "" when it can."""
    if place.mounted or layout.is_mount_point(place.view):
        return (
            "it is mounted at exactly this path, and a mount point cannot be renamed; mount the "
            "parent folder (the top level of the file system) and give the volume's path there"
        )
    return ""


def _refuse_mounted(place: Layout, where: str) -> None:
    why = pinned_reason(place)
    if why:
        raise Refused(
            "the volume cannot be exchanged with its mirror's view",
            where=where,
            why=why,
            hint="Mount the top level of the file system elsewhere: mount -o subvolid=5.",
        )
