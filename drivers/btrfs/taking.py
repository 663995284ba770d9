"""Taking reference snapshots, of several volumes as close together in time as possible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import failover, layout, reserve, store, subvolume
from mirrord.drivers.btrfs.layout import Layout
from mirrord.system import files


class Wanted(NamedTuple):
    """A snapshot that is to be taken. wrapper: the folder that will contain it."""

    place: Layout
    wrapper: Path
    done: bool


def wrapper_of(place: Layout, name: str, listed: str, where: str) -> Path:
    """The folder for a snapshot that is to be taken, in a store that exists. listed: the uuid that
    the live volume had when its snapshots were listed, "" when they were not.
    """
    if not place.live:
        raise refusals.not_live(where)
    layout.make_store("BTRFS:STORE", place, public=False)
    if listed not in ("", subvolume.info(place.view).uuid):
        raise refusals.replaced(where, "it was replaced just now")
    return place.snapshots / layout.component(name, where)


def ready(place: Layout, name: str, listed: str, where: str) -> Wanted:
    """Prepare for the snapshot. listed: see `wrapper_of`."""
    wrapper = wrapper_of(place, name, listed, where)
    done = store.in_wrapper(place, wrapper, SnapshotKind.REFERENCE) is not None
    if not done:
        # The commit of the snapshot makes the folder durable as well.
        reserve.keep(place)
        failover.sweep(place)
        if not wrapper.exists():
            _remove_empty(place.snapshots)
        wrapper.mkdir(mode=0o755, exist_ok=True)
        wrapper.chmod(0o755)  # whatever the umask: a reverse makes it part of the path to the view
    return Wanted(place, wrapper, done)


def _remove_empty(snapshots: Path) -> None:
    """Remove the folders that were made for snapshots which could not be taken."""
    for one in snapshots.iterdir():
        if one.is_dir() and not subvolume.is_subvolume(one) and not any(one.iterdir()):
            files.remove_directory("BTRFS:SNAPSHOT:EMPTY", one)


def take(wanted: Sequence[Wanted]) -> list[Snapshot]:
    """Take the snapshots that do not exist yet."""
    missing = {one.wrapper / one.wrapper.name: one.place.view for one in wanted if not one.done}
    subvolume.snapshots("BTRFS:SNAPSHOT:TAKE", missing, read_only=True)
    taken = [store.in_wrapper(one.place, one.wrapper, SnapshotKind.REFERENCE) for one in wanted]
    return [one.snapshot for one in taken if one is not None]
