"""Parsing a ZFS send stream: which snapshot it has, where it ends, which blocks it contains.

`zfs recv` makes what it received visible at the moment when it reads the stream's END record. So a
receiver parses every record, and holds that one back until the update may become visible. The work
is done by native code (native/core/src/zfs_stream.rs): it verifies the running checksum of the
stream, and rejects impossible lengths.

One stream of one dataset is accepted, as `zfs send` generates it with or without `-i`. A package
(`-R`, `-I`, `-p`) is not: receiving one may rename, destroy and set properties.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from mirrord.system.native import ZfsStreamScanner

#: Of the features in a BEGIN record, by OpenZFS' numbers: it resumes an interrupted stream.
_RESUMING = 1 << 20


class Begin(NamedTuple):
    """The content of a stream's first record.

    toguid, fromguid: of the sent snapshot and of its base, as `zfs get guid` shows them; fromguid
        0: a full stream.
    toname: the snapshot's name at the sender, for people only.
    creation_s: when it was taken, by the sender's clock.
    features: OpenZFS' DMU_BACKUP_FEATURE_* bits; unknown ones are kept.
    flags: OpenZFS' DRR_FLAG_* bits.
    object_type: 2: a file system, 3: a volume.
    swapped: the sender has the other byte order.
    """

    toguid: int
    fromguid: int
    toname: str
    creation_s: int
    features: int
    flags: int
    object_type: int
    swapped: bool

    @property
    def resuming(self) -> bool:
        """Whether it resumes an interrupted stream of the same snapshot."""
        return bool(self.features & _RESUMING)

    @property
    def volume(self) -> bool:
        """Whether it is of a volume, not of a file system."""
        return self.object_type == 3


class ObjectChange(NamedTuple):
    """What a stream does to one object (in a file system: a file, a directory or an internal
    object; in a volume object 1 is the content).

    kind: OpenZFS' type of the object: 19 a file, 20 a directory, 23 a volume's content; 0: unknown.
    block_bytes: its block size; 0: unknown.
    added: disjoint, ordered (start, end) in bytes: blocks that are in the incremental only.
    freed: the same: ranges without data now, or always. An end of 2**64 - 1: to the end.
    payload_bytes: new content as it is sent, compressed where the stream is.
    """

    number: int
    kind: int
    block_bytes: int
    added: list[tuple[int, int]]
    freed: list[tuple[int, int]]
    payload_bytes: int


class ZfsScanner:
    """Parses a stream that is passed in chunks of any size.

    collect: record the changes, for `objects`: about 16 bytes for each run of blocks.
    """

    def __init__(self, *, collect: bool = False) -> None:
        self._native = ZfsStreamScanner(collect)
        self._begin: Begin | None = None
        self._held = b""

    def feed(self, chunk: bytes | memoryview) -> list[bytes | memoryview]:
        """Take the next chunk. Returns what may be passed on now, in order: all that is verified
        to be before the END record. A partial record (312 bytes) is kept here until it is complete.

        ValueError: it is no stream, or damaged, or continues after its end; then nothing of the
        chunk may be passed on, and nothing after it is accepted. A payload is passed on before its
        checksum arrives, which is in the header of the next record.
        """
        before = self._native.stream_bytes - len(self._held)
        self._native.feed(chunk)
        passable = self._native.passable - before
        held, size = self._held, len(chunk)
        from_chunk = max(0, passable - len(held))
        passed: list[bytes | memoryview] = []
        if passable > 0 and held:
            passed.append(held[:passable])
        if from_chunk:
            passed.append(chunk if from_chunk == size else memoryview(chunk)[:from_chunk])
        self._held = held[passable:] + bytes(memoryview(chunk)[from_chunk:])
        return passed

    @property
    def begin(self) -> Begin | None:
        """The content of the first record; None until it has arrived completely."""
        if self._begin is None and (found := self._native.begin) is not None:
            guids, name, facts = found[:2], os.fsdecode(found[2]), found[3:7]
            self._begin = Begin(*guids, name, *facts, swapped=found[7])
        return self._begin

    @property
    def ended(self) -> bool:
        """Whether the END record has arrived, and its checksums match all that precedes it."""
        return self._native.ended

    @property
    def end_record(self) -> bytes:
        """The END record, held back; b"" until the stream has `ended`."""
        return self._held if self.ended else b""

    @property
    def stream_bytes(self) -> int:
        """The length of the stream so far, including what is held back."""
        return self._native.stream_bytes

    def objects(self) -> list[ObjectChange]:
        """The change of each object, by number; empties the collection."""
        return [ObjectChange(*found) for found in self._native.objects()]

    def freed_objects(self) -> list[tuple[int, int]]:
        """Disjoint, ordered (first, end): numbers of objects that do not exist (any more)."""
        return self._native.freed_objects()
