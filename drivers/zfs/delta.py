"""A delta put together: counts from the pool's books, places and files from the stream's records
(survey.py says what each figure means).
"""

from __future__ import annotations

from mirrord.core.model import Delta, FileChange
from mirrord.drivers.zfs import compare, mounting, stream, survey
from mirrord.drivers.zfs.compare import Accounts
from mirrord.drivers.zfs.listing import Entry
from mirrord.drivers.zfs.place import Place
from mirrord.drivers.zfs.stream import Sending

#: Of a smaller change, what it takes in the pool is near enough to what will be sent.
_ESTIMATE_BYTES = 1 << 20
#: A change up to this is looked through for the states: that reads all of it.
_EXACT_BYTES = 256 << 20


def put_together(
    place: Place,
    older: Entry | None,
    newer: Entry,
    accounts: Accounts,
    sending: Sending,
    *,
    states: bool,
    files: bool,
    where: str,
) -> Delta:
    """See `Driver.delta`. accounts: of the two; sending: how they are sent."""
    folder = mounting.folder_of(place.volume)
    forward = older is None or older.order < newer.order
    listed = older if files and folder and older is not None and not older.bookmark else None
    small = older is not None and accounts.added <= _EXACT_BYTES
    send_bytes, exact, seen = accounts.added, False, None
    if forward and (listed is not None or (states and small)):
        seen = survey.look_through(sending, where)
        send_bytes, exact = seen.stream_bytes, True
    elif forward and (older is None or accounts.added > _ESTIMATE_BYTES):
        send_bytes = stream.estimate(sending, where)
    changes: tuple[FileChange, ...] | None = None
    if listed is not None:
        changes = compare.files_changed(listed, newer.full, folder, where)
        if seen is not None:
            changes = survey.with_sizes(changes, seen, folder, listed.name, newer.name)
    return Delta(
        older.guid if older else None, newer.guid, compare.SECTOR_BYTES,
        accounts.states(_pool_bytes(place)) if states else None,
        accounts.added, send_bytes, exact, changes,
    )  # fmt: skip


def _pool_bytes(place: Place) -> int:
    """What the pool can hold for datasets."""
    if place.pool is None:
        return 0
    return int(place.pool.get("used") or 0) + int(place.pool.get("available") or 0)
