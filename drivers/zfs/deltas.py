"""What lies between two snapshots of a volume, in the contract's words."""

from __future__ import annotations

from mirrord.core.model import Delta, FileChange
from mirrord.drivers.zfs import compare, mounting, stream, survey
from mirrord.drivers.zfs.compare import Accounts
from mirrord.drivers.zfs.listing import Entry
from mirrord.drivers.zfs.place import Place
from mirrord.drivers.zfs.stream import Sending

#: Of a smaller change, what it takes in the pool is near enough to what will be sent.
_ESTIMATE_BYTES = 1 << 20
#: A change up to this is looked through for `mirrord delta`: that reads all of it.
_EXACT_BYTES = 256 << 20


def small(base: str | None, incremental: str, written: int) -> Delta | None:
    """The delta of two snapshots when no more is asked than what will be sent; None when that has
    to be estimated. written: bytes between them by the pool's books.
    """
    if base is None or written > _ESTIMATE_BYTES:
        return None
    return Delta(base, incremental, compare.SECTOR_BYTES, None, written, written, False, None)


def between(
    place: Place,
    older: Entry | None,
    newer: Entry,
    accounts: Accounts,
    where: str,
    *,
    states: bool,
    files: bool,
) -> Delta:
    """See `Driver.delta`. accounts: what the pool's books say of the pair."""
    forward = older is None or older.order < newer.order
    folder = mounting.folder_of(place.volume)
    listed = files and older is not None and not older.bookmark and bool(folder)
    send_bytes, exact, seen = accounts.added, False, None
    if forward and (listed or (states and older and accounts.added <= _EXACT_BYTES)):
        seen = survey.look_through(sending(place, older, newer), where)
        send_bytes, exact = seen.stream_bytes, True
        if not seen.objects:  # only the dataset's own header was written anew: no content
            accounts = accounts._replace(newer=accounts.base, added=0)
    elif forward and (older is None or accounts.added > _ESTIMATE_BYTES):
        send_bytes = stream.estimate(sending(place, older, newer), where)
    changes: tuple[FileChange, ...] | None = None
    if listed and older is not None:
        changes = compare.files_changed(older, newer.full, folder, where)
        if seen is not None:
            changes = survey.with_sizes(changes, seen, folder, older.name, newer.name)
    return Delta(
        older.guid if older else None,
        newer.guid,
        compare.SECTOR_BYTES,
        accounts.states(_pool_bytes(place)) if states else None,
        accounts.added,
        send_bytes,
        exact,
        changes,
    )


def sending(place: Place, older: Entry | None, newer: Entry) -> Sending:
    """What `zfs send` is asked for; encrypted blocks go as they are."""
    raw = place.volume is not None and place.volume.encrypted
    return Sending(
        older.full if older else None, older.guid if older else None, newer.full, newer.guid, raw
    )


def _pool_bytes(place: Place) -> int:
    """What the pool can hold for datasets."""
    if place.pool is None:
        return 0
    return int(place.pool.get("used") or 0) + int(place.pool.get("available") or 0)
