"""Receiving: blocks are written at the source's numbers, and unreferenced until the commit.

The numbers are free here: they were free at the source when the base was the newest snapshot,
and this volume has nothing newer. The only exception is a snapshot that the source has deleted
and this end has not: the source may have reused its blocks. Such snapshots are deleted first, in a
separate root record (`Capability.BLOCK_FOR_BLOCK`), and only those whose blocks are needed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mirrord.core.errors import MIRROR, Damaged, Refused, TransferFailed
from mirrord.core.model import SnapshotKind, Staging
from mirrord.drivers import pinfiles
from mirrord.drivers.block import staging
from mirrord.drivers.block.activemap import MapView, Run, held_bits
from mirrord.drivers.block.content import verify_added
from mirrord.drivers.block.format import (
    BLOCK_BYTES,
    CHUNK_BITS,
    describe,
    number_of,
    segment_of,
    sum_of,
)
from mirrord.drivers.block.rootrecord import Entry, RootRecord
from mirrord.drivers.block.staging import StagingRecord
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.block.stream import (
    BLOCKS_PER_FRAME,
    DONE,
    HEAD,
    HEADER,
    RUN,
    RUNS,
    TEXT_BYTES_MAX,
    parse_head,
    parse_text,
)
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.pins import of_snapshot
from mirrord.drivers.refusals import stream_damaged
from mirrord.drivers.streams import Receiver
from mirrord.system.native import Panic, StreamChecksum

#: A checkpoint is written at least this often: where an interruption is likely, so often that
#: including the next frame at most 8 MiB are lost.
_CHECKPOINT_BYTES = 16 << 20
_OFTEN_BYTES = 6 << 20


class BlockReceiver(Receiver):
    """Receives the stream of `BlockSendStream`, in chunks of any size."""

    def __init__(
        self, path: Path, record: RootRecord, state: StagingRecord, *, often: bool = False
    ) -> None:
        self._path = path
        self._checkpoint_bytes = _OFTEN_BYTES if often else _CHECKPOINT_BYTES
        super().__init__()
        self._where = str(path)
        self._state = state
        self._base = record.entry(state.base) if state.base is not None else None
        self._store = BlockStore(path, writable=True)
        self._collisions = Collisions(self._store, path, record, state)
        self._pending = bytearray()
        self._checksum = StreamChecksum()
        self._begun = self._ended = self._closed = self._failed = self._unsynced = False
        # The content of the next checkpoint: the position of the stream, beyond `_state`.
        self._next_address = state.next_address
        self._stream_bytes = state.received_bytes
        self._blocks = 0
        self._unkept_bytes = 0

    def write(self, chunk: bytes | memoryview) -> None:
        """Take the next chunk of any size."""
        if self._closed or self._failed:
            raise TransferFailed("the receiver was closed", where=self._where)
        try:
            if not self._pending:
                with memoryview(chunk) as view:
                    done = self._frames(view)
                    self._pending += view[done:]
                return
            # In place: a sender of tiny chunks must not make us copy everything each time.
            self._pending += chunk
            with memoryview(self._pending) as view:
                done = self._frames(view)
            del self._pending[:done]
        except (Exception, Panic):
            # The rest of this stream can no longer be used.
            self._failed = True
            raise

    def finish(self) -> Staging:
        """Verify each new block by the checksums of the announced root; then it is complete."""
        if self._closed or self._failed:
            raise TransferFailed("the receiver was closed", where=self._where)
        if not self._ended or self._pending:
            raise stream_damaged(self._where, "it ended before it was complete")
        entry = self._state.entry
        assert entry is not None
        self._sync()
        try:
            base = self._base.root if self._base else None
            verify_added(self._store, base, entry.root, self.waiting, self._stream_bytes)
        except Damaged as error:
            # The received data cannot be completed by resuming from a checkpoint.
            self._failed = True
            self._next_address = self._stream_bytes = self._unkept_bytes = 0
            self._keep()
            raise stream_damaged(
                self._where,
                f"the received data is not what was announced: {error}",
                also=" If that fails, too, the source is damaged: 'mirrord volume check' there "
                "names the blocks.",
            ) from error
        self._keep(complete=True)
        return self._state.staging()

    def close(self) -> None:
        """Write a checkpoint if there is anything to keep, and close the data files."""
        if self._closed:
            return
        self._closed = True
        try:
            kept = self._state.complete or not self._unkept_bytes
            if self._begun and not kept and not self._unsynced:
                self._checkpoint()
        finally:
            self._store.close()

    def _frames(self, view: memoryview) -> int:
        """Process the complete frames; returns their length."""
        at = 0
        while (size := self._frame_size(view[at:])) is not None and at + size <= len(view):
            with view[at : at + size] as frame:
                self._frame(frame)
            at += size
        return at

    def _frame_size(self, view: memoryview) -> int | None:
        if len(view) < HEADER.size:
            return None
        magic, runs, blocks, text, _ = HEADER.unpack_from(view)
        if magic not in (HEAD, RUNS, DONE) or text > TEXT_BYTES_MAX:
            raise stream_damaged(self._where, "a frame has an unknown header")
        if runs > BLOCKS_PER_FRAME or blocks > BLOCKS_PER_FRAME:
            raise stream_damaged(self._where, "a frame exceeds the maximum size")
        return int(HEADER.size + runs * RUN.size + blocks * BLOCK_BYTES + text)

    def _frame(self, frame: memoryview) -> None:
        magic, runs, blocks, _, checksum = HEADER.unpack_from(frame)
        body = frame[HEADER.size :]
        if not body or sum_of(body) != checksum:
            raise stream_damaged(self._where, "a frame's checksum does not match")
        if self._ended or self._begun == (magic == HEAD):
            raise stream_damaged(self._where, "its frames are out of order")
        if magic == DONE:
            self._done(body)
            return
        self._checksum.update(frame[: HEADER.size])
        if magic == HEAD:
            self._head(body)
        self._stream_bytes += len(frame)
        if magic == RUNS:
            self._blocks_arrived(body, runs, blocks)

    def _head(self, body: memoryview) -> None:
        base, entry, start = parse_head(self._where, parse_text(self._where, bytes(body)))
        if entry.guid != self._state.snapshot.guid or base != self._state.base:
            raise stream_damaged(self._where, "it is not the snapshot that was announced")
        if not entry.intact:
            raise stream_damaged(self._where, "the snapshot's root does not match its digest")
        if start > self._state.next_address:
            raise stream_damaged(self._where, "it begins after the end of the data that is here")
        self._begun = True
        if start != self._state.next_address:
            self._stream_bytes = 0
        self._next_address = start
        self._keep(entry=entry, complete=False)

    def _blocks_arrived(self, body: memoryview, runs: int, blocks: int) -> None:
        table = list(RUN.iter_unpack(body[: runs * RUN.size]))
        data = body[runs * RUN.size :]
        if sum(count for _, count in table) != blocks or len(data) != blocks * BLOCK_BYTES:
            raise stream_damaged(self._where, "a frame's table does not match its blocks")
        entry = self._state.entry
        assert entry is not None
        at = 0
        for address, count in table:
            if not entry.root.names(address, count):
                raise stream_damaged(
                    self._where,
                    f"it has block {describe(address)}, which is not part of the snapshot",
                )
            if address < self._next_address or not number_of(address) or not count:
                raise stream_damaged(self._where, "its blocks are out of order")
            if self._collisions.make_room(address, count):
                piece = data[at * BLOCK_BYTES : (at + count) * BLOCK_BYTES]
                self._store.write("BLOCK:RECEIVE:WRITE", address, piece)
            # Only after the write: if it fails, the checkpoint must not include it.
            self._next_address = address + count
            at += count
        self._blocks += blocks
        self._unkept_bytes += len(body)
        if self._unkept_bytes >= self._checkpoint_bytes:
            self._checkpoint()

    def _done(self, body: memoryview) -> None:
        words = parse_text(self._where, bytes(body))
        if words != {"blocks": f"{self._blocks:016x}", "checksum": self._checksum.hexdigest()}:
            raise stream_damaged(self._where, "its trailer does not match the frames before it")
        self._ended = True
        self._stream_bytes += HEADER.size + len(body)

    def _checkpoint(self) -> None:
        """Make the blocks durable first, then the record that refers to them."""
        self._sync()
        self._unkept_bytes = 0
        self._keep()

    def _sync(self) -> None:
        """Make the blocks durable. After a failure the kernel may have dropped them, and the next
        sync would not say so: then only the last checkpoint counts.
        """
        try:
            self._store.sync("BLOCK:RECEIVE:SYNC")
        except BaseException:
            self._failed = self._unsynced = True
            raise

    def _keep(self, **changes: Any) -> None:
        """Record the position of the stream, and these changes."""
        state = replace(
            self._state,
            next_address=self._next_address,
            received_bytes=self._stream_bytes,
            **changes,
        )
        staging.store("BLOCK:RECEIVE:STATE", self._path, state)
        self._state = state


class Collisions:
    """Finds snapshots that still hold an arriving block, and deletes them where allowed."""

    def __init__(
        self, store: BlockStore, path: Path, record: RootRecord, state: StagingRecord
    ) -> None:
        self._store = store
        self._path = path
        self._base = state.base
        self._mirror_id = state.mirror_id
        self._guid = state.snapshot.guid
        self._at: tuple[int, int] | None = None
        self._bits = 0
        self._views: dict[str, MapView] = {}
        self._set_record(record)

    def make_room(self, address: int, count: int) -> bool:
        """Whether to write a run: not when the same snapshot is here already.

        Deletes snapshots that hold its blocks; `Refused` when one of them must be kept.
        """
        if self._present:
            return False
        while count:
            chunk, bit = divmod(number_of(address), CHUNK_BITS)
            taken = min(count, CHUNK_BITS - bit)
            mask = ((1 << taken) - 1) << bit
            while self._held(segment_of(address), chunk) & mask:
                self._drop((address, taken), segment_of(address), chunk, mask)
            address, count = address + taken, count - taken
        return True

    def _held(self, segment: int, chunk: int) -> int:
        if self._at != (segment, chunk):
            self._at = segment, chunk
            self._bits = held_bits(self._views.values(), segment, chunk)
        return self._bits

    def _drop(self, run: Run, segment: int, chunk: int, mask: int) -> None:
        holders = {key for key, view in self._views.items() if view.bits(segment, chunk) & mask}
        entries = [one for one in self._record.snapshots if one.guid in holders]
        for entry in entries:
            reason = self._why_kept(entry)
            if reason:
                raise _collision_error(str(self._path), run, f"'{entry.name}', {reason}")
        if "" in holders:
            raise _collision_error(str(self._path), run, "what the destination shows")
        with Volume.managed(self._path, "making room for an update") as volume:
            volume.drop_snapshots(holders)
            self._set_record(volume.record)

    def _why_kept(self, entry: Entry) -> str:
        if entry.guid == self._base:
            return "the base of this transfer"
        if entry.guid == self._record.shown:
            return "which the destination shows"
        if entry.owners:
            return "which a user took here"
        # What this mirror pinned does not count: it only needs the base.
        others = pinfiles.load(self._path / pinfiles.NAME, without=self._mirror_id)
        if pinned := of_snapshot(others, entry.guid):
            return f"which the mirror with the id {min(pinned)} has pinned"
        if entry.kind is SnapshotKind.DIVERGED:
            return "which keeps the losing side of a resync"
        return ""

    def _set_record(self, record: RootRecord) -> None:
        self._record = record
        self._at, self._bits = None, 0
        present = record.entry(self._guid)
        self._present = present is not None and present.intact
        self._views = {key: MapView(self._store, root) for key, root in record.roots.items()}


def _collision_error(where: str, run: Run, holder: str) -> Refused:
    return Refused(
        "the transfer needs blocks that are in use here",
        where=where,
        why=f"block {describe(run[0])} belongs to {holder}",
        hint="Nothing was overwritten. Copy what you need from that snapshot ('mirrord volume "
        f"export'), and delete it ('mirrord snapshots {MIRROR} --delete SNAPSHOT'; 'mirrord "
        "volume snapshot --delete' if a user took it), or initialize the mirror again at another "
        "location.",
    )


def open_state(path: Path, state: StagingRecord) -> StagingRecord:
    """The state of an earlier attempt of the same transfer, or the new one, now on disk."""
    found = staging.load(path, state.transfer_id)
    if found is not None and (found.snapshot.guid, found.base) == (state.snapshot.guid, state.base):
        return found
    staging.store("BLOCK:RECEIVE:STATE", path, state)
    return state
