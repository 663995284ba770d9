"""A subvolume with the writable subvolumes nested inside it: which they are, and their snapshots.

A snapshot of such a volume consists of one of each member. The root's is in the store like that of
a single subvolume, with the list of all (`members.json`); the others are in a store of their own
inside (`Layout.inner`). A member is recognized by its lineage: the uuid of the live subvolume, or,
where that began as a snapshot of a member, that member's lineage. Paths are for placing them only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import Busy, Damaged, Refused
from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.text import escaped
from mirrord.core.units import format_few
from mirrord.drivers import memberstreams, refusals
from mirrord.drivers.btrfs import failover, layout, reserve, store, subvolume, taking
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.memberstreams import MEMBERS_MAX, Manifest, Member
from mirrord.system import files

#: Snapper's snapshots of a subvolume are in it, below this name.
SNAPPER = ".snapshots"
_TRIES = 3
_GUID = re.compile(r"[0-9a-f]{32}:[0-9]{1,20}")
_NAME_BYTES_MAX, _PATH_BYTES_MAX = 255, 4095
#: What a snapshot has in the place of a nested subvolume: an empty directory with this number.
_STUB_INODE = 2


class Found(NamedTuple):
    """The nested subvolumes of a volume, by path, parents first. skipped: those not mirrored."""

    members: dict[str, subvolume.Info]
    skipped: list[str]


def of(place: Layout) -> Found:
    """What is nested in the live volume."""
    return find(place.view, layout.frozen(place))


def find(volume: Path, frozen: Collection[str] = ()) -> Found:
    """What is nested in a volume. Read-only ones, snapper's, and what is below them is skipped.

    frozen: the uuids of those that are read-only because mirrord froze them.
    """
    found, skipped = dict[str, subvolume.Info](), list[str]()
    every = sorted(subvolume.below_with_info(volume), key=lambda one: (one[0].count("/"), one[0]))
    for path, info in every:
        parts = path.split("/")
        if layout.STORE in parts:
            continue
        below = any(f"{path}/".startswith(f"{one}/") for one in skipped)
        fixed = info.read_only and info.uuid not in frozen
        if below or fixed or SNAPPER in parts:
            skipped.append(path)
        else:
            found[path] = info
    return Found(found, skipped)


def notes(place: Layout) -> tuple[str, ...]:
    """A note on what is skipped."""
    skipped = [escaped(path) for path in of(place).skipped]
    if not skipped:
        return ()
    return (
        f"The nested subvolumes {format_few(skipped)} are not mirrored: they are read-only, or "
        "snapshots of snapper.",
    )


# Lists of members


def parse(text: str) -> Manifest:
    """A list of members that was received or stored; `ValueError`."""
    return memberstreams.parse(text, is_guid=_is_guid, is_path=_is_path)


def _is_guid(value: str) -> bool:
    return _GUID.fullmatch(value) is not None


def _is_path(path: str) -> bool:
    """Whether a member can be placed there: a relative path that leads into the volume."""
    if len(os.fsencode(path)) > _PATH_BYTES_MAX or "\0" in path:
        return False
    parts = path.split("/")
    taken = {"", ".", "..", layout.STORE}
    return not any(part in taken or len(os.fsencode(part)) > _NAME_BYTES_MAX for part in parts)


def manifest_of(one: SnapshotEntry) -> Manifest:
    """The members of a snapshot of the store; `Damaged`."""
    path = one.folder / layout.MEMBERS
    try:
        found = parse(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise Damaged(
            "the list of the members of a snapshot is damaged",
            where=str(path),
            why=str(error),
            hint="The snapshot cannot be used. 'mirrord snapshots' lists the others.",
        ) from error
    return found


def references(place: Layout) -> list[SnapshotEntry]:
    """The snapshots with a list of members."""
    return [one for one in store.kept(place) if one.snapshot.kind is SnapshotKind.REFERENCE]


def legible_members(one: SnapshotEntry) -> tuple[Member, ...]:
    """Its members; () when the list is damaged."""
    try:
        return manifest_of(one).members
    except Damaged:
        return ()


def write(op: str, wrapper: Path, manifest: Manifest) -> None:
    """Write the list into the folder of the root's snapshot; durable."""
    files.write_atomic(op, wrapper / layout.MEMBERS, manifest.text().encode("ascii"))


