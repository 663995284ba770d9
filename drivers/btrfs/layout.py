"""Paths on disk: a volume is a view path and a store next to it.

    V                                     a live subvolume, or a link into the store
    .mirrord.<hash of V's name>           temporary: what V is exchanged with
    <folder of V>/.mirrord/<name of V>/   the store:
        snapshots/<name>/<name>           a folder for each snapshot, with the subvolume in it
        snapshots/<name>/transfer.json    the record of a received snapshot
        snapshots/<name>/members.json     with `nested`: the members of a snapshot (nested.py)
        snapshots/<name>/tree/<name>      with `nested`: it, with its members in their places
        nested/                           with `nested`: a store like this one, of the members
        staging/<transfer>/<name>/<name>  what is being received
        diverged/<name>/<name>            the losing sides of resyncs
        diverged/<name>/parts.json        with `nested`: the nested subvolumes that belong to it
        checkpoints/<transfer>            what an interrupted transfer has applied (checkpoints.py)
        swap/                             what is about to be exchanged with V
        mirror.json                       the mirror that a destination belongs to
        verify/<hash of a guid>.tree      the digests of a snapshot (snapshottrees.py)
        repair/<name>/<name>              a copy that is being repaired (repair.py)
        pins/<mirror id>.json             the snapshots that a mirror needs (pinfiles.py)
        reserve                           space for when the file system is full (reserve.py)
        frozen.json                       record of a frozen live volume (freezing.py)
        relationships/<mirror id>         the relationship record of a mirror (filerecords.py)
        lock

A read-only subvolume cannot be renamed into another folder, but a folder that contains one can.
Therefore each snapshot has its own folder, and V is a link that a rename switches atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.core.errors import Damaged, Refused
from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.sealed import sealed, unsealed
from mirrord.drivers import snapshottrees
from mirrord.drivers.btrfs import ioctl, subvolume
from mirrord.drivers.btrfs.known import Known, stamp
from mirrord.system import files, mounts, steps

STORE = ".mirrord"
DESTINATION_NAME = "current"
RECORD = "transfer.json"
#: In the folder of a snapshot: its members, and the folder of the assembled tree (nested.py).
MEMBERS = "members.json"
TREE = "tree"
#: In the folder of what was set aside: its nested subvolumes (nested_live.py).
PARTS = "parts.json"
_FORMAT = 1
_NAME_BYTES_MAX = 200


class Layout(NamedTuple):
    """The paths of one volume.

    location: the path in the endpoint. view: V. known: the cache. mounted: V is a mount point, so
    it cannot be exchanged, and the store is inside it. nested: nested subvolumes are a part of it.
    """

    location: Path
    view: Path
    store: Path
    known: Known
    mounted: bool = False
    nested: bool = False

    @property
    def snapshots(self) -> Path:
        """The folder of the committed snapshots."""
        return self.store / "snapshots"

    @property
    def staging(self) -> Path:
        """The folder of snapshots being received; root only."""
        return self.store / "staging"

    @property
    def checkpoints(self) -> Path:
        """The folder of what interrupted transfers have applied; root only."""
        return self.store / "checkpoints"

    @property
    def diverged(self) -> Path:
        """The folder of the losing sides of resyncs."""
        return self.store / "diverged"

    @property
    def swap(self) -> Path:
        """The folder of what is about to be exchanged with the view; root only."""
        return self.store / "swap"

    @property
    def reserve_file(self) -> Path:
        """The file that is deleted when the file system is full (reserve.py)."""
        return self.store / "reserve"

    @property
    def outside(self) -> Path:
        """What is exchanged with the view, in the same folder: a read-only subvolume can only be
        renamed within its folder. The name is a hash, because the view's name may already have the
        maximum length.
        """
        name = hashlib.sha256(os.fsencode(self.view.name)).hexdigest()[:16]
        return self.view.with_name(f"{STORE}.{name}")

    @property
    def mirror_file(self) -> Path:
        """The file that marks the volume as the destination of a mirror."""
        return self.store / "mirror.json"

    @property
    def pins(self) -> Path:
        """The folder of the snapshots that each mirror has pinned; root only."""
        return self.store / "pins"

    @property
    def verify(self) -> Path:
        """The folder of the digests of snapshots; root only."""
        return self.store / snapshottrees.NAME

    @property
    def repair(self) -> Path:
        """The folder of a copy that is being repaired; root only."""
        return self.store / "repair"

    @property
    def inner(self) -> Layout:
        """The store of the members' snapshots."""
        return self._replace(store=self.store / "nested", nested=False)

    @property
    def copy_file(self) -> Path:
        """The file that records where the writable copy is (copies.py)."""
        return self.store / "copy.json"

    @property
    def frozen_file(self) -> Path:
        """The file that records that mirrord made the live volume read-only (freezing.py)."""
        return self.store / "frozen.json"

    @property
    def lock_file(self) -> Path:
        """The file that is locked."""
        return self.store / "lock"

    def link_target(self, wrapper: str) -> str:
        """The target of the view's link when it shows the snapshot in the folder `wrapper`."""
        inner = f"{TREE}/" if self.nested else ""
        return f"{STORE}/{self.view.name}/snapshots/{wrapper}/{inner}{wrapper}"

    def shown_wrapper(self) -> str | None:
        """The folder of the snapshot shown; None when the view is not a link into the store."""
        try:
            target = os.readlink(self.view)
        except OSError:
            return None
        wrapper = target.rpartition("/")[2]
        kinds = (self._replace(nested=nested).link_target(wrapper) for nested in (False, True))
        return wrapper if wrapper and target in kinds else None

    @property
    def live(self) -> bool:
        """Whether the view is a live volume (in a plain folder: one that mirrord created)."""
        if not subvolume.is_subvolume(self.view):
            return False
        return self.view == self.location or self.store.is_dir()


