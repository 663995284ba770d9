"""The state of a receive in progress on disk: one small file in `staging/<transfer id>/`.

The blocks themselves are already in the data files, in free blocks to which nothing refers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from mirrord.core.errors import Damaged, UsageError
from mirrord.core.model import Snapshot, SnapshotKind, Staging
from mirrord.core.sealed import sealed, unsealed
from mirrord.drivers.block.rootrecord import Entry
from mirrord.drivers.block.store import io_errors
from mirrord.system import files

_TRANSFER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FOLDER = "staging"


@dataclass(frozen=True, slots=True)
class StagingRecord:
    """A transfer. next_address: blocks below it are here and durable.

    entry: that of the incremental, once the stream's header was received.
    """

    transfer_id: str
    mirror_id: str
    base: str | None
    snapshot: Snapshot
    entry: Entry | None = None
    next_address: int = 0
    received_bytes: int = 0
    complete: bool = False

    def staging(self) -> Staging:
        """The description for the engine."""
        checkpoint = {"address": self.next_address} if self.next_address else None
        return Staging(
            self.transfer_id,
            self.base,
            self.snapshot,
            self.complete,
            checkpoint,
            self.received_bytes if checkpoint or self.complete else 0,
        )


def folder(path: Path, transfer_id: str) -> Path:
    """The staging folder of a transfer."""
    if _TRANSFER_ID.fullmatch(transfer_id) is None:
        raise UsageError(f"'{transfer_id}' is not a valid transfer id")
    return path / _FOLDER / transfer_id


def store(op: str, path: Path, record: StagingRecord) -> None:
    """Write a transfer's record, durably."""
    one = record.snapshot
    words = {
        "transfer_id": record.transfer_id,
        "mirror_id": record.mirror_id,
        "base": record.base,
        "snapshot": [one.guid, one.name, one.kind.value, one.order, one.taken_at_ns],
        "entry": record.entry.as_dict() if record.entry else None,
        "next_address": record.next_address,
        "received_bytes": record.received_bytes,
        "complete": record.complete,
    }
    place = folder(path, record.transfer_id)
    with io_errors(str(path), "writing a transfer's checkpoint"):
        files.make_directory(f"{op}:DIRECTORY", place)
        files.write_atomic(op, place / "state", json.dumps(sealed(words), indent=1).encode())


def load(path: Path, transfer_id: str) -> StagingRecord | None:
    """The record of a transfer; None when nothing is staged. `Damaged`."""
    try:
        words = unsealed((folder(path, transfer_id) / "state").read_bytes())
        guid, name, kind, order, taken_at_ns = words["snapshot"]
        return StagingRecord(
            transfer_id=str(words["transfer_id"]),
            mirror_id=str(words["mirror_id"]),
            base=words["base"],
            snapshot=Snapshot(guid, name, SnapshotKind(kind), int(order), int(taken_at_ns)),
            entry=Entry.from_dict(words["entry"]) if words["entry"] else None,
            next_address=int(words["next_address"]),
            received_bytes=int(words["received_bytes"]),
            complete=bool(words["complete"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(
            f"the record of the transfer {transfer_id} is damaged",
            where=str(path),
            why=str(error),
            hint=f"Remove the directory '{folder(path, transfer_id)}' and update again.",
        ) from error


def received(path: Path, guid: str) -> Entry | None:
    """A snapshot that was received completely, and is not committed yet."""
    for transfer_id in transfer_ids(path):
        record = load(path, transfer_id)
        if record is not None and record.complete and record.snapshot.guid == guid:
            return record.entry
    return None


def transfer_ids(path: Path) -> list[str]:
    """The transfers that have a staging folder."""
    return files.names_in(path / _FOLDER)


def remove(op: str, path: Path, transfer_id: str) -> None:
    """Remove a transfer's record, if it exists."""
    place = folder(path, transfer_id)
    if not place.is_dir():
        return
    with io_errors(str(path), "removing a transfer's record"):
        for one in sorted(place.iterdir()):
            files.remove_file(f"{op}:FILE", one)
        files.remove_directory(f"{op}:DIRECTORY", place)
