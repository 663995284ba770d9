"""Changes of a volume's root record with its role: live, rolled back, kept."""

from __future__ import annotations

import itertools
import json
import secrets
import uuid
from collections.abc import Iterable
from dataclasses import replace

from mirrord.core.model import Role, SnapshotKind
from mirrord.core.relationship import Relationship
from mirrord.drivers.block.format import Root, checksum_text
from mirrord.drivers.block.rootrecord import Entry, RootRecord, content_digest
from mirrord.system import clock


def mark(record: RootRecord) -> str:
    """See `Driver.mark`: any write or role change changes it."""
    words = [
        record.identity,
        record.role.value,
        record.live.as_list(),
        record.segment,
        record.shown if record.role is Role.MIRROR else record.origin,
    ]
    return checksum_text(json.dumps(words).encode())


def rolled_back(record: RootRecord, to: Entry, *, mirror_id: str, keep_as: str) -> RootRecord:
    """The destination of a mirror, at a snapshot. A live image that differs is kept."""
    if record.role is Role.LIVE and not same_content(record.live, to.root):
        record = record.with_snapshot(diverged(_free_name(record, keep_as), record.live))
    return replace(record, role=Role.MIRROR, mirror_id=mirror_id, live=to.root, shown=to.guid)


def diverged(name: str, root: Root) -> Entry:
    """The snapshot as which a live image is kept; it has no order yet."""
    guid = uuid.uuid4().hex
    digest = content_digest(guid, root)
    return Entry(guid, name, SnapshotKind.DIVERGED, clock.now_ns(), root, digest, 0)


def same_content(one: Root, other: Root) -> bool:
    """True: certainly the same, because the root pointer verifies the tree. False: unknown."""
    return (one.size_bytes, one.data) == (other.size_bytes, other.data)


def live(record: RootRecord, root: Root, origin: str | None) -> RootRecord:
    """A live volume that begins as `root`, and allocates in a new segment."""
    made = replace(record, role=Role.LIVE, live=root, origin=origin)
    return _in_new_segment(made, None)


def epochs(records: Iterable[Relationship | None]) -> str:
    """A text that is another one after each change of the epoch of a mirror of a volume. A mirror
    in its first epoch has no part in it.
    """
    later = sorted((one.mirror_id, one.epoch) for one in records if one and one.epoch > 1)
    return checksum_text(json.dumps(later).encode())


def in_epochs(record: RootRecord, found: str) -> RootRecord:
    """A source that allocates in a new segment after a change of epochs: the other end may have set
    aside a live volume, and with it blocks that are freed here from now on.
    """
    if record.epochs == found:
        return record
    if record.epochs is None:
        return replace(record, epochs=found)
    return _in_new_segment(record, found)


def _in_new_segment(record: RootRecord, found: str | None) -> RootRecord:
    return replace(record, segment=new_segment(record), chunk=0, grown=0, epochs=found)


def _free_name(record: RootRecord, name: str) -> str:
    """`name`, with a number appended when that is taken."""
    taken = {one.name for one in record.snapshots}
    numbered = (f"{name}~{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)


def kept_as(record: RootRecord, name: str) -> Entry | None:
    """The last snapshot kept under that name, or under its numbered variants."""
    found = [
        one
        for one in record.snapshots
        if one.kind is SnapshotKind.DIVERGED
        and (one.name == name or one.name.startswith(f"{name}~"))
    ]
    return max(found, key=lambda one: one.order, default=None)


def new_segment(record: RootRecord) -> int:
    """The number of an unused segment."""
    named = (one.segment for root in record.roots.values() for one in root.segments)
    used = {0, record.segment, *named}
    while True:
        segment = secrets.randbits(24)
        if segment not in used:
            return segment
