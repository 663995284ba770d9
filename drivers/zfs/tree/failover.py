"""Making a tree live, and rolling it back to a snapshot.

A rollback does for a tree what the package `failover` does for one dataset: the datasets that
differ from the snapshot are frozen and kept by one atomic DIVERGED snapshot; each of them is cloned
from its own snapshot beside the tree, and the clone is promoted, so that it has all older
snapshots; then the renames of arrange.py replace the members by the clones. The old datasets are
beside the tree.
The path of each member is recorded first, so that the same call completes the rest after a crash.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from mirrord.core.model import Divergence, FileChange, SnapshotKind
from mirrord.drivers.refusals import base_missing, demand_base
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, mounting, names, writers
from mirrord.drivers.zfs.dataset.marks import Mark, SnapshotMark
from mirrord.drivers.zfs.driver import ZfsDriver
from mirrord.drivers.zfs.failover import failover, freezing
from mirrord.drivers.zfs.snapshots import compare
from mirrord.drivers.zfs.snapshots.listing import Entry
from mirrord.drivers.zfs.tree import arrange, layout, operation_record
from mirrord.drivers.zfs.tree import reinstate as tree_reinstate
from mirrord.drivers.zfs.tree.layout import Tree
from mirrord.drivers.zfs.tree.operation_record import PendingRollback
from mirrord.drivers.zfs.volume import place_facts
from mirrord.system import clock


def promote(root: ZfsDriver, mirror_id: str, where: str) -> None:
    """Make all members writable, the root last: its role is that of the tree."""
    tree = layout.load(root.location, where)
    mine = [name for name in tree.mirrored() if name != root.location]
    members = [
        name
        for name in mine
        if place_facts.lost_mark(tree.datasets[name])
        or (
            (mark := tree.datasets[name].mark) is not None
            and mark.mirror_id == mirror_id
            and mark.role in ("mirror", "live")
        )
    ]
    mark = Mark(role="live", mirror_id=mirror_id)
    values = [f"{marks.MARK}={mark.text()}", "readonly=off"]
    if any(freezing.of(tree.datasets[name]) for name in members):
        values.append(f"{marks.FROZEN}={freezing.THAWED.text()}")
    systems, volumes = layout.filesystems(tree, members)
    for some, more in ((systems, ["canmount=on"]), (volumes, [])):
        if some:
            command.effect("ZFS:TREE:PROMOTE", ["zfs", "set", *values, *more, *some], where)
    root.promote()
    arrange.mount(layout.load(root.location, where))


def changed(tree: Tree, target: dict[str, Entry], where: str) -> list[str]:
    """The datasets of a tree that differ from its snapshot, including new ones."""
    mine = tree.mirrored()
    compare.sync([tree.datasets[name] for name in mine], where)
    found = []
    for name in mine:
        one = target.get(name)
        if one is None or tree.own(name)[-1].guid != one.guid or compare.written(name, one, where):
            found.append(name)
    return found


def roll_back(
    tree: Tree, guid: str, *, mirror_id: str, keep_as: str | None, live: bool, where: str
) -> str | None:
    """Roll the tree back to its snapshot `guid`, as a MIRROR. live: it was LIVE. Returns the name
    of the DIVERGED snapshot by which the old state is kept; None: nothing is kept.
    """
    begun = operation_record.rollback(tree.root)
    if begun is None or begun.guid != guid:
        entry = tree.root_entry(guid)
        if entry is None or entry.dataset != tree.root:
            raise base_missing(where, guid)
        target = {
            name: one
            for name, one in tree.together(entry).items()
            if layout.is_inside(tree.root, name)
        }
        paths = {one.guid: tree.path(name) for name, one in target.items()}
        tree = _frozen(tree, where)
        writing = _writing(tree)
        begun = PendingRollback(guid, mirror_id, live, paths, writing)
        _unmount(tree, changed(tree, target, where), where, force=bool(writing))
        if live and keep_as is not None:
            tree_reinstate.remember(tree, keep_as)
        operation_record.begin_rollback(tree.root, begun)
        tree = layout.load(tree.root, where, beside=True)
    return finish(tree, begun, keep_as, where)


def _frozen(tree: Tree, where: str) -> Tree:
    """Freeze the members. Only then it can be determined whether they have changed."""
    freezing.for_rollback([tree.datasets[name] for name in tree.mirrored()], where)
    return layout.load(tree.root, where, beside=True)


def _writing(tree: Tree) -> tuple[str, ...]:
    members = [tree.datasets[name] for name in tree.mirrored()]
    if not writers.of(members, 1):
        return ()
    return tuple(one.guid for one in members if writers.of([one], 1))


def finish(tree: Tree, begun: PendingRollback, keep_as: str | None, where: str) -> str | None:
    """Finish a rollback."""
    kept = None
    if tree.root in tree.datasets:
        target = {
            name: one for name in tree.inside() for one in tree.own(name) if one.guid in begun.paths
        }
        tree = _frozen(tree, where)
        different = changed(tree, target, where)
        different += [
            name
            for name in tree.mirrored()
            if tree.datasets[name].guid in begun.writing and name not in different
        ]
        if different:
            kept, tree = _kept_and_cloned(tree, begun, target, different, keep_as, where)
    _adopt(tree, begun, where)
    ours = [
        name
        for name in tree.inside()
        if begun.live or ((mark := tree.datasets[name].mark) and mark.role == "mirror")
    ]
    arrange.arrange(tree, begun.paths, ours, where)
    tree = layout.load(tree.root, where, beside=True)
    if begun.live:
        mounting.require_mounted("ZFS:TREE:MOUNT", tree.datasets[tree.root], where)
    arrange.mount(tree)
    arrange.show_aside(tree)  # also what an earlier attempt has renamed
    operation_record.end("ZFS:TREE:TURNED", tree.root)
    return kept


def _kept_and_cloned(
    tree: Tree,
    begun: PendingRollback,
    target: dict[str, Entry],
    different: Sequence[str],
    keep_as: str | None,
    where: str,
) -> tuple[str | None, Tree]:
    turned = [tree.root, *(name for name in different if name != tree.root)]
    kept = _keep(tree, turned, keep_as, where) if keep_as is not None else None
    old = tree.datasets[tree.root].mark or Mark()
    aside = names.set_aside(tree.root, tree.datasets[tree.root].guid)
    for name in turned:
        one = target.get(name)
        if one is None:
            continue  # not in the snapshot: it is set aside without a clone
        beside = layout.waiting(tree.root, one.guid)
        waits = tree.datasets.get(beside)
        if waits is None:
            mark = Mark(role="mirror", mirror_id=begun.mirror_id)
            if name == tree.root:
                others = tuple(dict.fromkeys((*old.kept, aside)))
                mark = mark._replace(pin=begun.guid, kept=others, copy=old.copy)
            pairs = failover.copied(tree.datasets[name], mark, where)
            words = [word for pair in pairs for word in ("-o", pair)]
            command.effect("ZFS:TREE:CLONE", ["zfs", "clone", *words, one.full, beside], where)
        if waits is None or waits.get("origin"):
            command.effect("ZFS:TREE:TAKE", ["zfs", "promote", beside], where)
    return kept, layout.load(tree.root, where, beside=True)


def _keep(tree: Tree, turned: Sequence[str], keep_as: str, where: str) -> str:
    """Keep what differs by one atomic snapshot, unless an earlier attempt has taken that."""
    for number in itertools.count(1):
        name = names.check_snapshot(keep_as if number == 1 else f"{keep_as}_{number}", where)
        there = [
            (dataset, one) for dataset in turned for one in tree.own(dataset) if one.name == name
        ]
        if not there:
            break
        same = all(
            one.mark is not None
            and one.mark.kind is SnapshotKind.DIVERGED
            and compare.written(dataset, one, where) == 0
            for dataset, one in there
        )
        if same and len(there) == len(turned):
            return name
    mark = SnapshotMark(SnapshotKind.DIVERGED, "", clock.now_ns())
    words = [f"{marks.SNAPSHOT}={mark.text()}", *(f"{dataset}@{name}" for dataset in turned)]
    command.effect("ZFS:TREE:KEEP", ["zfs", "snapshot", "-o", *words], where)
    return name


def _adopt(tree: Tree, begun: PendingRollback, where: str) -> None:
    """Mark the unchanged members as those of the mirror, like the clones."""
    plain = Mark(role="mirror", mirror_id=begun.mirror_id)
    members = []
    for guid in begun.paths:
        name = tree.holder(guid)
        if name is None or layout.is_waiting(name):
            continue
        mark = tree.datasets[name].mark
        if guid == begun.guid:
            wanted = plain._replace(
                pin=guid, kept=mark.kept if mark else (), copy=mark.copy if mark else ""
            )
            if mark != wanted:
                words = ["zfs", "set", f"{marks.MARK}={wanted.text()}", name]
                command.effect("ZFS:TREE:ADOPT", words, where)
        elif mark != plain:
            members.append(name)
    if members:
        words = ["zfs", "set", f"{marks.MARK}={plain.text()}", *members]
        command.effect("ZFS:TREE:ADOPT", words, where)


def _unmount(tree: Tree, members: Collection[str], where: str, *, force: bool) -> None:
    """Unmount the tree before members are renamed: `Busy` when it is in use; then it is thawed and
    mounted again. force: see `mounting.clear`.
    """
    if not members and not force:
        return
    try:
        for name in reversed(tree.inside()):
            mounting.clear(tree.datasets[name], where, force=force)
    except BaseException:
        freezing.thaw(tree.mirrored(), where)
        arrange.mount(layout.load(tree.root, where))
        raise


def divergence(tree: Tree, guid: str, *, limit: int, where: str) -> Divergence:
    """See `Driver.divergence`: the sum over the members."""
    entry = demand_base(tree.root_entry(guid), where, guid)
    target, bytes_, total, newer = tree.together(entry), 0, 0, list[str]()
    changes: list[FileChange] = []
    for name in tree.mirrored():
        one = target.get(name)
        if one is None:
            bytes_ += int(tree.datasets[name].get("used") or 0)
            changes.append(FileChange(f"{tree.path(name)}/", "added"))
            total += 1
            continue
        found = compare.divergence(
            tree.datasets[name], tree.listings[name], one, limit=limit, where=where
        )
        bytes_, total = bytes_ + found.changed_bytes, total + found.total_changes
        inner = tree.path(name)
        for each in found.changes or ():
            path = f"{inner}/{each.path}" if inner else each.path
            changes.append(each._replace(path=path))
        newer += [other for other in found.newer_snapshots if other not in newer]
    return Divergence(guid, bytes_, tuple(changes[:limit]), total, tuple(newer))