def resolve(location: str, known: Known) -> Layout:
    """The paths of the volume at a location.

    A subvolume, or a link into the store next to it (what a subvolume becomes by a rollback), is
    itself the view. Anything else can only be a folder in which the view of a destination is
    created, as `current`. The store of a subvolume that is a mount point is inside it, because the
    folder around it is on another file system.
    """
    path = _followed(Path(location), known)
    if path.is_symlink():
        return beside(path, known)
    if subvolume.is_subvolume(path):
        if is_mount_point(path):
            return Layout(path, path, path / STORE / (path.name or "volume"), known, mounted=True)
        return beside(path, known)
    if not os.path.lexists(path) and beside(path, known).store.is_dir():
        return beside(path, known)  # a subvolume that was lost; its store is still there
    view = path / DESTINATION_NAME
    return Layout(path, view, path / STORE / DESTINATION_NAME, known)


def _followed(path: Path, known: Known) -> Path:
    """Where links lead, but not that of a view: a view is the volume, not what it shows."""
    for _ in range(40):  # as many as the kernel follows
        path = Path(os.path.realpath(path.parent)) / path.name
        if not path.is_symlink() or beside(path, known).shown_wrapper() is not None:
            return path
        path = path.parent / os.readlink(path)
    return Path(os.path.realpath(path))


def beside(path: Path, known: Known) -> Layout:
    """The paths of a volume that is itself the view."""
    return Layout(path, path, path.parent / STORE / path.name, known)


def is_mount_point(path: Path) -> bool:
    """Whether `path` is a mount point (os.path.ismount is true for every subvolume)."""
    here, above = ioctl.mount_id(path), ioctl.mount_id(path.parent)
    if here is None or above is None:
        return path in mount_points()
    return here != above or path == path.parent


def mount_of(path: Path) -> Path:
    """The mount point that `path` is below."""
    path = Path(os.path.realpath(path))
    while not is_mount_point(path):
        path = path.parent
    return path


def mount_points() -> dict[Path, mounts.Mount]:
    """Everything that is mounted, by its path."""
    return {Path(mount.path): mount for mount in mounts.here()}


def nearest_existing(path: Path) -> Path:
    """`path`, or its nearest parent folder that exists."""
    while not path.exists():
        path = path.parent
    return path


