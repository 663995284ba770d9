"""The root record: the fsinfo block of the paper, and the only file that is replaced.

A text file: one line with magic, format version, XXH3-128 and length of the rest; then one line
of JSON for the volume and one for each snapshot. It is replaced by a rename, so a crash leaves
the old one or the new one. Everything that it refers to was made durable before.

The record of a MIRROR has a copy, `root-copy`, written after it. If the record is lost or damaged,
the copy has the same content, or that before the last change, which is also a consistent state of
the destination. A LIVE volume has none, because an older record would lose later writes.

The file `reserve` takes space that a change of the record can use on a full file system.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mirrord.core.errors import MIRROR, Damaged, NotFound, Unsupported
from mirrord.core.model import Role, Snapshot, SnapshotKind
from mirrord.drivers.block.format import Root, checksum_text
from mirrord.drivers.block.store import io_errors
from mirrord.system import files

MAGIC = "mirrord-block-volume"
#: Version 1: the first.
VERSION = 1
NAME = "root"
COPY = "root-copy"
RESERVE = "reserve"
#: The minimum; always enough to write a record and its copy next to the old ones.
_RESERVE_BYTES_MIN = 64 << 10


@dataclass(frozen=True, slots=True)
class Entry:
    """A snapshot in the table. It is the same at both ends except for the last three fields.

    guid: drawn at random when the source took it. digest: of guid and root, made with it.
    received: it was received by the transfer `transfer`.
    """

    guid: str
    name: str
    kind: SnapshotKind
    taken_at_ns: int
    root: Root
    digest: str
    order: int
    received: bool = False
    transfer: str = ""

    @property
    def intact(self) -> bool:
        """Whether the entry still has the root with which it was taken."""
        return self.digest == content_digest(self.guid, self.root)

    @property
    def owners(self) -> bool:
        """Whether it is a user snapshot taken here."""
        return self.kind is SnapshotKind.OWN and not self.received

    def snapshot(self) -> Snapshot:
        """The description for the engine."""
        return Snapshot(
            self.guid, self.name, self.kind, self.order, self.taken_at_ns, intact=self.intact
        )

    def as_dict(self) -> dict[str, Any]:
        """For the record and the stream."""
        return {
            "guid": self.guid,
            "name": self.name,
            "kind": self.kind.value,
            "taken_at_ns": self.taken_at_ns,
            "root": self.root.as_list(),
            "digest": self.digest,
            "order": self.order,
            "received": self.received,
            "transfer": self.transfer,
        }

    @classmethod
    def from_dict(cls, words: dict[str, Any]) -> Entry:
        """The inverse; `ValueError`, `KeyError` or `TypeError` when malformed."""
        return cls(
            guid=str(words["guid"]),
            name=str(words["name"]),
            kind=SnapshotKind(words["kind"]),
            taken_at_ns=int(words["taken_at_ns"]),
            root=Root.from_list(words["root"]),
            digest=str(words["digest"]),
            order=int(words["order"]),
            received=bool(words["received"]),
            transfer=str(words["transfer"]),
        )


@dataclass(frozen=True, slots=True)
class RootRecord:
    """The complete state of a volume.

    identity: of this volume, never changes. live: the image that users see.
    segment: where the live volume allocates. chunk, grown: the state of its allocator. epochs:
    `roles.epochs` when that segment was opened; None: not known until the next snapshot.
    origin: guid of the snapshot that it began as when it was promoted.
    """

    identity: str
    role: Role
    live: Root
    segment: int = 0
    chunk: int = 0
    grown: int = 0
    epochs: str | None = None
    mirror_id: str = ""
    shown: str | None = None
    origin: str | None = None
    next_order: int = 1
    snapshots: tuple[Entry, ...] = field(default=())

    @property
    def roots(self) -> dict[str, Root]:
        """The live image by "", and each snapshot by its guid."""
        return {"": self.live} | {one.guid: one.root for one in self.snapshots}

    def entry(self, guid: str) -> Entry | None:
        """The snapshot with that identity."""
        return next((one for one in self.snapshots if one.guid == guid), None)

    def with_snapshot(self, entry: Entry) -> RootRecord:
        """The record with one more snapshot, which gets the next order."""
        numbered = replace(entry, order=self.next_order)
        return replace(self, snapshots=(*self.snapshots, numbered), next_order=self.next_order + 1)

    def without(self, guids: set[str]) -> RootRecord:
        """The record without some snapshots."""
        kept = tuple(one for one in self.snapshots if one.guid not in guids)
        return replace(self, snapshots=kept)


def content_digest(guid: str, root: Root) -> str:
    """The digest that binds an identity to its content."""
    return checksum_text(json.dumps([guid, root.as_list()]).encode())


def encode(record: RootRecord) -> bytes:
    """The file's content."""
    head = {
        "identity": record.identity,
        "role": record.role.value,
        "live": record.live.as_list(),
        "segment": record.segment,
        "chunk": record.chunk,
        "grown": record.grown,
        "epochs": record.epochs,
        "mirror_id": record.mirror_id,
        "shown": record.shown,
        "origin": record.origin,
        "next_order": record.next_order,
        "snapshots": len(record.snapshots),
    }
    body = "\n".join([json.dumps(head), *map(_line, record.snapshots), ""]).encode()
    return f"{MAGIC} {VERSION} {checksum_text(body)} {len(body)}\n".encode() + body


