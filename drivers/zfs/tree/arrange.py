"""Renaming the datasets of a tree (renames.py plans that), and mounting them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, mounting, mountpoint
from mirrord.drivers.zfs.dataset.marks import Mark
from mirrord.drivers.zfs.failover import failover
from mirrord.drivers.zfs.snapshots import deleting, listing
from mirrord.drivers.zfs.tree import layout, renames
from mirrord.drivers.zfs.tree.layout import Tree
from mirrord.drivers.zfs.tree.renames import Move, Wanted


def arrange(tree: Tree, paths: Mapping[str, str], ours: Collection[str], where: str) -> list[Move]:
    """Rename each member to its path; a dataset without one is set aside, with its snapshots.

    paths: by the guids of the members' snapshots. ours: names of the datasets that may be set
    aside. Returns the renames.
    """
    holders = {guid: tree.holder(guid) for guid in paths}
    wanted = {
        tree.datasets[name].guid: paths[guid] for guid, name in holders.items() if name is not None
    }
    snapshots = {tree.datasets[name].guid: guid for guid, name in holders.items() if name}
    here = {name: each.guid for name, each in tree.datasets.items()}
    may = {tree.datasets[name].guid for name in ours}
    waits = partial(_waiting, tree.root, snapshots)
    moves = renames.plan(tree.root, here, Wanted(wanted, may, waits))
    for each in moves:
        _move(tree, each, where)
        tree = layout.load(tree.root, where, beside=True)
        if each.aside:
            _set_aside(tree, each, where)
    for name in sorted(tree.beside()):
        if any(each.aside and f"{name}/".startswith(f"{each.new}/") for each in moves):
            mounting.mount("ZFS:TREE:SHOW", tree.datasets[name])
    return moves


def _waiting(root: str, snapshots: Mapping[str, str], guid: str) -> str:
    return layout.waiting(root, snapshots[guid])


def _move(tree: Tree, move: Move, where: str) -> None:
    """One rename. It includes the descendants, and none of them may be mounted during it."""
    unmount(tree, move.old, where)
    label = "ZFS:TREE:ASIDE" if move.aside else "ZFS:TREE:RENAME"
    failover.rename(label, tree.datasets[move.old], move.new, where)


def _set_aside(tree: Tree, move: Move, where: str) -> None:
    """Mark what was set aside with its original name, and release the holds of mirrord on it."""
    mark = Mark(role="kept", of=move.old)
    words = ["zfs", "set", f"{marks.MARK}={mark.text()}", move.new]
    command.effect("ZFS:TREE:KEPT", words, where)
    for name in [name for name in tree.datasets if f"{name}/".startswith(f"{move.new}/")]:
        if any(one.holds for one in tree.own(name)):
            deleting.release_all(listing.Listing(name, tuple(tree.own(name))), where)


def unmount(tree: Tree, top: str, where: str) -> None:
    """Unmount a dataset and its descendants; `Busy` when one is in use."""
    inside = [name for name in tree.datasets if f"{name}/".startswith(f"{top}/")]
    for name in sorted(inside, key=lambda name: -name.count("/")):
        mounting.unmount("ZFS:TREE:UNMOUNT", tree.datasets[name], where)


def mount(tree: Tree) -> None:
    """Mount the members that are not mounted, parents first."""
    for name in tree.mirrored():
        there = tree.datasets[name]
        mounting.mount("ZFS:TREE:MOUNT", there)
        if there.mountpoint:
            mountpoint.release(there.mountpoint)


def show_aside(tree: Tree) -> None:
    """Mount what was set aside beside the tree."""
    for name in sorted(tree.beside()):
        if not layout.is_waiting(name):
            mounting.mount("ZFS:TREE:SHOW", tree.datasets[name])
