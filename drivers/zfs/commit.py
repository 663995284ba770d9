"""Making what was received a snapshot of the mirror, in one step, and showing it."""

from __future__ import annotations

from mirrord.drivers.base import staging_missing, stream_damaged
from mirrord.drivers.zfs import command, failover, listing, marks, mounting, names, receive, running
from mirrord.drivers.zfs.listing import Entry, Listing
from mirrord.drivers.zfs.marks import Mark, SnapshotMark
from mirrord.drivers.zfs.place import Place, look
from mirrord.system import steps


def commit(
    place: Place, found: Listing, transfer_id: str, *, show: bool, where: str
) -> tuple[Entry, Place]:
    """See `Driver.commit`. The END record makes the snapshot visible; what comes after it is
    bookkeeping, which a repeated commit does too.
    """
    whole = running.kept(place.location, transfer_id)
    if whole is not None and whole.staging is not None:
        guid = whole.staging.snapshot.guid
        if not show:
            _pin(place, found, where)
        steps.reached("ZFS:COMMIT:END")
        try:
            whole.finish()
        finally:
            running.drop(place.location)
        place = look(place.location, where)
        request = receive.begun(place)
        found = listing.load(place.location, place.mark.kept, request, where)
        done = found.find(guid)
        if done is None:
            raise stream_damaged(where, f"it made no snapshot with the identity {guid}")
    else:
        there = committed(place, found, transfer_id)
        if there is None:
            raise staging_missing(where, transfer_id)
        done = there
    _mark(done, place, transfer_id, where)
    if show:
        _show(place, found, done, where)
    return done, place


def committed(place: Place, found: Listing, transfer_id: str) -> Entry | None:
    """The snapshot that a transfer has already become."""
    for one in found.snapshots():
        if one.mark is not None and one.mark.transfer == transfer_id:
            return one
    return None


def _pin(place: Place, found: Listing, where: str) -> None:
    """What comes is not to be shown: go on showing what is shown now."""
    if place.mark.pin is None:
        mark = place.mark._replace(pin=failover.shown(place, found) or "")
        words = ["zfs", "set", f"{marks.MARK}={mark.text()}", place.location]
        command.effect("ZFS:COMMIT:PIN", words, where)


def _mark(done: Entry, place: Place, transfer_id: str, where: str) -> None:
    """The snapshot's own record; until it is written the dataset's record of the transfer does."""
    request = receive.begun(place)
    if request is None or request.transfer_id != transfer_id or request.snapshot.guid != done.guid:
        return
    snapshot = request.snapshot
    mark = SnapshotMark(snapshot.kind, transfer_id, snapshot.taken_at_ns)
    if not done.marked:
        words = ["zfs", "set", f"{marks.SNAPSHOT}={mark.text()}", done.full]
        command.effect("ZFS:COMMIT:MARK", words, where)
    if not done.holds:
        hold("ZFS:COMMIT:HOLD", done.full, where)


def hold(label: str, snapshot: str, where: str) -> None:
    """Keep others from destroying a snapshot that mirrord needs."""
    command.lenient(label, ["zfs", "hold", marks.HOLD, snapshot], where, "tag already exists")


def _show(place: Place, found: Listing, done: Entry, where: str) -> None:
    mark = place.mark
    if mark.pin is not None:
        pinned = found.find(mark.pin) if mark.pin else None
        own = [one for one in found.own() if one.mark is not None]
        if pinned is None or pinned.order < done.order:
            newest = bool(own) and own[-1].guid == done.guid
            after: Mark = mark._replace(pin=None if newest else done.guid)
            words = ["zfs", "set", f"{marks.MARK}={after.text()}", place.location]
            command.effect("ZFS:COMMIT:SHOW", words, where)
    if place.here is not None:
        mounting.mount("ZFS:COMMIT:MOUNT", place.here)
    if place.prepared:
        words = ["zfs", "inherit", names.prepared_property(place.location),
                 names.parent_of(place.location)]  # fmt: skip
        command.effect("ZFS:COMMIT:PREPARED", words, where)
