"""Completing what a program has received: nothing that it says is relied on."""

from __future__ import annotations

import os
from pathlib import Path

from mirrord.core.errors import Damaged
from mirrord.core.model import ReceiveRequest
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import layout, store, subvolume
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.system import files


def complete(
    place: Layout,
    request: ReceiveRequest,
    base: SnapshotEntry | None,
    wrapper: Path,
    where: str,
    opened: int,
) -> None:
    """Verify that the wrapper has the announced snapshot, which began as `base` (None: that was
    verified otherwise), and mark its staging as complete; durable.

    opened: a descriptor of the file system from before its data was written.
    """
    _verify(place, request, base, wrapper, where)
    files.sync_filesystem("BTRFS:FINISH:SYNC", wrapper, opened)
    # Read after that: data that was still in memory counted as a change until now.
    info = subvolume.info(wrapper / wrapper.name)
    record = Record(request.transfer_id, request.base, request.snapshot, True, info.ctransid)
    layout.write_record("BTRFS:FINISH:RECORD", wrapper.parent, record)


def _verify(
    place: Layout, request: ReceiveRequest, base: SnapshotEntry | None, wrapper: Path, where: str
) -> None:
    if os.listdir(wrapper) != [wrapper.name]:
        raise refusals.stream_damaged(where, "it did not create the announced snapshot")
    try:
        info = subvolume.info(wrapper / wrapper.name)
    except OSError as error:
        raise refusals.stream_damaged(where, "it created no snapshot") from error
    if info.guid != request.snapshot.guid or not info.read_only:
        raise refusals.stream_damaged(
            where, f"what arrived is {info.guid}, not {request.snapshot.guid}"
        )
    if (
        base is not None
        and info.parent_uuid != base.info.uuid
        and info.parent_uuid != store.taken_for(place, base, where).uuid
    ):
        raise Damaged(
            "the update was applied to a snapshot other than its base",
            where=where,
            why=f"it started from {info.parent_uuid}, not from {base.path}",
            hint="The view is unchanged; run the same command again.",
        )


def ending(program: str, status: int) -> str:
    """How a program ended that printed nothing."""
    if status < 0:
        return f"'{program}' was killed by signal {-status}"
    return f"'{program}' exited with status {status}"
