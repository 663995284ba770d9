"""The difference between two snapshots of a volume, as a `Delta` of the contract."""

from __future__ import annotations

from mirrord.core.model import Delta, FileChange
from mirrord.drivers.zfs.dataset import mounting
from mirrord.drivers.zfs.dataset.place import Place
from mirrord.drivers.zfs.snapshots import compare
from mirrord.drivers.zfs.snapshots.compare import Accounts
from mirrord.drivers.zfs.snapshots.listing import Entry
from mirrord.drivers.zfs.stream import send, survey
from mirrord.drivers.zfs.stream.send import Sending

#: Below this, the space that a change uses in the pool is a sufficient estimate of the stream.
_ESTIMATE_BYTES = 1 << 20
#: Up to this, a change is read completely for `mirrord delta`.
_EXACT_BYTES = 256 << 20


def small(base: str | None, incremental: str, written: int) -> Delta | None:
    """The delta of two snapshots when only the size of the stream is needed; None when that has to
    be estimated. written: bytes between them by the pool's accounting.
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
    """See `Driver.delta`. accounts: of the pair, by the pool's accounting."""
    forward = older is None or older.order < newer.order
    folder = mounting.folder_of(place.volume)
    listed = files and older is not None and not older.bookmark and bool(folder)
    send_bytes, exact, seen = accounts.added, False, None
    if forward and (listed or (states and older and accounts.added <= _EXACT_BYTES)):
        seen = survey.parse_stream(sending(place, older, newer), where)
        send_bytes, exact = seen.stream_bytes, True
        if not seen.objects:  # only the dataset's header was written again: no content
            accounts = accounts._replace(newer=accounts.base, added=0)
    elif forward and (older is None or accounts.added > _ESTIMATE_BYTES):
        send_bytes = send.estimate(sending(place, older, newer), where)
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
    """The parameters of `zfs send`; encrypted blocks are sent raw."""
    raw = place.volume is not None and place.volume.encrypted
    return Sending(
        older.full if older else None, older.guid if older else None, newer.full, newer.guid, raw
    )


def _pool_bytes(place: Place) -> int:
    """The capacity of the pool for datasets."""
    if place.pool is None:
        return 0
    return int(place.pool.get("used") or 0) + int(place.pool.get("available") or 0)
