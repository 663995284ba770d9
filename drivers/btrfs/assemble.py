"""Assembling a volume from its members' snapshots: each is placed inside the root's, at its path.

Nothing in a received snapshot is followed: a part of a path that is a symbolic link is refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mirrord.core.errors import Damaged, Diverged
from mirrord.core.text import escaped
from mirrord.drivers.btrfs import layout, nested, store, subvolume
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.system import files, steps


def shown_path(one: SnapshotEntry) -> Path | None:
    """The assembled, read-only tree of a snapshot; None when there is none."""
    path = one.folder / layout.TREE / one.folder.name
    return path if subvolume.is_subvolume(path) else None


def show(place: Layout, one: SnapshotEntry, where: str) -> None:
    """Assemble the read-only tree of a snapshot, if there is none. It appears in one step."""
    if shown_path(one) is not None:
        return
    folder = begun(place)
    tree = folder / layout.TREE / one.folder.name
    make(place, one, tree, where)
    for path in [*nested.find(tree).members, ""]:
        subvolume.set_read_only("BTRFS:NESTED:READONLY", tree / path)
    # A read-only subvolume cannot be renamed into another folder; a folder with one can.
    files.rename("BTRFS:NESTED:TREE", folder / layout.TREE, one.folder / layout.TREE)


def begun(place: Layout) -> Path:
    """A folder with an empty one in it, in which a tree is assembled."""
    folder = place.inner.store / "building"
    discard(folder)
    files.make_directory("BTRFS:NESTED:FOLDER", folder, mode=0o700)
    files.make_directory("BTRFS:NESTED:FOLDER", folder / layout.TREE)
    return folder


def make(place: Layout, one: SnapshotEntry, path: Path, where: str) -> None:
    """Make `path` a writable copy of a snapshot with all of its members."""
    sources = _sources(place, one, where)
    subvolume.snapshot("BTRFS:NESTED:ASSEMBLE", one.path, path, read_only=False)
    for inner, source in sources.items():
        _put(path, inner, source, where)
    files.sync_filesystem("BTRFS:NESTED:SYNC", path)


def _sources(place: Layout, one: SnapshotEntry, where: str) -> dict[str, Path]:
    """What is copied into each place of a nested subvolume, parents first. Where the list or a
    member is lost, that is what the assembled tree has there.
    """
    try:
        return {
            inner: entry.path
            for inner, (_member, entry) in nested.entries(place, one, where).items()
            if inner
        }
    except (Damaged, Diverged):
        tree = shown_path(one)
        if tree is None:
            raise
        shown = dict(subvolume.below_with_info(tree))
        if not all(info.read_only for info in (subvolume.info(tree), *shown.values())):
            raise
        return {inner: tree / inner for inner in sorted(shown, key=lambda path: path.split("/"))}


def _put(root: Path, inner: str, snapshot: Path, where: str) -> None:
    *above, name = inner.split("/")
    with _directory(root, above, inner, where) as folder:
        times = os.fstat(folder)
        try:
            os.rmdir(name, dir_fd=folder)  # where it was taken, an empty directory is in its place
        except FileNotFoundError:
            pass
        except OSError as error:
            why = f"something else is there ({error.strerror})"
            raise _no_place(inner, where, why) from error
        target = Path(f"/proc/self/fd/{folder}") / name
        subvolume.snapshot("BTRFS:NESTED:PLACE", snapshot, target, read_only=False)
        os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))


@contextlib.contextmanager
def _directory(root: Path, parts: list[str], inner: str, where: str) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(root, flags)
    try:
        for part in parts:
            try:
                below = os.open(part, flags, dir_fd=here)
            except OSError as error:
                raise _no_place(inner, where, f"'{escaped(part)}': {error.strerror}") from error
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _no_place(inner: str, where: str, why: str) -> Damaged:
    return Damaged(
        f"the nested subvolume '{escaped(inner)}' has no place in the volume",
        where=where,
        why=why,
        hint="Nothing was changed. The next update takes a new snapshot: run it again.",
    )


def remove(place: Layout, tree: Path) -> None:
    """Delete a folder with a tree, if there is one. It disappears in one step."""
    folder = place.inner.store / "building"
    discard(folder)
    if tree.is_dir():
        files.make_directory("BTRFS:NESTED:FOLDER", folder, mode=0o700)
        files.rename("BTRFS:NESTED:DROP", tree, folder / layout.TREE)
        discard(folder)


def discard(folder: Path) -> None:
    """Delete the folder of trees that are not complete, or no longer needed."""
    inside = folder / layout.TREE
    for path in files.paths_in(inside):
        if subvolume.is_subvolume(path):
            # (The kernel refuses to delete one that has another mirror's store in it.)
            subvolume.delete_all("BTRFS:NESTED:DISCARD", path, store.nested_names(path))
        else:
            files.remove_file("BTRFS:NESTED:DISCARD", path)
    for path in (inside, folder):
        files.remove_directory("BTRFS:NESTED:DISCARD", path)


def inner_parts(record: Path, volume: Path) -> list[str]:
    """The paths of the nested subvolumes that belong to a volume, by its record."""
    ours = {uuid for uuid, _last in layout.read_parts(record).values()}
    every = subvolume.below_with_info(volume) if ours else ()
    return [path for path, info in every if info.uuid in ours]


def delete_snapshot(place: Layout, one: SnapshotEntry, where: str) -> None:
    """Delete a snapshot of the store with its tree and its members; of what was set aside, with the
    nested subvolumes that belong to it.
    """
    steps.reached("BTRFS:NESTED:DELETE")
    parts = inner_parts(one.folder / layout.PARTS, one.path)
    store.demand_deletable(place, one, where, parts)
    remove(place, one.folder / layout.TREE)
    store.remove(place, one, parts)
    nested.sweep(place)