def entries(
    place: Layout, one: SnapshotEntry, where: str
) -> dict[str, tuple[Member, SnapshotEntry]]:
    """The members' snapshots of a snapshot by path, the root's first; `base_missing`."""
    inner = {each.snapshot.guid: each for each in store.kept(place.inner) if each.snapshot.intact}
    inner[one.snapshot.guid] = one
    found = {}
    for member in manifest_of(one).members:
        if member.guid not in inner:
            raise refusals.base_missing(f"{where}/{member.path}".rstrip("/"), member.guid)
        found[member.path] = (member, inner[member.guid])
    return found


def holder(place: Layout, guid: str) -> tuple[SnapshotEntry, str] | None:
    """The snapshot of which the one with that identity is a member, and the member's path."""
    found = (
        (one, member.path)
        for one in references(place)
        for member in legible_members(one)
        if member.guid == guid
    )
    return next(found, None)


def member_entry(place: Layout, guid: str) -> SnapshotEntry | None:
    """The snapshot of a member; that of the root, too."""
    return store.find(place, guid) or store.find(place.inner, guid)


# Taking


def take(place: Layout, name: str, listed: str, where: str) -> Snapshot:
    """Take a snapshot of all members, as close together in time as the kernel can.

    They are taken in the inner store; the folder of the root's is then moved, with the list. When
    a nested subvolume was created, renamed or removed meanwhile, they are taken again.
    """
    target = taking.wrapper_of(place, name, listed, where)
    done, spread_ns = store.in_wrapper(place, target, SnapshotKind.REFERENCE), 0
    if done is None:
        layout.make_store("BTRFS:STORE", place.inner, public=False)
        reserve.keep(place)
        failover.sweep(place)
        failover.sweep(place.inner)
        for number in range(_TRIES):
            sweep(place, name)
            taken = _take(place, name, where, last=number + 1 == _TRIES)
            if taken is not None:
                spread_ns = taken
                break
        store.sweep(place)  # what an interrupted deletion left under that name
        files.rename("BTRFS:NESTED:SNAPSHOT", place.inner.snapshots / name, target)
        done = store.in_wrapper(place, target, SnapshotKind.REFERENCE)
    if done is None or not store.is_tree(target):
        raise Refused("another snapshot of that name exists", where=where, why=str(target))
    return done.snapshot._replace(spread_ns=spread_ns)


def _take(place: Layout, name: str, where: str, *, last: bool) -> int | None:
    """Take the members' snapshots and write the list. Returns how far apart they were taken, in ns;
    None: they do not fit together.
    """
    before = of(place)
    if len(before.members) >= MEMBERS_MAX:
        raise Refused(
            f"the volume has {len(before.members)} nested subvolumes",
            where=where,
            why=f"at most {MEMBERS_MAX - 1} can be mirrored with it",
            hint="Make some read-only, or move them elsewhere.",
        )
    volumes = {"": subvolume.info(place.view), **before.members}
    folder, wanted = place.inner.snapshots, dict[Path, Path]()
    for number, path in enumerate(volumes):
        own = f"{name}.{number}" if number else name
        wrapper = folder / layout.component(own, where)
        wrapper.mkdir(mode=0o755, exist_ok=True)
        wrapper.chmod(0o755)
        wanted[wrapper / own] = place.view / path
    try:
        subvolume.snapshots("BTRFS:SNAPSHOT:TAKE", wanted, read_only=True)
        taken = dict(zip(volumes, map(subvolume.info, wanted), strict=True))
    except (FileNotFoundError, NotADirectoryError):
        taken = {}  # one was removed just now
    if not _fit(volumes, dict(zip(volumes, wanted, strict=True)), taken, of(place)):
        if last:
            raise Busy(
                "the nested subvolumes change while a snapshot is taken",
                where=where,
                why="one was created, renamed or removed, or something is mounted over it",
                hint="Run the same command again.",
            )
        return None
    names = lineages_of(place, volumes)
    members = [Member(path, taken[path].guid, names[path], None) for path in volumes]
    write("BTRFS:NESTED:MEMBERS", folder / name, Manifest(tuple(members)))
    pairs = zip(wanted, taken.values(), strict=True)
    times = [subvolume.made_at_ns(path, one) for path, one in pairs]
    return max(times) - min(times)


