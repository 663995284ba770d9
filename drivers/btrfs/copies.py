"""The writable copy of what a destination shows, for testing: a snapshot next to the view.

`copy.json` in the store records its path and its snapshot. It is written before the copy is
created, so that what a crash leaves can be found.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from mirrord.core.errors import Refused
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import layout, store, subvolume
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.system import files


def snapshot(shown: SnapshotEntry, path: Path) -> None:
    """Make the copy of a single subvolume."""
    subvolume.snapshot("BTRFS:COPY:SNAPSHOT", shown.path, path, read_only=False)


def begin(
    place: Layout,
    wanted: str,
    where: str,
    make: Callable[[SnapshotEntry, Path], None] = snapshot,
) -> Path:
    """See `Driver.begin_test`; returns the copy's path. make: makes it, in one step."""
    there = find(place)
    if there is not None and wanted in ("", str(there)):
        return there
    if there is not None:
        raise refusals.other_copy(where, str(there))
    shown = store.shown(place)
    if shown is None:
        raise refusals.nothing_shown(where)
    path = Path(wanted) if wanted else place.view.with_name(f"{place.view.name}-test")
    if os.path.lexists(path):
        raise refusals.not_empty(str(path), "it already exists")
    if not path.parent.is_dir():
        raise refusals.parent_missing("the copy", str(path), str(path.parent))
    layout.write_copy("BTRFS:COPY:RECORD", place, str(path), shown.info.uuid)
    try:
        make(shown, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise Refused(
            "the copy must be on the destination's file system",
            where=str(path),
            why="it shares its blocks with the destination",
            hint="Give a path on that file system with --at, or omit --at.",
        ) from error
    return path


def end(place: Layout, parts: Callable[[Path], list[str]] = lambda _path: []) -> bool:
    """See `Driver.end_test`. parts: the nested subvolumes with which the copy was made."""
    path = find(place)
    if path is not None:
        ours = parts(path)
        # (Also what is in a store: one of these may be the source of another mirror.)
        nested = [name for name in subvolume.below(path) if name not in ours]
        if nested:
            raise Refused(
                f"the copy contains the subvolume '{nested[0]}'",
                where=str(path),
                hint="Move it away, or delete it: btrfs subvolume delete "
                f"{shlex.quote(str(path / nested[0]))}",
            )
        own = store.kept(layout.beside(path, place.known))
        if own:
            raise Refused(
                "the copy has snapshots of its own",
                where=str(path),
                why=f"it is or was the source of another mirror: {own[-1].snapshot.name}",
                hint="Delete that mirror and these snapshots; or rename the copy to keep it.",
            )
        subvolume.delete_all("BTRFS:COPY:DELETE", path, ours)
        files.sync_directory(path.parent)
    if place.copy_file.exists():
        files.remove_file("BTRFS:COPY:FORGET", place.copy_file)
    return path is not None


def find(place: Layout) -> Path | None:
    """The path of the copy; None when there is none, or the path is used for something else now."""
    record = layout.read_copy(place)
    if record is None:
        return None
    path, uuid = record
    if not subvolume.is_subvolume(path) or subvolume.info(path).parent_uuid != uuid:
        return None
    return Path(path)
