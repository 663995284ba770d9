"""A cache of the last listing, so that thousands of snapshots are not listed at each update.

ZFS records when the snapshots of a dataset changed, to the tick of the kernel's clock, as the
modification time of `.zfs/snapshot`: while that is the same, the snapshots are. The listing is
stored in a file beside the locks, to which only the user that runs mirrord can write. Holds and
clones do not change that time; they are read again for a single snapshot when they are needed.

Snapshots that mirrord itself adds or deletes are changed in the stored listing. At that moment
another program may have taken a snapshot, which is then missing until the next change: so such a
listing is valid for mirrord's own snapshots, and not `certain`.
"""

from __future__ import annotations

import os
from contextlib import suppress

from mirrord.drivers.zfs.dataset import locking, mounting
from mirrord.drivers.zfs.dataset.place import Place
from mirrord.drivers.zfs.snapshots import listing
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing

_UNCERTAIN = "\t+"

#: For each stored file that this process has read: its identity, its first line, its entries.
#: Parsing thousands of lines each time would be the slowest part of an update.
_read: dict[str, tuple[tuple[int, int, int], str, list[Entry]]] = {}


def key_of(place: Place) -> str | None:
    """The key that a stored listing must have to be valid; None: it cannot be determined here."""
    volume = place.here
    folder = mounting.folder_of(volume)
    if volume is None or not folder or place.mark.kept or place.fresh is not None:
        return None
    try:
        changed_ns = os.stat(f"{folder}/.zfs/snapshot").st_mtime_ns
    except OSError:
        return None
    return f"{volume.name}\t{volume.guid}\t{changed_ns}"


def load(place: Place, *, certain: bool = False) -> list[Entry] | None:
    """The stored listing, if it is still valid. certain: including the snapshots of others."""
    key = key_of(place)
    if key is None:
        return None
    try:
        first, entries = _kept(place.location)
    except (OSError, ValueError):
        return None
    if first != key and (certain or first != key + _UNCERTAIN):
        return None
    return list(entries)


def _which(file: os.stat_result) -> tuple[int, int, int]:
    return file.st_ino, file.st_mtime_ns, file.st_size


def _kept(location: str) -> tuple[str, list[Entry]]:
    """The first line and the entries of the stored listing; raises `OSError`, `ValueError`. A file
    is replaced, never changed, so the same file has the same content.
    """
    with locking.lock_file(location, "snapshots").open(encoding="utf-8") as opened:
        which = _which(os.fstat(opened.fileno()))
        known = _read.get(location)
        if known is not None and known[0] == which:
            return known[1], known[2]
        first, _, lines = opened.read().partition("\n")
    entries = listing.parse(lines)
    _read[location] = which, first, entries
    return first, entries


def save(place: Place, found: Listing, before: str | None, *, certain: bool = True) -> None:
    """Store a listing that was read while the key was `before`; a failure is ignored."""
    key = key_of(place)
    if key is None or key != before:
        return
    path = locking.lock_file(place.location, "snapshots")
    beside = path.with_suffix(f".{os.getpid()}.new")
    text = "".join(f"{one.line()}\n" for one in found.entries)
    first = f"{key}{'' if certain else _UNCERTAIN}"
    with suppress(OSError):
        beside.write_text(f"{first}\n{text}")
        which = _which(beside.stat())
        os.replace(beside, path)
        # (The writer need not read it again.)
        _read[place.location] = which, first, [listing.reread(one) for one in found.entries]


def drop(location: str) -> None:
    """Remove the stored listing: an operation failed, or it lacks a change that does not change the
    key.
    """
    with suppress(OSError):
        locking.lock_file(location, "snapshots").unlink()


class Change:
    """An operation that changes the snapshots: the change is applied to the stored listing, if that
    was valid before.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._before = load(place)

    def done(self, *, added: Entry | None = None, gone: str = "") -> None:
        """Store the previous listing with this change."""
        if self._before is None:
            # A listing read meanwhile may have the new snapshot without its mark.
            drop(self._place.location)
            return
        entries = [one for one in self._before if one.guid != gone]
        if added is not None:
            entries = [one for one in entries if one.full != added.full] + [added]
        found = listing.made(self._place.location, entries, None)
        save(self._place, found, key_of(self._place), certain=False)