def component(name: str, where: str) -> str:
    """`name` when it is a valid path component; `Refused` otherwise."""
    if (
        name in ("", ".", "..")
        or any(c in name for c in "/\0\n")
        or (len(os.fsencode(name)) > _NAME_BYTES_MAX)
    ):
        raise Refused(f"{name!r} is not a valid name of a snapshot or a transfer", where=where)
    return name


def make_store(op: str, layout: Layout, *, public: bool) -> None:
    """Create the missing folders of the store.

    public: users can reach the snapshots, as the view of a destination requires. The snapshots of
    a live volume are not public: an old one must not expose what has been made private since.
    """
    top = layout.store.parent
    if layout.mounted and not top.is_dir():
        # A separate subvolume; otherwise our own files would make the volume look changed.
        subvolume.create(f"{op}:STORE", top)
    files.make_directory(f"{op}:STORE", layout.store)
    mode = 0o755 if public else 0o700
    files.make_directory(f"{op}:SNAPSHOTS", layout.snapshots, mode=mode)
    if stat.S_IMODE(layout.snapshots.stat().st_mode) != mode:
        steps.reached(f"{op}:MODE")
        layout.snapshots.chmod(mode)
    for folder in (layout.staging, layout.diverged, layout.swap):
        files.make_directory(f"{op}:FOLDER", folder, mode=0o700)


def remove_empty_store(layout: Layout) -> None:
    """Remove the empty folders of the store."""
    for folder in (
        layout.staging,
        layout.checkpoints,
        layout.swap,
        layout.diverged,
        layout.pins,
        layout.repair,
        layout.verify,
        layout.snapshots,
        layout.store,
        layout.store.parent,
    ):
        if folder.is_dir() and not os.listdir(folder):
            remove = subvolume.delete if subvolume.is_subvolume(folder) else files.remove_directory
            remove("BTRFS:FORGET:STORE", folder)


# Records


class Record(NamedTuple):
    """The content of `transfer.json` for a snapshot that was received, or kept by a rollback.

    ctransid: the local transaction of its last change, recorded when it was complete (0 before).
    A received snapshot is intact as long as its ctransid is still the same.
    """

    transfer_id: str
    base: str | None
    snapshot: Snapshot
    complete: bool = False
    ctransid: int = 0


def read_mirror_id(layout: Layout) -> str:
    """The id of the mirror whose destination this is, or ""; `Damaged`."""
    document = _read(layout.mirror_file)
    if document is None:
        return ""
    mirror_id = document.get("mirror_id")
    if not isinstance(mirror_id, str) or not mirror_id or set(document) != {"format", "mirror_id"}:
        raise _damaged(layout.mirror_file, "it has unexpected fields")
    return mirror_id


def write_mirror_id(op: str, layout: Layout, mirror_id: str) -> None:
    """Record that this is the destination of that mirror; durable."""
    _write(op, layout.mirror_file, {"format": _FORMAT, "mirror_id": mirror_id})


def write_frozen(op: str, layout: Layout, uuid: str, nested: Sequence[str] = ()) -> None:
    """Record that the live volume `uuid` with those nested is about to be frozen; durable."""
    _write(op, layout.frozen_file, {"format": _FORMAT, "uuid": uuid, "nested": list(nested)})


def read_frozen(layout: Layout) -> tuple[str, ...]:
    """The uuids of the frozen volume and of its nested ones; () when none are recorded, or the
    record is unreadable.
    """
    try:
        document = _read(layout.frozen_file)
        if document is None:
            return ()
        return _text(document["uuid"]), *map(_text, document.get("nested", ()))
    except (Damaged, KeyError, TypeError):
        return ()


def frozen(layout: Layout) -> tuple[str, ...]:
    """The same, while the live volume is read-only because mirrord froze it; () otherwise."""
    if not layout.live or not layout.frozen_file.exists():
        return ()
    live, uuids = subvolume.info(layout.view), read_frozen(layout)
    return uuids if live.read_only and uuids[:1] == (live.uuid,) else ()


def write_parts(op: str, path: Path, parts: Mapping[str, subvolume.Info]) -> None:
    """Record uuid and last change of the subvolumes of a volume, by path; durable."""
    rows = {name: [one.uuid, one.ctransid] for name, one in parts.items()}
    _write(op, path, {"format": _FORMAT, "parts": rows})


