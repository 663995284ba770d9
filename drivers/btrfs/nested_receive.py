"""Receiving a volume with nested subvolumes: each member by a receiver of its own, the root first.

The root goes to the staging of a single volume, under the transfer's id; the others to that of the
inner store, under the id with a number. The list of all is recorded first.
"""

from __future__ import annotations

from typing import NamedTuple

from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind, Staging
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import (
    assemble,
    nested,
    receivers,
    staging,
    store,
)
from mirrord.drivers.btrfs.ioctl import guarded
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.memberstreams import DONE, FULL, Manifest, Member, TreeReceiver
from mirrord.drivers.streams import Receiver
from mirrord.system import files


class Part(NamedTuple):
    """Where a member is received: the store, and the id of its transfer there."""

    place: Layout
    transfer_id: str


def part(place: Layout, transfer_id: str, number: int) -> Part:
    """The part of the member with that number in the list."""
    return Part(place.inner, f"{transfer_id}.{number}") if number else Part(place, transfer_id)


class NestedReceiver(TreeReceiver):
    """native: which program applies the streams (receivers.py)."""

    def __init__(self, place: Layout, request: ReceiveRequest, where: str, *, native: bool) -> None:
        super().__init__(request, where)
        self._place, self._native = place, native
        self._manifest = Manifest(())

    def __str__(self) -> str:
        return self._where

    @guarded
    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        super().write(chunk)

    def _parse(self, text: str) -> Manifest:
        return nested.parse(text)

    def _begin(self, manifest: Manifest) -> list[str]:
        request, first, place = self._request, manifest.members[0], self._place
        if first.guid != request.snapshot.guid or first.base not in (request.base, None):
            raise ValueError("its snapshot or its base is not the announced one")
        record_transfer(place, request.transfer_id, manifest, self._where)
        self._manifest = manifest
        return [one.path for one in manifest.members if one.base and not _has(place, one)]

    def _open(self, member: Member) -> Receiver:
        number = self._manifest.members.index(member)
        where = part(self._place, self._request.transfer_id, number)
        return receivers.open_receiver(
            where.place,
            _request_of(self._request, member, where.transfer_id, number),
            f"{self._where}/{member.path}".rstrip("/"),
            native=self._native,
        )

    def _staged(self) -> Staging:
        transfer_id = self._request.transfer_id
        all_done = Manifest(tuple(one._replace(done=True) for one in self._manifest.members))
        record_transfer(self._place, transfer_id, all_done, self._where)
        [found] = [one for one in stagings(self._place) if one.transfer_id == transfer_id]
        if not found.complete:
            raise refusals.stream_damaged(self._where, "a member of it is missing")
        return found._replace(received_bytes=self._received_bytes)


def record_transfer(place: Layout, transfer_id: str, manifest: Manifest, where: str) -> None:
    """Record the members of a transfer; all of them are `done` once it is complete. Durable."""
    path = nested.transfer_file(place, transfer_id, where)
    files.make_directory("BTRFS:NESTED:FOLDER", path.parent, mode=0o700)
    files.write_atomic("BTRFS:NESTED:TRANSFER", path, manifest.text().encode("ascii"))


def _has(place: Layout, member: Member) -> bool:
    """Whether the base of a member is here."""
    one = store.find(place.inner if member.path else place, str(member.base))
    return one is not None and one.snapshot.intact


def _request_of(
    request: ReceiveRequest, member: Member, transfer_id: str, number: int
) -> ReceiveRequest:
    name = f"{request.snapshot.name}.{number}" if number else request.snapshot.name
    snapshot = request.snapshot._replace(guid=member.guid, name=name)
    # (`resume_bytes` counts the streams of all members.)
    return request._replace(
        transfer_id=transfer_id, base=member.base, snapshot=snapshot, resume_bytes=None
    )


def stagings(place: Layout) -> list[Staging]:
    """See `Driver.stagings`: complete when each member is; with the checkpoints of all."""
    roots = {one.transfer_id: one for one in staging.stagings(place)}
    inner = {one.transfer_id: one for one in staging.stagings(place.inner)}
    listed = nested.transfers(place)
    found = [
        one._replace(complete=False, checkpoint=None)
        for name, one in roots.items()
        if name not in listed
    ]
    for name, manifest in listed.items():
        found.append(_staging(place, name, manifest, {**inner, **roots}))
    return sorted(found, key=lambda one: one.transfer_id)


def _staging(place: Layout, name: str, manifest: Manifest, parts: dict[str, Staging]) -> Staging:
    checkpoint, received = dict[str, int | str](), 0
    complete = all(member.done for member in manifest.members)
    for number, member in enumerate(manifest.members):
        at = part(place, name, number)
        one = parts.get(at.transfer_id)
        if one is not None and one.complete and one.snapshot.guid == member.guid:
            checkpoint[member.guid] = DONE
            continue
        moved = None if one is not None else staging.committed(at.place, at.transfer_id)
        if moved is not None and moved.snapshot.intact:
            checkpoint[member.guid] = DONE
            continue
        complete = False
        if member.base and not _has(place, member):
            checkpoint[member.guid] = FULL
        elif one is not None and one.checkpoint and one.snapshot.guid == member.guid:
            checkpoint[member.guid] = f"{one.checkpoint['bytes']} {one.checkpoint['digest']}"
            received += one.received_bytes
    root = manifest.members[0]
    known = parts.get(name)
    snapshot = known.snapshot if known is not None and known.snapshot.guid else None
    return Staging(
        name,
        root.base,
        snapshot or Snapshot(root.guid, "", SnapshotKind.REFERENCE, 0, 0),
        complete,
        checkpoint=None if complete or not checkpoint else checkpoint,
        received_bytes=received,
    )


def commit(place: Layout, transfer_id: str, *, show: bool, where: str) -> Snapshot:
    """See `Driver.commit`. The members go to the inner store, the list into the folder of the root,
    which becomes a snapshot by a rename; then the view is switched. A repetition continues.
    """
    record = nested.transfer_file(place, transfer_id, where)
    manifest = nested.transfers(place).get(transfer_id)
    if manifest is not None:
        for number in range(1, len(manifest.members)):
            at = part(place, transfer_id, number)
            staging.commit(at.place, at.transfer_id, show=False, where=where)
        wrapper = staging.staged_wrapper(place, transfer_id, where)
        if wrapper is not None:
            kept = Manifest(tuple(m._replace(base=None, done=False) for m in manifest.members))
            nested.write("BTRFS:NESTED:MEMBERS", wrapper, kept)
    elif staging.committed(place, transfer_id) is None:
        raise refusals.staging_missing(where, transfer_id)
    done = staging.commit(place, transfer_id, show=False, where=where)
    one = staging.committed(place, transfer_id) or store.find(place, done.guid)
    if one is None or one.wrapper is None or not store.is_tree(one.wrapper):
        raise refusals.staging_missing(where, transfer_id)
    assemble.show(place, one, where)
    if show:
        staging.show_it(place, one, again=True)
    files.remove_file("BTRFS:NESTED:COMMITTED", record)
    return one.snapshot


def discard(place: Layout, transfer_id: str, where: str) -> None:
    """See `Driver.discard`."""
    staging.discard(place, transfer_id, where)
    inner = place.inner
    for folder in (inner.staging, inner.checkpoints):
        for path in files.paths_in(folder):
            if path.name.rpartition(".")[0] == transfer_id:
                staging.discard(inner, path.name, where)
    record = nested.transfer_file(place, transfer_id, where)
    if record.exists():
        files.remove_file("BTRFS:NESTED:DISCARDED", record)
        nested.sweep(place)