def lineages_of(place: Layout, volumes: Mapping[str, subvolume.Info]) -> dict[str, str]:
    """The lineage of each of the live subvolumes, by path."""
    lineages, found = _lineages(place), dict[str, str]()
    for path, info in volumes.items():
        lineage = lineages.get(info.uuid) or lineages.get(info.parent_uuid, info.uuid)
        lineage = lineage if path else ""
        found[path] = info.uuid if lineage in found.values() else lineage
    return found


def _fit(
    volumes: Mapping[str, subvolume.Info],
    paths: Mapping[str, Path],
    taken: Mapping[str, subvolume.Info],
    after: Found,
) -> bool:
    """Whether each is a snapshot of the listed subvolume, the list is still the same, and each has
    a place in the snapshot of the one that contains it.
    """
    if {path: one.uuid for path, one in after.members.items()} != {
        path: one.uuid for path, one in volumes.items() if path
    } or any(
        path not in taken or taken[path].parent_uuid != volumes[path].uuid for path in volumes
    ):
        return False
    for path in volumes:
        if path:
            above = outer(path, volumes)
            try:
                stub = os.lstat(paths[above] / path[len(above) :].lstrip("/"))
            except OSError:
                return False
            if stub.st_ino != _STUB_INODE:
                return False
    return True


def outer(path: str, every: Mapping[str, object]) -> str:
    """The path of the member that contains the one at `path`."""
    while path:
        path = path.rpartition("/")[0]
        if path in every:
            return path
    return ""


def _lineages(place: Layout) -> dict[str, str]:
    """The lineage of each member's snapshot in the store, by the snapshot's uuid and by that of its
    live subvolume: what that began as may be deleted by now.
    """
    inner = {one.snapshot.guid: one.info for one in store.kept(place.inner)}
    return {
        uuid: member.name
        for one in references(place)
        for member in legible_members(one)
        if member.guid in inner
        for uuid in (inner[member.guid].uuid, inner[member.guid].parent_uuid)
        if uuid
    }


# Transfers


def transfer_file(place: Layout, transfer_id: str, where: str) -> Path:
    """The file with the members of an unfinished transfer."""
    return place.inner.store / "transfers" / f"{layout.component(transfer_id, where)}.json"


def transfers(place: Layout) -> dict[str, Manifest]:
    """The members of the unfinished transfers; `Damaged`."""
    folder, found = place.inner.store / "transfers", {}
    for path in files.paths_in(folder):
        if path.suffix == ".json" and not path.name.startswith("."):
            try:
                found[path.stem] = parse(path.read_text(encoding="ascii"))
            except ValueError as error:
                raise Damaged(
                    "a mirrord metadata file is damaged",
                    where=str(path),
                    why=str(error),
                    hint="Remove it: the transfer that it belongs to starts over.",
                ) from error
    return found


def sweep(place: Layout, name: str = "") -> None:
    """Delete the members' snapshots that no snapshot and no transfer refers to; while a list is
    damaged, those of an unfinished snapshot of that name only.
    """
    lists = [legible_members(one) for one in references(place)]
    needed = {member.guid for members in lists for member in members}
    needed.update(m.guid for each in transfers(place).values() for m in each.members)
    folder = place.inner.snapshots
    for left in folder.glob(f"*/{layout.MEMBERS}"):
        files.remove_file("BTRFS:NESTED:SWEEP", left)  # of a snapshot that was not completed
    for one in store.kept(place.inner):
        own = f"{one.path.name}.".startswith(f"{name}.") if name else False
        if (own or all(lists)) and not {one.snapshot.guid, one.info.guid} & needed:
            subvolume.delete("BTRFS:NESTED:SWEEP", one.path)
    store.sweep(place.inner)