def read_parts(path: Path) -> dict[str, tuple[str, int]]:
    """The same; {} when there is no legible record."""
    try:
        document = _read(path) or {"parts": {}}
        rows = document["parts"].items()
        return {_text(name): (_text(uuid), _number(last)) for name, (uuid, last) in rows}
    except (Damaged, KeyError, TypeError, ValueError, AttributeError):
        return {}


def read_copy(layout: Layout) -> tuple[str, str] | None:
    """Path of the writable copy, and uuid of the snapshot that it began as; `Damaged`."""
    document = _read(layout.copy_file)
    return (_text(document["path"]), _text(document["uuid"])) if document is not None else None


def write_copy(op: str, layout: Layout, path: str, uuid: str) -> None:
    """Record where the writable copy is going to be; durable."""
    _write(op, layout.copy_file, {"format": _FORMAT, "path": path, "uuid": uuid})


def read_record(wrapper: Path) -> Record | None:
    """The record in a snapshot's folder, None when there is none; `Damaged`."""
    path = wrapper / RECORD
    document = _read(path)
    if document is None:
        return None
    try:
        stored = document["snapshot"]
        snapshot = Snapshot(
            guid=_text(stored["guid"]),
            name=_text(stored["name"]),
            kind=SnapshotKind(stored["kind"]),
            order=_number(stored["order"]),
            taken_at_ns=_number(stored["taken_at_ns"]),
        )
        return Record(
            transfer_id=_text(document["transfer_id"]),
            base=None if document["base"] is None else _text(document["base"]),
            snapshot=snapshot,
            complete=document["complete"] is True,
            ctransid=_number(document["ctransid"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"it is malformed ({error!r})") from error


def known_record(known: Known, wrapper: Path) -> Record | None:
    """`read_record` with a cache: a record is read again only after it was written."""
    try:
        now = os.stat(f"{wrapper}/{RECORD}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    records = known.records.setdefault(wrapper.parent, {})
    found = records.get(wrapper.name)
    if found is None or found[0] != stamp(now):
        found = records[wrapper.name] = stamp(now), read_record(wrapper)
    return found[1]


def forget_records_but(known: Known, folder: Path, names: Collection[str]) -> None:
    """Drop the cached records of deleted snapshots, because the daemon runs for years."""
    records = known.records.get(folder)
    if records is not None and len(records) > len(names):
        known.records[folder] = {name: records[name] for name in names if name in records}


def write_record(op: str, wrapper: Path, record: Record, *, durable: bool = True) -> None:
    """Replace the record in a snapshot's folder. Not durable: after a power cut it may be empty,
    which is `Damaged` to `read_record`.
    """
    snapshot = record.snapshot
    document = {
        "format": _FORMAT,
        "transfer_id": record.transfer_id,
        "base": record.base,
        "complete": record.complete,
        "ctransid": record.ctransid,
        "snapshot": {
            "guid": snapshot.guid,
            "name": snapshot.name,
            "kind": snapshot.kind.value,
            "order": snapshot.order,
            "taken_at_ns": snapshot.taken_at_ns,
        },
    }
    if durable:
        _write(op, wrapper / RECORD, document)
    else:
        steps.reached(op)
        (wrapper / RECORD).write_bytes(_encoded(document))


def _write(op: str, path: Path, document: dict[str, Any]) -> None:
    files.write_atomic(op, path, _encoded(document))


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(sealed(document), indent=1).encode() + b"\n"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        document = unsealed(text)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise _damaged(path, f"its format is not {_FORMAT}")
    return document


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    return value


def _damaged(path: Path, why: str) -> Damaged:
    return Damaged(
        "a mirrord metadata file is damaged",
        where=str(path),
        why=why,
        hint="Move it elsewhere to examine it. The snapshots next to it are not affected.",
    )


def filesystem_kind(path: Path) -> str:
    """The type of the file system that holds `path`, for messages."""
    found = mount_points()
    here = Path(os.path.realpath(path))
    kinds = (found[folder].kind for folder in (here, *here.parents) if folder in found)
    return next(kinds, "unknown")
