"""What was listed last, so that thousands of snapshots are not asked for at each update.

ZFS notes when the snapshots of a dataset changed, to the tick of the kernel's clock, and shows it
as the time of the folder `.zfs/snapshot`: as long as that is the same, so are the snapshots. The
listing is kept in a file beside the locks, where only who runs mirrord can write. What does not
count as a change there (holds, clones) is asked anew of a single snapshot before it matters.

What mirrord itself adds or deletes is put into the kept listing. In that moment somebody else may
have taken a snapshot of his own, which is then not in it until the next change: so such a listing
is good for mirrord's own snapshots, and not `certain`.
"""

from __future__ import annotations

import os
from contextlib import suppress

from mirrord.drivers.zfs import listing, locking, mounting
from mirrord.drivers.zfs.listing import Entry, Listing
from mirrord.drivers.zfs.place import Place

_UNCERTAIN = "\t+"

#: Of each kept file that this process has read: which one it was, its first line, its entries. To
#: take thousands of lines apart at each look costs more than all else in an update.
_read: dict[str, tuple[tuple[int, int, int], str, list[Entry]]] = {}


def key_of(place: Place) -> str | None:
    """What a kept listing must have been made at; None: it cannot be known here."""
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
    """What was kept, when it is still so. certain: with everybody's snapshots."""
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
    """The first line and the entries of what is kept; `OSError`, `ValueError`. A file is replaced,
    never changed, so the same file has the same content.
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
    """Keep a listing that was made while the key was `before`; a failure is no matter."""
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
        # (Who wrote it needs not read it again.)
        _read[place.location] = which, first, [listing.reread(one) for one in found.entries]


def drop(location: str) -> None:
    """Do not believe what is kept any more: what was done upon it failed, or it lacks something
    that does not count as a change there.
    """
    with suppress(OSError):
        locking.lock_file(location, "snapshots").unlink()


class Change:
    """Around something that changes the snapshots: what was kept goes on with the change, if it was
    true before.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._before = load(place)

    def done(self, *, added: Entry | None = None, gone: str = "") -> None:
        """Keep what was there with this change."""
        if self._before is None:
            # Who looked meanwhile may have kept the new one as it was before it got its mark.
            drop(self._place.location)
            return
        entries = [one for one in self._before if one.guid != gone]
        if added is not None:
            entries = [one for one in entries if one.full != added.full] + [added]
        entries.sort(key=lambda one: (one.order, one.bookmark))
        found = Listing(self._place.location, tuple(entries))
        save(self._place, found, key_of(self._place), certain=False)
