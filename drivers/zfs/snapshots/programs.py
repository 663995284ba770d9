"""Channel programs (`zfs program`): several changes in one transaction group, by one command.

Each single change waits until the pool has written a transaction group; the changes of a program
are in one, and after a power failure either all of them exist or none. Only root may run programs:
for other users, and where a program fails, the same is done command by command, so that errors are
reported in the usual way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks
from mirrord.drivers.zfs.dataset.marks import SnapshotMark
from mirrord.drivers.zfs.dataset.place import Dataset
from mirrord.drivers.zfs.snapshots.listing import Entry
from mirrord.system import steps

_NANO = 1_000_000_000
#: The integers of a program are signed.
_WHOLE = (1 << 64) - 1

#: Takes a snapshot, marks it and creates its bookmark, if the volume is the expected one.
_TAKE = """
local words = (...)["argv"]
local volume, guid, name, mark = table.unpack(words)
local function get(of, what)
    local value, source = zfs.get_prop(of, what)
    return value, source
end
local same = "guid" .. tostring(get(volume, "guid")) == guid
for number = 5, #words, 2 do
    local now, source = get(volume, words[number])
    if source ~= volume then now = nil end
    same = same and (now or "") == words[number + 1]
end
if not same then return {refused = "another volume"} end
local before, full = get(volume, "prevsnap"), volume .. "@" .. name
local status = zfs.sync.snapshot(full)
if status ~= 0 then return {refused = "snapshot"} end
if zfs.sync.set_prop(full, "SNAPSHOT", mark) ~= 0 then
    zfs.sync.destroy(full)
    return {refused = "mark"}
end
zfs.sync.bookmark(full, volume .. "#" .. name)
local found = {
    guid = get(full, "guid"), order = get(full, "createtxg"), created = get(full, "creation"),
    written = get(full, "written"),
}
if before and before ~= "" then found.before = get(before, "guid") end
return found
""".replace("SNAPSHOT", marks.SNAPSHOT, 1)


#: Marks all snapshots that exist.
_MARK = """
local words, failed = (...)["argv"], 0
for number = 3, #words do
    if zfs.sync.set_prop(words[number], "SNAPSHOT", words[2]) ~= 0 then failed = failed + 1 end
end
return {failed = failed}
""".replace("SNAPSHOT", marks.SNAPSHOT, 1)

#: Destroys all snapshots that can be destroyed.
_DESTROY = """
local words, failed = (...)["argv"], 0
for number = 1, #words do
    if zfs.sync.destroy(words[number]) ~= 0 then failed = failed + 1 end
end
return {failed = failed}
"""


#: Creates a bookmark of the current state of each dataset, all in one transaction group.
_BOOKMARK = """
local words, failed = (...)["argv"], 0
for number = 3, #words do
    local full = words[number] .. "@" .. words[2]
    if zfs.sync.snapshot(full) ~= 0 then
        failed = failed + 1
    else
        local mark = words[number] .. "#" .. words[2]
        if zfs.sync.bookmark(full, mark) ~= 0 then failed = failed + 1 end
        zfs.sync.destroy(full)
    end
end
return {failed = failed}
"""


class Taken(NamedTuple):
    """A snapshot that was taken. before: guid of the previous one; "": it is the first; None: not
    known. written: bytes that were written between the two.
    """

    entry: Entry
    before: str | None
    written: int


def possible() -> bool:
    """Whether this user may run programs at all."""
    return os.geteuid() == 0


def take(
    volume: Dataset, name: str, mark: SnapshotMark, unchanged: Sequence[str] = ()
) -> Taken | None:
    """Take a snapshot, with mark and bookmark, of a volume that has not changed its identity, mark
    and other properties; None: nothing was done. A step with the name `ZFS:SNAPSHOT:TAKE`.
    """
    steps.reached("ZFS:SNAPSHOT:TAKE")
    seen = [(one, volume.local(one) or "") for one in (marks.MARK, *unchanged)]
    words = [_signed(volume.guid), name, mark.text(), *chain.from_iterable(seen)]
    said = _run(_TAKE, volume.name, *words)
    if said is None or "guid" not in said:
        return None
    entry = Entry(
        volume.name,
        name,
        _unsigned(said["guid"]),
        int(said["order"]),
        int(said["created"]) * _NANO,
        False,
        0,
        "",
        mark,
        marked=True,
    )
    before = _unsigned(said["before"]) if "before" in said else ""
    return Taken(entry, before, int(said["written"]))


def mark_all(snapshots: Sequence[str], mark: SnapshotMark) -> bool:
    """Mark several snapshots of a pool; False: some are not marked."""
    if not possible() or not snapshots:
        return not snapshots
    said = _run(_MARK, snapshots[0], mark.text(), *snapshots)
    return said is not None and said.get("failed") == 0


def bookmark_now(datasets: Sequence[str], name: str) -> bool:
    """Create a bookmark of the current state of each dataset; False: not all have one. A step with
    the name `ZFS:MARK:SNAPSHOT`.
    """
    if not possible():
        return False
    steps.reached("ZFS:MARK:SNAPSHOT")
    said = _run(_BOOKMARK, datasets[0], name, *datasets)
    return said is not None and said.get("failed") == 0


def destroy_all(snapshots: Sequence[str]) -> bool:
    """Destroy several snapshots of a pool that are not needed; False: some may be left."""
    if not possible() or not snapshots:
        return not snapshots
    said = _run(_DESTROY, snapshots[0], *snapshots[1:])
    return said is not None and said.get("failed") == 0


def _run(program: str, dataset: str, *words: str) -> dict[str, Any] | None:
    pool = dataset.partition("/")[0]
    asked = ["zfs", "program", "-j", pool, "-", dataset, *words]
    done = command.result(asked, given=program.encode())
    if done.status != 0:
        return None
    try:
        found = json.loads(done.output)["return"]
    except (ValueError, KeyError):
        return None
    return found if isinstance(found, dict) else None


def _signed(guid: str) -> str:
    number = int(guid)
    return f"guid{number - (1 << 64) if number >> 63 else number}"  # (does not look like an option)


def _unsigned(number: Any) -> str:
    return str(int(number) & _WHOLE)
