"""Failing over and back: the view changes between a live volume and a link to a snapshot.

Both directions prepare the new view in `swap/` and exchange it with the old one in a single
step (renameat2 RENAME_EXCHANGE), so that there is never a moment without a view. What a crash
leaves in `swap/` says how far it came.
"""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

from mirrord.core.errors import Refused
from mirrord.core.model import Divergence, Snapshot, SnapshotKind
from mirrord.drivers.btrfs import ioctl, layout, store, subvolume, walk
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.btrfs.store import Kept
from mirrord.system import clock, files, steps

_PROMOTING = "promoting"
_RETIRED = "retired"
_COMPARED = "divergence"


def promote(place: Layout, where: str) -> None:
    """See `Driver.promote`: a writable snapshot of what is shown takes the link's place."""
    ready = place.swap / _PROMOTING
    if not place.live:
        shown = store.shown(place)
        if shown is None:
            raise Refused(
                "there is nothing to make live",
                where=where,
                why="no snapshot is shown here",
                hint="The first transfer must have ended: 'mirrord initialize NAME'.",
            )
        _refuse_mounted(place, where)
        layout.make_store("BTRFS:PROMOTE", place, public=True)
        if subvolume.is_subvolume(ready):  # of an earlier try, perhaps of an older snapshot
            subvolume.delete("BTRFS:PROMOTE:LEFTOVER", ready)
        elif ready.is_symlink():
            files.remove_file("BTRFS:PROMOTE:LEFTOVER", ready)
        subvolume.snapshot("BTRFS:PROMOTE:SNAPSHOT", shown.path, ready, read_only=False)
        files.exchange("BTRFS:PROMOTE:EXCHANGE", place.view, ready)
    if ready.is_symlink():
        files.remove_file("BTRFS:PROMOTE:LINK", ready)
    if stat.S_IMODE(place.snapshots.stat().st_mode) != 0o700:
        steps.reached("BTRFS:PROMOTE:MODE")
        place.snapshots.chmod(0o700)


def rollback(
    place: Layout, target: Kept, *, mirror_id: str, keep_as: str | None, where: str
) -> None:
    """See `Driver.rollback`: a link to the snapshot takes the live volume's place, which is then
    set aside as a snapshot, or deleted. It is moved first and made read-only then: so what users
    write until the very exchange is kept.
    """
    retired = place.swap / _RETIRED
    assert target.wrapper is not None
    link = place.link_target(target.wrapper.name)
    if place.live:
        _refuse_mounted(place, where)
        if keep_as is None:
            _refuse_nested(place, where)
        layout.make_store("BTRFS:ROLLBACK", place, public=True)
        if subvolume.is_subvolume(retired):  # of a rollback that nobody ended: never lose it
            _keep(place, "unfinished")
        layout.write_mirror_id("BTRFS:ROLLBACK:MIRROR", place, mirror_id)
        files.switch_link("BTRFS:ROLLBACK:READY", link, retired)
        files.exchange("BTRFS:ROLLBACK:EXCHANGE", place.view, retired)
    else:
        layout.make_store("BTRFS:ROLLBACK", place, public=True)
        if layout.read_mirror_id(place) != mirror_id:
            layout.write_mirror_id("BTRFS:ROLLBACK:MIRROR", place, mirror_id)
        if place.shown_wrapper() != target.wrapper.name:
            files.switch_link("BTRFS:ROLLBACK:SHOW", link, place.view)
        if retired.is_symlink():
            files.remove_file("BTRFS:ROLLBACK:LEFTOVER", retired)
    if keep_as is None:
        if subvolume.is_subvolume(retired):
            subvolume.delete("BTRFS:ROLLBACK:DELETE", retired)
            files.sync_directory(place.swap)
    else:
        _keep(place, layout.component(keep_as, where))


def _keep(place: Layout, name: str) -> None:
    """Make the volume that was set aside a DIVERGED snapshot, and end what an earlier try began.
    Another one of that name stays: then this one gets a number behind its name.
    """
    retired = place.swap / _RETIRED
    if subvolume.is_subvolume(retired):
        free = name
        for number in itertools.count(2):
            if not os.path.lexists(place.diverged / free / free):
                break
            free = f"{name}~{number}"
        wrapper = place.diverged / free
        files.make_directory("BTRFS:ROLLBACK:FOLDER", wrapper, mode=0o755)
        files.rename("BTRFS:ROLLBACK:KEEP", retired, wrapper / free)
    for wrapper in sorted(place.diverged.iterdir()):
        kept = subvolume.is_subvolume(wrapper / wrapper.name)
        if kept and layout.read_record(wrapper) is None:
            _freeze(place, wrapper)