#: One update reads the records of its two volumes again and again.
@functools.lru_cache(maxsize=2)
def decode(data: bytes, where: str) -> RootRecord:
    """The record in a file's content. `Damaged`; `Unsupported` for a newer version."""
    first, _, body = data.partition(b"\n")
    words = first.decode(errors="replace").split(" ")
    if len(words) != 4 or words[0] != MAGIC or not words[1].isdigit():
        raise record_damaged(where, "its first line is malformed")
    if int(words[1]) != VERSION:
        raise Unsupported(
            f"the volume has the format version {words[1]}",
            where=where,
            why=f"this version of mirrord supports version {VERSION}",
            hint="Use the version of mirrord that created it, or a newer one.",
        )
    if str(len(body)) != words[3]:
        raise record_damaged(where, f"it has {len(body)} bytes instead of {words[3]}")
    if checksum_text(body) != words[2]:
        raise record_damaged(where, "its checksum does not match")
    try:
        lines = body.decode().splitlines()
        head = json.loads(lines[0])
        entries = tuple(Entry.from_dict(json.loads(line)) for line in lines[1:])
        return RootRecord(
            identity=str(head["identity"]),
            role=Role(head["role"]),
            live=Root.from_list(head["live"]),
            segment=int(head["segment"]),
            chunk=int(head["chunk"]),
            grown=int(head["grown"]),
            epochs=head.get("epochs"),  # (older records have none)
            mirror_id=str(head["mirror_id"]),
            shown=head["shown"],
            origin=head["origin"],
            next_order=int(head["next_order"]),
            snapshots=entries,
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise record_damaged(where, f"it is malformed ({error})") from error


def record_damaged(where: str, why: str) -> Damaged:
    """A root record that cannot be trusted."""
    return Damaged(
        "the root record is damaged",
        where=where,
        why=why,
        hint=f"On a destination, move '{where}' away and run 'mirrord initialize {MIRROR}' again. "
        "On a source, restore 'root' and the data files from one backup, or make the destination "
        f"of its mirror live with 'mirrord break {MIRROR}'.",
    )


def load(path: Path) -> RootRecord:
    """The record of the volume in the directory `path`, or its copy when it is damaged."""
    return load_noting_damage(path)[0]


def load_noting_damage(path: Path) -> tuple[RootRecord, str]:
    """`load`, and the reason when the copy is used, as a clause; "" for the record itself."""
    try:
        return _load(path / NAME), ""
    except (Damaged, NotFound) as error:
        with contextlib.suppress(Damaged, NotFound):
            why = error.why or "it is missing"
            return _load(path / COPY), f"the root record is damaged ({why}) and its copy is in use"
        raise error from None


def _load(file: Path) -> RootRecord:
    path = file.parent
    try:
        with io_errors(str(path), "reading the root record"):
            data = file.read_bytes()
    except Exception as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise NotFound(
                "there is no block volume",
                where=str(path),
                hint=f"Create one with 'mirrord volume create {shlex.quote(str(path))} 10G'.",
            ) from None
        raise
    return decode(data, str(path))


def store(op: str, path: Path, record: RootRecord, *, urgent: bool = False) -> None:
    """Replace the record, in one durable step. `NoSpace`, `IoFailed`: the old one is kept.

    urgent: on a full file system, use the reserve.
    """
    data = encode(record)
    with io_errors(str(path), "writing the root record"):
        if record.role is not Role.MIRROR:
            if (path / COPY).exists():
                if load_noting_damage(path)[1]:  # until then the copy is the only record
                    _replace(f"{op}:COPY:RESTORE", path, (path / COPY).read_bytes(), urgent=urgent)
                files.remove_file(f"{op}:COPY:REMOVE", path / COPY)
            files.beside(path / COPY).unlink(missing_ok=True)
        _replace(op, path, data, urgent=urgent)
    if record.role is Role.MIRROR:
        _copy(op, path, data)
    if urgent:
        _reserve(path, max(_RESERVE_BYTES_MIN, 4 * len(data)))


def _replace(op: str, path: Path, data: bytes, *, urgent: bool) -> None:
    try:
        files.write_atomic(op, path / NAME, data)
    except OSError as error:
        if not urgent or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        files.remove_file(f"{op}:RESERVE", path / RESERVE)
        files.write_atomic(op, path / NAME, data)


def _copy(op: str, path: Path, data: bytes) -> None:
    """Best effort. But a copy is never older than the last change of the record."""
    try:
        files.write_atomic(f"{op}:COPY", path / COPY, data)
    except OSError:
        with contextlib.suppress(OSError):
            files.remove_file(f"{op}:COPY:REMOVE", path / COPY)


def _reserve(path: Path, size_bytes: int) -> None:
    """Create the reserve; best effort."""
    place = path / RESERVE
    with contextlib.suppress(OSError):
        if place.exists() and place.stat().st_blocks * 512 >= size_bytes:
            return
        with files.opened(place, os.O_WRONLY | os.O_CREAT, 0o600) as descriptor:
            try:
                os.posix_fallocate(descriptor, 0, size_bytes)
            except OSError:
                place.unlink()


@functools.lru_cache(maxsize=2048)
def _line(entry: Entry) -> str:
    """Snapshot entries never change: their lines are cached, so that a record of 1000 snapshots
    only needs a join.
    """
    return json.dumps(entry.as_dict())
