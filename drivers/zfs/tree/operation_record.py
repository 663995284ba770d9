"""The record of an unfinished operation on a tree: a transfer, or a rollback to a snapshot.

It is stored in a file on this host, like the record of a single dataset's transfer
(dataset/transfer_record.py).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from mirrord.core.model import ReceiveRequest
from mirrord.drivers.memberstreams import Manifest
from mirrord.drivers.zfs.dataset import marks, transfer_record
from mirrord.drivers.zfs.tree.stream import parse_manifest

_USE = "tree"


class Transfer(NamedTuple):
    """A transfer, with its members."""

    request: ReceiveRequest
    manifest: Manifest


class PendingRollback(NamedTuple):
    """A rollback to a snapshot: the path of each member, by the guid of its snapshot.

    live: the tree was live, so all that is not in the snapshot is set aside. writing: guids of the
    datasets with files that were open for writing.
    """

    guid: str
    mirror_id: str
    live: bool
    paths: dict[str, str]
    writing: tuple[str, ...] = ()


def transfer(root: str) -> Transfer | None:
    """The unfinished transfer, or None."""
    found = _read(root)
    try:
        request = marks.parse_staging(found["request"])
        return Transfer(request, parse_manifest(found["manifest"], root)) if request else None
    except (KeyError, TypeError, ValueError):
        return None


def rollback(root: str) -> PendingRollback | None:
    """The unfinished rollback, or None."""
    found: Any = _read(root).get("turn")
    try:
        guid, mirror_id, live, paths, *more = found
        return PendingRollback(str(guid), str(mirror_id), bool(live), dict(paths), tuple(*more))
    except (TypeError, ValueError):
        return None


def begin_transfer(root: str, begun: Transfer) -> None:
    """Record it before anything of it is received."""
    text = {"request": marks.staging_text(begun.request), "manifest": begun.manifest.text()}
    transfer_record.store("ZFS:TREE:RECORD", root, json.dumps(text), _USE)


def begin_rollback(root: str, begun: PendingRollback) -> None:
    """Record it before anything is renamed."""
    text = json.dumps({"turn": list(begun)})
    transfer_record.store("ZFS:TREE:INTENT", root, text, _USE)


def end(label: str, root: str) -> None:
    """Remove the record of an operation that is finished or discarded."""
    transfer_record.remove(label, root, _USE)


def _read(root: str) -> dict[str, Any]:
    try:
        found = json.loads(transfer_record.file_of(root, _USE).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
