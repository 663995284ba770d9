"""Committing what was received for a tree: the members' ENDs together, the root's last.

| found | what a repeated commit does |
|---|---|
| some members are committed, the others wait | commits the others |
| all but the root, some not in their places | arranges, commits the root |
| the root too | arranges, mounts, removes the record |

Until the root has its snapshot the tree shows the previous one, by its guid; a mounted file system
shows its own newest, so for a moment the members differ (`TreeDriver.facts` has a note of that).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mirrord.core.model import Snapshot
from mirrord.drivers.refusals import staging_missing, stream_damaged
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, transfer_record
from mirrord.drivers.zfs.dataset.marks import SnapshotMark
from mirrord.drivers.zfs.dataset.place import look
from mirrord.drivers.zfs.driver import ZfsDriver
from mirrord.drivers.zfs.receive import held_receive
from mirrord.drivers.zfs.snapshots import programs
from mirrord.drivers.zfs.snapshots.listing import Entry
from mirrord.drivers.zfs.tree import arrange, layout, operation_record
from mirrord.drivers.zfs.tree.layout import Tree
from mirrord.drivers.zfs.tree.operation_record import Transfer
from mirrord.drivers.zfs.tree.receiver import location_of
from mirrord.system import steps

_THREADS = 16
#: Snapshots in one command.
_AT_ONCE = 200


def commit(root: ZfsDriver, begun: Transfer, *, show: bool, where: str) -> Snapshot:
    """See `Driver.commit`."""
    request = begun.request
    tree = layout.load(root.location, where, beside=True)
    locations = {one.guid: location_of(tree, one) for one in begun.manifest.members}
    for guid, location in locations.items():
        there = location is not None and _has(tree, location, guid)
        if not there and held_receive.kept(str(location), request.transfer_id) is None:
            raise staging_missing(where, request.transfer_id)
    first = root.location not in tree.datasets
    waiting = [
        str(location)
        for guid, location in locations.items()
        if location != root.location and not _has(tree, str(location), guid)
    ]
    _clear(tree, begun, where)
    _end(waiting, where)
    tree = layout.load(root.location, where, beside=True)
    for one in begun.manifest.members[1:]:
        location = locations[one.guid]
        if location is None or not _has(tree, location, one.guid):
            raise stream_damaged(where, f"it created no snapshot with the guid {one.guid}")
    _mark(tree, begun, where)
    if not first:
        _arrange(tree, begun, where)
    done = root.commit(request.transfer_id, show=show)
    if first:
        _arrange(layout.load(root.location, where, beside=True), begun, where)
    arrange.mount(layout.load(root.location, where))
    for location in locations.values():
        transfer_record.remove("ZFS:TREE:COMMITTED", str(location))
    operation_record.end("ZFS:TREE:DONE", root.location)
    return done


def _clear(tree: Tree, begun: Transfer, where: str) -> None:
    """Unmount what is going to be renamed. After the END of a parent the directories that are
    mountpoints are replaced, and the kernel keeps the old ones while something is mounted there.
    """
    members = {location_of(tree, one): one.path for one in begun.manifest.members}
    mirror_id = begun.request.mirror_id
    for name in tree.inside()[1:]:
        stays = members.get(name) == tree.path(name)
        if not stays and (name in members or is_ours(tree, name, mirror_id)):
            arrange.unmount(tree, name, where)


def _has(tree: Tree, location: str, guid: str) -> bool:
    listed = tree.listings.get(location)
    return listed is not None and listed.find(guid) is not None


def _end(locations: list[str], where: str) -> None:
    """Pass the END records to all: each waits for the pool, and so they wait together."""

    def finish(location: str) -> None:
        held = held_receive.kept(location)
        if held is None:
            raise staging_missing(where, location)
        try:
            held.finish()
        finally:
            held_receive.drop(location)

    for _location in locations:
        steps.reached("ZFS:TREE:END")
    if locations:
        with ThreadPoolExecutor(min(len(locations), _THREADS)) as pool:
            list(pool.map(finish, locations))


def _mark(tree: Tree, begun: Transfer, where: str) -> None:
    """Mark and hold the snapshots of the members."""
    request = begun.request
    entries = [
        one
        for member in begun.manifest.members[1:]
        for name in tree.datasets
        for one in tree.own(name)
        if one.guid == member.guid
    ]
    snapshot = request.snapshot
    mark = SnapshotMark(snapshot.kind, request.transfer_id, snapshot.taken_at_ns)
    for some in batches([one.full for one in entries if not one.marked]):
        steps.reached("ZFS:TREE:MARK")
        if not programs.mark_all(some, mark):
            command.run(["zfs", "set", f"{marks.SNAPSHOT}={mark.text()}", *some], where)
    hold([one for one in entries if not one.holds], where)


def hold(entries: Iterable[Entry], where: str) -> None:
    """Hold snapshots that mirrord needs."""
    for some in batches([one.full for one in entries]):
        words = ["zfs", "hold", marks.HOLD, *some]
        command.lenient("ZFS:TREE:HOLD", words, where, "tag already exists")


def batches(every: list[str]) -> Iterator[list[str]]:
    """The names in groups that fit into one command."""
    for start in range(0, len(every), _AT_ONCE):
        yield every[start : start + _AT_ONCE]


def _arrange(tree: Tree, begun: Transfer, where: str) -> None:
    mirror_id = begun.request.mirror_id
    paths = {one.guid: one.path for one in begun.manifest.members}
    ours = [name for name in tree.inside() if name != tree.root and is_ours(tree, name, mirror_id)]
    if tree.root in tree.datasets and tree.holder(begun.manifest.members[0].guid) is None:
        del paths[begun.manifest.members[0].guid]  # the root is committed last
        paths = {guid: path for guid, path in paths.items() if path}
    arrange.arrange(tree, paths, ours, where)


def is_ours(tree: Tree, name: str, mirror_id: str) -> bool:
    """Whether a dataset at the destination was received for the mirror."""
    mark = tree.datasets[name].mark
    return mark is not None and mark.role == "mirror" and mark.mirror_id == mirror_id


def discard(root: ZfsDriver, begun: Transfer, where: str) -> None:
    """Remove what a transfer left. A committed member is rolled back to what the tree shows: its
    snapshot was never shown as part of the tree.
    """
    request = begun.request
    tree = layout.load(root.location, where, beside=True)
    for one in begun.manifest.members:
        location = location_of(tree, one)
        if location is not None:
            held_receive.drop(location)
    tree = layout.load(root.location, where, beside=True)
    if tree.holder(request.snapshot.guid) is None:
        for one in reversed(begun.manifest.members):  # children first
            location = location_of(tree, one)
            if location is not None and location in tree.datasets:
                _undo(tree, location, one.guid, one.base, request.transfer_id, where)
    for one in begun.manifest.members:
        transfer_record.remove("ZFS:TREE:DISCARDED", str(location_of(tree, one)))
    operation_record.end("ZFS:TREE:DISCARD", root.location)


def _undo(
    tree: Tree, location: str, guid: str, base: str | None, transfer_id: str, where: str
) -> None:
    lock, _waited = held_receive.receive_lock(location, where)
    try:
        there = look(location, where).here or tree.datasets[location]
        if there.token:
            command.effect("ZFS:TREE:ABORT", ["zfs", "recv", "-A", location], where)
        elif there.get("inconsistent") == "1":
            command.effect("ZFS:TREE:ABORT", ["zfs", "destroy", location], where)
    finally:
        os.close(lock)
    there, own = tree.datasets[location], tree.own(location)
    received = [one for one in own if one.guid == guid and one.mark is not None]
    if base is not None and own and own[-1].guid == base and there.get("readonly") == "on":
        if there.get("written") not in ("", "0"):  # an earlier attempt ended before it
            command.effect("ZFS:TREE:BACK", ["zfs", "rollback", own[-1].full], where)
        return
    if not received or received[0].mark is None or received[0].mark.transfer != transfer_id:
        return
    if base is None and own != received:
        return  # another program has taken a snapshot of it: it is kept
    if base is not None and (own[-1].guid != guid or len(own) < 2 or own[-2].guid != base):
        return  # the next transfer goes back by a clone, and keeps this dataset
    words = ["zfs", "release", marks.HOLD, received[0].full]
    command.lenient("ZFS:TREE:BACK", words, where, "no such tag")
    command.effect("ZFS:TREE:BACK", ["zfs", "destroy", received[0].full], where)
    if base is None:
        command.effect("ZFS:TREE:BACK", ["zfs", "destroy", location], where)
        return
    command.effect("ZFS:TREE:BACK", ["zfs", "rollback", own[-2].full], where)