def _freeze(place: Layout, wrapper: Path) -> None:
    """Make a volume in its folder below `diverged/` a snapshot, and record its identity."""
    kept = wrapper / wrapper.name
    # What is still in memory belongs to it, and must not count as a change later.
    files.sync_filesystem("BTRFS:ROLLBACK:SYNC", kept)
    subvolume.set_read_only("BTRFS:ROLLBACK:READONLY", kept)
    files.sync_filesystem("BTRFS:ROLLBACK:SYNC", kept)
    info = subvolume.info(kept)
    snapshot = Snapshot(
        guid=info.guid,
        name=wrapper.name,
        kind=SnapshotKind.DIVERGED,
        order=store.filesystem_generation(place),
        taken_at_ns=clock.now_ns(),
    )
    record = Record("", None, snapshot, complete=True, ctransid=info.ctransid)
    layout.write_record("BTRFS:ROLLBACK:RECORD", wrapper, record)


def divergence(place: Layout, start: Kept, *, limit: int, where: str) -> Divergence:
    """See `Driver.divergence`: the live volume is compared as a snapshot of it, made for that."""
    newer = tuple(
        one.snapshot.name
        for one in store.kept(place)
        if one.snapshot.kind is SnapshotKind.REFERENCE and one.snapshot.order > start.snapshot.order
    )
    if not place.live or unchanged(place, start):
        return Divergence(start.snapshot.guid, 0, (), 0, newer)
    layout.make_store("BTRFS:DIVERGENCE", place, public=False)
    path = place.swap / _COMPARED
    if subvolume.is_subvolume(path):
        subvolume.delete("BTRFS:DIVERGENCE:LEFTOVER", path)
    subvolume.snapshot("BTRFS:DIVERGENCE:SNAPSHOT", place.view, path, read_only=True)
    try:
        info = subvolume.info(path)
        snapshot = Snapshot(info.guid, path.name, SnapshotKind.REFERENCE, info.otransid, 0)
        changes = walk.changed_files(start, Kept(snapshot, info, path), where)
    finally:
        subvolume.delete("BTRFS:DIVERGENCE:DELETE", path)
    return Divergence(
        base=start.snapshot.guid,
        changed_bytes=sum(change.data_bytes for change in changes),
        changes=tuple(changes[:limit]),
        total_changes=len(changes),
        newer_snapshots=newer,
    )


def unchanged(place: Layout, start: Kept) -> bool:
    """Whether the live volume certainly holds what the intact snapshot `start` holds.

    Every change of a file passes its inode, and with it the subvolume's ctransid; a snapshot has
    that of its origin, and taking one does not change it. What the kernel knows in memory is
    enough to say that it was changed; to say that it was not, what is in memory is written first.
    The volume must be what the snapshot was taken of, or have begun as the snapshot.
    """
    if ioctl.transaction_in_memory(place.view) not in (None, start.info.ctransid):
        return False
    files.sync_filesystem("BTRFS:CHANGED:SYNC", place.view)
    live = subvolume.info(place.view)
    related = start.info.parent_uuid == live.uuid or live.parent_uuid == start.info.uuid
    return related and start.snapshot.intact and live.ctransid == start.info.ctransid


def fixed(place: Layout) -> str:
    """Why the view cannot change places with another one, or ""."""
    if place.mounted or layout.is_mount_point(place.view):
        return (
            "it is mounted at this very path, and a mount point cannot be renamed; mount the "
            "folder above it (the whole file system) and name the volume by its path there"
        )
    return ""


def _refuse_mounted(place: Layout, where: str) -> None:
    why = fixed(place)
    if why:
        raise Refused(
            "the volume cannot change places with its mirror's view",
            where=where,
            why=why,
            hint="Mount the whole file system elsewhere, for example: mount -o subvolid=5.",
        )


def _refuse_nested(place: Layout, where: str) -> None:
    nested = store.nested_names(place.view, limit=1)
    if nested:
        raise Refused(
            f"the nested subvolume '{nested[0]}' would be lost",
            where=where,
            why="a btrfs snapshot does not contain it, so it is not in the mirror either",
            hint=f"Move {os.path.join(place.view, nested[0])} away, or keep what diverged.",
        )
