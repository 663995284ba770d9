"""Checkpoints of `mirrord-receive`: snapshots of what is applied, from which a transfer resumes.

checkpoints/<transfer>/transfer.json   what is received
                       record          the positions, written by the program (its checkpoint.rs)
                       snapshots/      `0` and `1`; the program can change only this folder
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import Damaged
from mirrord.core.model import UNKNOWN_SNAPSHOT, ReceiveRequest, Snapshot
from mirrord.drivers.btrfs import layout, subvolume
from mirrord.drivers.btrfs.alone import locked, wait_until_idle
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.system import files, locks, steps
from mirrord.system.native import StreamDigest

#: magic, sequence, version, flags, position, digest of the prefix, uuid of the snapshot
_SLOT = struct.Struct("<8sQIIQ32s16s")
_SLOT_BYTES = 32 << 10
_DIGEST_BYTES = 32
_MAGIC = b"mrckpt1\0"
#: Of the folder: the process that takes the checkpoints now, or took them last.
_OWNER = "user.mirrord.owner"


class Kept(NamedTuple):
    """The checkpoints of a transfer, and how much of its stream the newest one has."""

    path: Path
    base: str | None
    snapshot: Snapshot
    stream_bytes: int
    digest: str

    @property
    def record(self) -> Path:
        """The file of positions."""
        return self.path / "record"

    @property
    def snapshots(self) -> Path:
        """The folder of the snapshots."""
        return self.path / "snapshots"

    @property
    def checkpoint(self) -> dict[str, int | str] | None:
        """Where a sender resumes; None when there is nothing to resume from."""
        if not self.stream_bytes:
            return None
        return {"bytes": self.stream_bytes, "digest": self.digest}


def path_of(place: Layout, transfer_id: str, where: str) -> Path:
    """The folder of a transfer's checkpoints."""
    return place.checkpoints / layout.component(transfer_id, where)


def held(place: Layout) -> dict[str, Kept]:
    """The existing checkpoints, by transfer. Waits for the last one of a program whose mirrord
    process was killed.
    """
    names = files.names_in(place.checkpoints)

    def is_owned() -> bool:
        return all(_is_owned(place.checkpoints / name) for name in names)

    if not is_owned():
        wait_until_idle(place, is_owned)
    return {name: look(place.checkpoints / name) for name in names}


def look(path: Path) -> Kept:
    """The checkpoints in a folder; what is missing or cannot be read counts as empty."""
    try:
        record = layout.read_record(path)
    except Damaged:
        record = None
    if record is None:
        return Kept(path, None, UNKNOWN_SNAPSHOT, 0, "")
    empty = Kept(path, record.base, record.snapshot, 0, "")
    try:
        data = empty.record.read_bytes()
    except FileNotFoundError:
        return empty
    found = [_slot(empty, data[at : at + _SLOT_BYTES]) for at in (0, _SLOT_BYTES)]
    _sequence, stream_bytes, digest = max(found)
    return empty._replace(stream_bytes=stream_bytes, digest=digest)


def _slot(kept: Kept, data: bytes) -> tuple[int, int, str]:
    """Sequence, position and digest; zeros when the slot or its snapshot is not valid."""
    nothing = 0, 0, ""
    content, digest = data[:-_DIGEST_BYTES], StreamDigest()
    if len(data) != _SLOT_BYTES or content[: len(_MAGIC)] != _MAGIC:
        return nothing
    digest.update(content)
    if bytes.fromhex(digest.hexdigest()) != data[-_DIGEST_BYTES:]:
        return nothing
    _magic, sequence, _version, _flags, position, prefix, uuid = _SLOT.unpack_from(content)
    try:
        info = subvolume.info(kept.snapshots / str(sequence % 2))
    except OSError:
        return nothing
    if info.uuid != uuid.hex() or not info.read_only:
        return nothing
    return sequence, position, prefix.hex()


def own(kept: Kept) -> int:
    """A descriptor that shows that this process takes the checkpoints, until it is closed. Called
    with the receive lock: others hold this one for a moment only.
    """
    with contextlib.suppress(OSError):  # without space for it, the lock alone counts
        os.setxattr(kept.path, _OWNER, _process(os.getpid()).encode())
    return locked(kept.path, str(kept.path))


def _process(pid: int) -> str:
    """The namespace, number and start time of a process of our namespace; '' if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    if fields[0] in (b"Z", b"X"):
        return ""
    return f"{os.readlink('/proc/self/ns/pid')} {pid} {int(fields[19])}"


def _is_owned(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), files.opened(path, os.O_DIRECTORY) as descriptor:
        return not locks.try_lock(descriptor, fcntl.LOCK_SH) and _owner_lives(descriptor)
    return False


def _owner_lives(descriptor: int) -> bool:
    """Whether the process that holds the lock takes the checkpoints: a child of a killed one holds
    it, too, until it executes its program.
    """
    try:
        owner = os.getxattr(descriptor, _OWNER).decode()
        space, pid, _started = owner.split()
    except (OSError, ValueError):  # an earlier version of mirrord records none
        return True
    if space != os.readlink("/proc/self/ns/pid"):
        return True
    return _process(int(pid)) == owner


def prepare(place: Layout, request: ReceiveRequest, where: str) -> Kept:
    """The checkpoints of an earlier attempt at this transfer, or a folder for them. Not durable:
    the first checkpoint commits the transaction.
    """
    path = path_of(place, request.transfer_id, where)
    if path.is_dir():
        found = look(path)
        if found.stream_bytes and (found.base, found.snapshot.guid) == (
            request.base,
            request.snapshot.guid,
        ):
            return found
        remove("BTRFS:CHECKPOINT:REMOVE", path)
    files.make_directory("BTRFS:CHECKPOINT:FOLDER", place.checkpoints, mode=0o700)
    steps.reached("BTRFS:CHECKPOINT:CREATE")
    kept = Kept(path, request.base, request.snapshot, 0, "")
    path.mkdir(mode=0o700)
    kept.snapshots.mkdir(mode=0o700)
    record = Record(request.transfer_id, request.base, request.snapshot)
    layout.write_record("BTRFS:CHECKPOINT:RECORD", path, record, durable=False)
    return kept


def remove(op: str, path: Path) -> None:
    """Remove the checkpoints of a transfer, if there are any."""
    if not path.is_dir():
        return
    deleted = False
    folder = path / "snapshots"
    for one in files.paths_in(folder):
        subvolume.delete(op, one)
        deleted = True
    for name in ("record", layout.RECORD):
        steps.reached(op)
        (path / name).unlink(missing_ok=True)
    if folder.is_dir():
        folder.rmdir()
    steps.reached(op)
    path.rmdir()
    if deleted:
        subvolume.reclaim(path.parent)
