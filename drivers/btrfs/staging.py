"""Stagings: the data of a transfer at a destination, until its snapshot is committed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mirrord.core.errors import Damaged
from mirrord.core.model import UNKNOWN_SNAPSHOT, Snapshot, SnapshotKind, Staging
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import checkpoints, layout, store, subvolume
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.system import files, steps


def wrapper_name(place: Layout, snapshot: Snapshot, where: str) -> str:
    """The folder for a snapshot: its name, unless another snapshot uses that already."""
    name = layout.component(snapshot.name, where)
    there = store.in_wrapper(place, place.snapshots / name, SnapshotKind.REFERENCE)
    if there is None or there.snapshot.guid == snapshot.guid:
        return name
    return f"{name}~{snapshot.guid[:8]}"


def remove_staging(folder: Path) -> None:
    """Remove a staging with all its content, if it exists. Durable."""
    if not folder.is_dir():
        return
    deleted = False
    for wrapper in folder.iterdir():
        inner = wrapper / wrapper.name
        for path in {inner, *(wrapper.iterdir() if wrapper.is_dir() else ())}:
            if subvolume.is_subvolume(path):
                subvolume.delete("BTRFS:DISCARD:SUBVOLUME", path)
                deleted = True
            elif path.is_file():
                steps.reached("BTRFS:DISCARD:RECORD")
                path.unlink()
        steps.reached("BTRFS:DISCARD:FOLDER")
        wrapper.rmdir() if wrapper.is_dir() else wrapper.unlink()
    files.remove_directory("BTRFS:DISCARD:STAGING", folder)
    if deleted:
        subvolume.reclaim(folder.parent)


def discard(place: Layout, transfer_id: str, where: str) -> None:
    """Remove all that a transfer has left."""
    remove_staging(place.staging / layout.component(transfer_id, where))
    kept = checkpoints.path_of(place, transfer_id, where)
    checkpoints.remove("BTRFS:DISCARD:CHECKPOINT", kept)


def discard_all(place: Layout) -> None:
    """Remove all that transfers have left."""
    for folder in files.paths_in(place.staging):
        remove_staging(folder)
    for kept in checkpoints.held(place).values():
        checkpoints.remove("BTRFS:FORGET:CHECKPOINT", kept.path)


def stagings(place: Layout) -> list[Staging]:
    """What earlier transfers left. One whose snapshot was already moved into the store, but perhaps
    not shown yet, counts as complete: a commit finishes it.
    """
    found = {staging.transfer_id: staging for staging in _staged(place)}
    for name, kept in checkpoints.held(place).items():
        here = found.get(name)
        moved = committed(place, name) if here is None else None
        if here is not None and here.complete:
            continue
        found[name] = Staging(
            name,
            kept.base,
            kept.snapshot,
            complete=moved is not None,
            checkpoint=kept.checkpoint,
            received_bytes=kept.stream_bytes,
        )
    return [found[name] for name in sorted(found)]


def _staged(place: Layout) -> Iterator[Staging]:
    for name in files.names_in(place.staging):
        folder, record = place.staging / name, None
        with contextlib.suppress(Damaged):
            record = layout.read_record(folder)
        complete = record is not None and _staged_in(folder, record) is not None
        if record is None or (record.complete and not complete):
            moved = committed(place, folder.name)
            record = moved.record if moved else record
            complete = moved is not None
        if record is None and not folder.is_dir():
            continue  # another process has just removed it
        yield Staging(
            folder.name,
            record.base if record else None,
            record.snapshot if record else UNKNOWN_SNAPSHOT,
            complete=complete,
        )


def _staged_in(folder: Path, record: Record) -> Path | None:
    """The folder of the announced snapshot; None unless it is complete, and as it was then."""
    # (Another process may just remove or commit it.)
    wrappers = [folder / name for name in files.names_in(folder) if (folder / name).is_dir()]
    if not record.complete or len(wrappers) != 1:
        return None
    try:
        info = subvolume.info(wrappers[0] / wrappers[0].name)
    except OSError:
        return None
    found = info.guid, info.ctransid, info.read_only
    return wrappers[0] if found == (record.snapshot.guid, record.ctransid, True) else None


def received(place: Layout, guid: str) -> SnapshotEntry | None:
    """A snapshot that is complete in its staging, and not committed yet."""
    for folder in files.paths_in(place.staging):
        with contextlib.suppress(Damaged):
            record = layout.read_record(folder)
            if record is None or record.snapshot.guid != guid:
                continue
            wrapper = _staged_in(folder, record)
            found = wrapper and store.in_wrapper(place, wrapper, SnapshotKind.REFERENCE)
            if found:
                # (Its record is beside its folder, not in it: that it is intact is known.)
                path = str(found.path)
                return found._replace(snapshot=record.snapshot._replace(path=path, intact=True))
    return None


def committed(place: Layout, transfer_id: str) -> SnapshotEntry | None:
    """The snapshot that a transfer has already become."""
    for one in store.kept(place):
        if one.record is not None and one.record.transfer_id == transfer_id:
            return one
    return None


def commit(place: Layout, transfer_id: str, *, show: bool, where: str) -> Snapshot:
    """See `Driver.commit`. The rename of the snapshot's folder and the switch of the link are
    each one step. After a crash between them the link still shows the old snapshot, and repeating
    the commit finishes it.
    """
    wrapper = staged_wrapper(place, transfer_id, where)
    folder = place.staging / transfer_id
    if wrapper is not None:
        target = place.snapshots / wrapper.name
        # If it exists, the same snapshot was received before, by another transfer.
        if not subvolume.is_subvolume(target / target.name):
            if target.is_dir():
                store.sweep(place)  # leftovers of a deletion
            _give_record(folder, wrapper)
            files.rename("BTRFS:COMMIT:MOVE", wrapper, target, leaving=True)
        done = store.in_wrapper(place, target, SnapshotKind.REFERENCE)
    else:
        done = committed(place, transfer_id)
    if done is None or done.wrapper is None:
        raise refusals.staging_missing(where, transfer_id)
    if show:
        show_it(place, done, again=wrapper is None)
    checkpoints.remove("BTRFS:COMMIT:CHECKPOINT", checkpoints.path_of(place, transfer_id, where))
    if wrapper is not None and [one.name for one in folder.iterdir()] == [layout.RECORD]:
        # Not made durable: if it reappears, the next commit finds nothing left to do.
        steps.reached("BTRFS:COMMIT:CLEAN")
        (folder / layout.RECORD).unlink()
        folder.rmdir()
    else:
        remove_staging(folder)
    return done.snapshot


def staged_wrapper(place: Layout, transfer_id: str, where: str) -> Path | None:
    """The folder of a complete snapshot in its staging; None when it is not there (any more)."""
    folder = place.staging / layout.component(transfer_id, where)
    record = layout.read_record(folder)
    return _staged_in(folder, record) if record is not None else None


def _give_record(folder: Path, wrapper: Path) -> None:
    """Link the record of a staging into its snapshot's folder; durable. A file of that name is
    replaced without being read: the receiving program could write there.
    """
    steps.reached("BTRFS:COMMIT:RECORD")
    (wrapper / layout.RECORD).unlink(missing_ok=True)
    os.link(folder / layout.RECORD, wrapper / layout.RECORD)
    files.sync_directory(wrapper)


def show_it(place: Layout, done: SnapshotEntry, *, again: bool) -> None:
    """Switch the view. again: unless it shows a newer snapshot."""
    if again:  # a late repetition must not switch the view back
        current = store.shown(place)
        if current is not None and current.snapshot.order >= done.snapshot.order:
            return
    target = place.link_target(done.folder.name)
    files.switch_link("BTRFS:COMMIT:SHOW", target, place.view)
