"""A writable copy of a tree: a clone of each member, in a separate tree (failover/copies.py)."""

from __future__ import annotations

from mirrord.core.errors import Refused
from mirrord.drivers import refusals
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import mounting
from mirrord.drivers.zfs.driver import ZfsDriver
from mirrord.drivers.zfs.failover import copies
from mirrord.drivers.zfs.tree import layout
from mirrord.drivers.zfs.tree.layout import Tree


def begin(tree: Tree, root: ZfsDriver, wanted: str, where: str) -> str:
    """See `Driver.begin_test`; returns the name of the copy's root."""
    place = tree.place(tree.root)
    noted = place.mark.copy
    if noted and wanted not in ("", noted):
        raise refusals.other_copy(where, noted)
    shown = root.facts().shown
    entry = tree.root_entry(shown) if shown else None
    if entry is None:
        raise refusals.nothing_shown(where)
    name = copies.check_place(tree.root, wanted or noted, where)
    there = layout.load(name, where)
    if not noted:
        if there.datasets:
            raise refusals.not_empty(where, f"there is a dataset {name}")
        copies.remember(place, name, where)
    members = tree.together(entry)
    for one in sorted(members, key=lambda one: (one.count("/"), one)):
        copy = name + one[len(tree.root) :]
        if copy not in there.datasets:  # an earlier attempt may have created some
            zvol = tree.datasets[one].is_zvol
            copies.clone(members[one].full, copy, one, zvol=zvol, where=where)
        else:
            mounting.mount("ZFS:COPY:MOUNT", there.datasets[copy])
    return name


def end(tree: Tree, where: str) -> bool:
    """See `Driver.end_test`."""
    place = tree.place(tree.root)
    name = place.mark.copy
    if not name:
        return False
    copy = layout.load(name, where)
    for one in reversed(copy.inside()):
        mark = copy.datasets[one].mark
        ours = mark is not None and mark.role == "copy"
        own = copy.own(one)
        if not ours or own:
            raise Refused(
                f"the copy has its own snapshots or descendants: {own[0].full if own else one}",
                where=where,
                hint="Destroy them first, or keep the copies: run 'zfs promote' for each.",
            )
    for one in reversed(copy.inside()):
        mounting.unmount("ZFS:COPY:UNMOUNT", copy.datasets[one], where)
        command.effect("ZFS:COPY:DESTROY", ["zfs", "destroy", one], where)
    copies.remember(place, "", where)
    return bool(copy.datasets)
