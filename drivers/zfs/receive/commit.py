"""Committing what was received as a snapshot of the mirror, in one step, and showing it."""

from __future__ import annotations

from typing import NamedTuple

from mirrord.core.model import ReceiveRequest
from mirrord.drivers.refusals import staging_missing, stream_damaged
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, mounting, names, transfer_record
from mirrord.drivers.zfs.dataset.marks import Mark, SnapshotMark
from mirrord.drivers.zfs.dataset.place import Place, look
from mirrord.drivers.zfs.failover import failover
from mirrord.drivers.zfs.receive import held_receive, receiver
from mirrord.drivers.zfs.snapshots import listing, listing_cache, taking
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing
from mirrord.system import steps


class PendingCommit(NamedTuple):
    """What is left to do (by `finish_commit`) for a committed snapshot. Until then the record of
    the transfer shows which mirror it belongs to.
    """

    location: str
    entry: Entry
    request: ReceiveRequest
    change: listing_cache.Change


class Committed(NamedTuple):
    """The snapshot, and the place as it is now. fresh: cached facts are no longer valid."""

    entry: Entry
    place: Place
    fresh: bool
    pending: PendingCommit | None = None


def commit(place: Place, found: Listing, transfer_id: str, *, show: bool, where: str) -> Committed:
    """See `Driver.commit`. The END record makes the snapshot visible; after that only records are
    left to be written (`Committed.pending`), which a repeated commit also does.
    """
    held = held_receive.kept(place.location, transfer_id)
    if held is not None and held.request is not None:
        return _finish(place, found, held, show=show, where=where)
    done = committed(found, transfer_id)
    if done is None:
        raise staging_missing(where, transfer_id)
    newest = found.own()[-1].guid == done.guid
    changed = False
    request = receiver.last(place)
    if request is not None and request.snapshot.guid == done.guid:
        changed = not done.marked or not done.holds
        change = listing_cache.Change(place)
        done = _mark(done, request, where)
        change.done(added=done)
    if show:
        changed |= _show(place, found, done, newest=newest, where=where)
    transfer_record.remove("ZFS:COMMIT:RECORD", place.location)
    return Committed(done, place, changed)


def _finish(
    place: Place, found: Listing, held: held_receive.HeldReceive, *, show: bool, where: str
) -> Committed:
    request, present = held.request, held.child is None
    assert request is not None
    first = place.here is None
    if first:  # it did not exist yet when `place` was read
        place = look(place.location, where)
    pinned = not show and _pin(place, found, where)
    change = listing_cache.Change(place)
    steps.reached("ZFS:COMMIT:END")
    try:
        held.finish()
    finally:
        held_receive.drop(place.location)
    there = found.find(request.snapshot.guid) if present else None
    done = there or _made(place, found, held.target, request)
    if first or pinned:
        place = look(place.location, where)
    if show:
        _show(place, found, done, newest=not present, where=where)
    fresh = first or pinned or present or place.mark.pin is not None
    pending = PendingCommit(place.location, done, request, change)
    return Committed(_marked(done, request), place, fresh, pending)


def _made(place: Place, found: Listing, full: str, request: ReceiveRequest) -> Entry:
    """The snapshot that a successful `zfs recv` created: it received no other. Its order is not
    known yet: after all others.
    """
    newest = max((one.order for one in found.entries), default=0)
    name = full.partition("@")[2]
    taken_ns = request.snapshot.taken_at_ns
    guid = request.snapshot.guid
    return Entry(place.location, name, guid, newest + 1, taken_ns, False, 0, "", None)


def finish_commit(pending: PendingCommit, where: str) -> Entry:
    """Finish a commit; may be repeated. Returns the snapshot as ZFS has it."""
    done = listing.load_one(pending.entry.full, where)
    if done is None or done.guid != pending.request.snapshot.guid:
        raise stream_damaged(
            where, f"it created no snapshot with the guid {pending.request.snapshot.guid}"
        )
    done = _mark(done, pending.request, where)
    pending.change.done(added=done)
    transfer_record.remove("ZFS:COMMIT:RECORD", pending.location)
    return done


def left(place: Place, found: Listing) -> PendingCommit | None:
    """What an ended process left to do after a commit, or None."""
    request = transfer_record.read(place.location)
    done = found.find(request.snapshot.guid) if request is not None else None
    if request is None or done is None:
        return None
    return PendingCommit(place.location, done, request, listing_cache.Change(place))


def committed(found: Listing, transfer_id: str) -> Entry | None:
    """The snapshot as which a transfer was already committed, or None."""
    for one in found.snapshots():
        if one.mark is not None and one.mark.transfer == transfer_id:
            return one
    return None


def _pin(place: Place, found: Listing, where: str) -> bool:
    """Keep showing the current snapshot, as the new one is not to be shown. Whether it changed."""
    new = place.mark.pin is None
    if new:
        mark = place.mark._replace(pin=failover.shown(place, found) or "")
        # A zvol then shows the device of a snapshot, which is hidden by default.
        devices = ["snapdev=visible"] if place.here is not None and place.here.is_zvol else []
        words = ["zfs", "set", f"{marks.MARK}={mark.text()}", *devices, place.location]
        command.effect("ZFS:COMMIT:PIN", words, where)
    return new


def _mark(done: Entry, request: ReceiveRequest, where: str) -> Entry:
    """Mark and hold the snapshot; until then the record of the transfer identifies it."""
    marked, tasks = _marked(done, request), []
    if not done.marked and marked.mark is not None:
        words = ["zfs", "set", f"{marks.SNAPSHOT}={marked.mark.text()}", done.full]
        tasks.append(command.Task("ZFS:COMMIT:MARK", words))
    if not done.holds:
        tasks.append(taking.hold("ZFS:COMMIT:HOLD", done.full))
    if tasks:
        command.together(tasks, where)
    return marked._replace(marked=True, holds=1)


def _marked(done: Entry, request: ReceiveRequest) -> Entry:
    snapshot = request.snapshot
    mark = SnapshotMark(snapshot.kind, request.transfer_id, snapshot.taken_at_ns)
    return done if done.marked else done._replace(mark=mark)


def _show(place: Place, found: Listing, done: Entry, *, newest: bool, where: str) -> bool:
    """Show the snapshot; whether anything changed. A commit that is repeated late does not replace
    a newer snapshot.
    """
    mark, changed = place.mark, False
    if mark.pin is not None:
        pinned = found.find(mark.pin) if mark.pin else None
        if pinned is None or pinned.order < done.order or (newest and pinned.guid == done.guid):
            after: Mark = mark._replace(pin=None if newest else done.guid)
            words = ["zfs", "set", f"{marks.MARK}={after.text()}", place.location]
            command.effect("ZFS:COMMIT:SHOW", words, where)
            changed = True
    if place.here is not None and not place.here.mounted and not place.here.is_zvol:
        mounting.mount("ZFS:COMMIT:MOUNT", place.here)
        changed = True
    if place.prepared:
        words = [
            "zfs",
            "inherit",
            names.prepared_property(place.location),
            names.parent_of(place.location),
        ]
        command.effect("ZFS:COMMIT:PREPARED", words, where)
        changed = True
    return changed
