"""The difference between two snapshots, or between a snapshot and the live volume."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mirrord.core.model import BlockStates, Divergence, FileChange
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, mounting, names
from mirrord.drivers.zfs.dataset.place import Dataset, parse
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing
from mirrord.system import files

_WORDS = {"+": "added", "-": "deleted", "M": "modified", "R": "renamed"}
#: The unit of the pool's accounting.
SECTOR_BYTES = 512
_ESCAPED = re.compile(rb"\\0([0-7]{3})")


def sync(volumes: Sequence[Dataset], where: str) -> None:
    """Write all user data to the pool, including what is still in memory, so that it is counted."""
    for volume in volumes:
        folder = mounting.folder_of(volume)
        if folder:  # (not suppressed: without permission, data may still be in memory)
            files.sync_filesystem("ZFS:CHANGED:SYNC", folder)
        else:
            mounting.flush("ZFS:CHANGED:SYNC", volume)
    for pool in {names.pool_of(volume.name) for volume in volumes}:
        command.run(["zpool", "sync", pool], where)


def changed(volume: Dataset, base: Entry, where: str) -> bool | None:
    """Whether a live volume may differ from its snapshot, when both are still as last seen; None
    when they are not.
    """
    if base.dataset != volume.name:
        return None
    sync([volume], where)
    since = f"written@{base.name}"
    asked = f"type,guid,mounted,mountpoint,{since},{marks.MARK}"
    words = ["zfs", "get", "-Hp", "-o", "name,property,value,source", asked]
    done = command.result([*words, volume.name, base.full])
    now = parse(done.output)
    here, there = now.get(volume.name), now.get(base.full)
    if done.status != 0 or here is None or there is None:
        return None
    same = all(here.get(name) == volume.get(name) for name in ("guid", "mounted", "mountpoint"))
    mark = here.mark
    live = mark is None or mark.role in ("", "live")
    if not same or not live or there.guid != base.guid or not here.get(since).isdigit():
        return None
    return here.get(since) != "0"


def written(volume: str, base: Entry, where: str) -> int:
    """Bytes in the volume (or snapshot) `volume` that were written since `base`."""
    name = f"@{base.name}" if volume.partition("@")[0] == base.dataset else f"@{base.full}"
    if base.bookmark:
        name = f"#{base.name}"
    asked = ["zfs", "get", "-Hp", "-o", "value", f"written{name}", volume]
    return int(command.run(asked, where).strip())


def differs(volume: str, base: Entry) -> bool:
    """Whether files of the file system `volume` differ from those of its snapshot. For a `written`
    other than 0: mounting after O_SYNC writes clears the intent log, which also counts as written.
    What cannot be compared differs.
    """
    done = command.result(["zfs", "diff", "-H", base.full, volume])
    return done.status != 0 or done.output.strip() != ""


class Accounts(NamedTuple):
    """Bytes on disk by the pool's accounting: of both snapshots, and those only in the newer."""

    base: int
    newer: int
    added: int

    def states(self, total: int) -> BlockStates:
        """The four states (FAST'02, 3.2.2), in sectors (stream/survey.py). total: bytes that
        the pool can hold.
        """
        unchanged = max(0, self.newer - self.added)
        deleted = max(0, self.base - unchanged)
        return BlockStates(
            unused=max(0, total - unchanged - deleted - self.added) // SECTOR_BYTES,
            unchanged=unchanged // SECTOR_BYTES,
            deleted=deleted // SECTOR_BYTES,
            added=self.added // SECTOR_BYTES,
        )


def accounts(older: Entry | None, newer: Entry, where: str) -> Accounts | None:
    """The accounts of both, with a check of their guids: None when they have changed. When `older`
    was taken after `newer`, deleted and added are swapped.
    """
    if older is None:
        words = ["zfs", "get", "-Hp", "-o", "value", "guid,referenced", newer.full]
        done = command.result(words)
        if done.status != 0:
            return None
        guid, referenced = map(int, done.output.split())
        return Accounts(0, referenced, referenced) if str(guid) == newer.guid else None
    if older.bookmark:  # the size of the snapshot is no longer known
        words = ["zfs", "get", "-Hp", "-o", "value", f"referenced,written#{older.name}", newer.full]
        referenced, added = map(int, command.run(words, where).split())
        return Accounts(referenced - added, referenced, added)
    first, last = (older, newer) if older.order <= newer.order else (newer, older)
    since = f"written@{first.name if first.dataset == last.dataset else first.full}"
    words = ["zfs", "get", "-Hp", "-o", "name,property,value", f"guid,referenced,{since}"]
    done = command.result([*words, first.full, last.full])
    if done.status != 0:
        return None
    said: dict[tuple[str, str], int] = {}
    for line in done.output.splitlines():
        name, key, value = line.split("\t")
        said[name, key] = int(value) if value.isdigit() else 0
    if any(str(said[one.full, "guid"]) != one.guid for one in (first, last)):
        return None
    before, after = said[first.full, "referenced"], said[last.full, "referenced"]
    added = said.get((last.full, since), 0) if first != last else 0
    if first is older:
        return Accounts(before, after, added)
    return Accounts(after, before, max(0, before - max(0, after - added)))


def files_changed(base: Entry, newer: str, folder: str, where: str) -> tuple[FileChange, ...]:
    """The files that differ, by `zfs diff`. folder: where the dataset is mounted."""
    said = command.run(["zfs", "diff", "-H", "-F", base.full, newer], where)
    found = []
    for line in said.splitlines():
        fields = line.split("\t")
        if len(fields) < 3 or (fields[0] == "M" and fields[1] == "/"):
            continue  # a modified directory: its entries are listed
        path = _plain(fields[-1])
        inside = path.removeprefix(folder.rstrip("/") + "/")
        found.append(FileChange(inside, _WORDS.get(fields[0], "metadata")))
    return tuple(found)


def _plain(path: str) -> str:
    """Decode a path of `zfs diff`: all but plain ASCII is escaped as \\0 and three octal digits."""
    data = _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 255]), path.encode())
    return data.decode(errors="surrogateescape")


def divergence(
    volume: Dataset, found: Listing, start: Entry, *, limit: int, where: str
) -> Divergence:
    """See `Driver.divergence`."""
    newer = tuple(
        one.name for one in found.own() if one.order > start.order and one.mark is not None
    )
    sync([volume], where)
    changed = written(volume.name, start, where)
    if changed == 0:
        return Divergence(start.guid, 0, (), 0, newer)
    folder = mounting.folder_of(volume)
    if not folder:
        block = int(volume.get("volblocksize") or 4096)
        return Divergence(start.guid, changed, None, -(-changed // block), newer)
    changes: Sequence[FileChange] = files_changed(start, volume.name, folder, where)
    return Divergence(start.guid, changed, tuple(changes[:limit]), max(1, len(changes)), newer)
