"""Undoing the rollback of a tree, which may be partial or complete (`Driver.reinstate`).

Before a rollback renames anything, the tree is recorded: its datasets by guid, with their paths and
marks. The datasets are then renamed back to these paths.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from mirrord.core.errors import NotFound, Refused
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, mounting, transfer_record
from mirrord.drivers.zfs.failover import failover, freezing
from mirrord.drivers.zfs.tree import arrange, layout, operation_record, renames
from mirrord.drivers.zfs.tree.layout import Tree
from mirrord.drivers.zfs.tree.renames import Wanted

_USE = "tree-before"


class Before(NamedTuple):
    """name: under which the rollback keeps it. datasets: path and mark (or None) by guid."""

    name: str
    datasets: dict[str, tuple[str, str | None]]


def remember(tree: Tree, keep_as: str) -> None:
    """Record a live tree before it is rolled back."""
    found = {
        tree.datasets[name].guid: (tree.path(name), tree.datasets[name].local(marks.MARK))
        for name in tree.inside()
    }
    text = json.dumps([keep_as, found])
    transfer_record.store("ZFS:TREE:REMEMBER", tree.root, text, _USE)


def _remembered(root: str, keep_as: str) -> Before | None:
    try:
        name, found = json.loads(transfer_record.file_of(root, _USE).read_text())
        before = Before(name, {guid: (path, mark) for guid, (path, mark) in found.items()})
    except (OSError, TypeError, ValueError):
        return None
    return before if before.name == keep_as else None


def reinstate(root: str, keep_as: str, where: str, *, live: bool) -> None:
    """Restore the tree as it was before that rollback; the clones that took its place are
    destroyed. live: the root is LIVE.
    """
    before = _remembered(root, keep_as)
    tree = layout.load(root, where, beside=True)
    if before is None and not live:
        raise NotFound("nothing is set aside under that name", where=where, why=keep_as)
    if before is None:  # at most it was frozen
        _as_it_was(tree, Before(keep_as, {}), where)
        return
    here = {name: each.guid for name, each in tree.datasets.items()}
    lost = [path for guid, (path, _mark) in before.datasets.items() if guid not in here.values()]
    if lost:
        raise Refused(
            "a dataset that was set aside no longer exists",
            where=where,
            why=", ".join(lost) or root,
            hint="Nothing was changed. 'zfs list -r' shows the datasets that exist.",
        )
    places = {guid: path for guid, (path, _mark) in before.datasets.items()}
    clones = [guid for guid in here.values() if guid not in places and _is_clone(tree, guid)]
    wanted = Wanted(places, clones, lambda guid: layout.waiting(root, guid))
    moves = renames.plan(root, here, wanted)
    if moves:
        for name in reversed(tree.inside()):
            mounting.clear(tree.datasets[name], where, force=True)
    _take_back(tree, before, where)
    for move in moves:
        tree = layout.load(root, where, beside=True)
        arrange.unmount(tree, move.old, where)
        failover.rename("ZFS:REINSTATE:RENAME", tree.datasets[move.old], move.new, where)
    tree = layout.load(root, where, beside=True)
    for name in sorted(tree.beside(), reverse=True):
        if tree.datasets[name].guid in clones and not tree.own(name):
            arrange.unmount(tree, name, where)
            # (One that has children is kept, read-only.)
            command.lenient("ZFS:REINSTATE:CLONE", ["zfs", "destroy", name], where, "has children")
    _as_it_was(layout.load(root, where, beside=True), before, where)
    operation_record.end("ZFS:REINSTATE:DONE", root)


def _is_clone(tree: Tree, guid: str) -> bool:
    """Whether a rollback created it: it is marked as a mirror, and was not written to."""
    [one] = [each for each in tree.datasets.values() if each.guid == guid]
    mark = one.mark
    return mark is not None and mark.role == "mirror" and one.get("written") in ("", "0")


def _take_back(tree: Tree, before: Before, where: str) -> None:
    """Give the older snapshots back to the old datasets."""
    for name, one in tree.datasets.items():
        origin = one.get("origin").partition("@")[0]
        there = tree.datasets.get(origin)
        if one.guid in before.datasets and there is not None and there.guid not in before.datasets:
            command.effect("ZFS:REINSTATE:PROMOTE", ["zfs", "promote", name], where)


def _as_it_was(tree: Tree, before: Before, where: str) -> None:
    for name in tree.inside():
        there = tree.datasets[name]
        if there.guid not in before.datasets:
            continue
        _path, mark = before.datasets[there.guid]
        if there.local(marks.MARK) != mark:
            words = ["inherit", marks.MARK] if mark is None else ["set", f"{marks.MARK}={mark}"]
            command.effect("ZFS:REINSTATE:MARK", ["zfs", *words, name], where)
    freezing.thaw(tree.inside(), where)
    tree = layout.load(tree.root, where)
    mounting.require_mounted("ZFS:REINSTATE:MOUNT", tree.datasets[tree.root], where)
    arrange.mount(tree)
