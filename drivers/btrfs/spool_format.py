"""The format of a spool file: a header that describes the transfer, then slots of the stream.

4 KiB        the header: JSON with a checksum
1 MiB each   slots: a header with number, length, checksum of the slot, and BLAKE3 digest of the
             stream up to its end; then the stream's bytes. Only the last slot may be partly filled.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from typing import Any

from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.system.native import StreamChecksum

SLOT_BYTES = 1 << 20
HEAD_BYTES = _ALIGN_BYTES = 4096
_MAGIC = b"mrspool1"
_HEAD = struct.Struct("<8sI16s")
#: magic, length, number, digest of the stream up to here, checksum of all that and the bytes.
_SLOT = struct.Struct("<4sIQ32s16s")
_SLOT_MAGIC = b"slot"
SLOT_HEADER_BYTES = _SLOT.size
_SUMMED_BYTES = SLOT_HEADER_BYTES - 16
PAYLOAD_BYTES = SLOT_BYTES - SLOT_HEADER_BYTES
#: How many slots at the end are checked to find the last valid one: more than are ever not durable
#: (`LAG_BYTES` of spool.py).
_CHECKED_SLOTS = 10


def last_good(descriptor: int, size: int) -> tuple[int, str, int]:
    """How many full slots precede the last valid one, with its digest and length."""
    end = max(0, -(-(size - HEAD_BYTES) // SLOT_BYTES))
    while end > 0:
        start = max(0, end - _CHECKED_SLOTS)
        last: tuple[int, str, int] | None = None
        for number in range(start, end):
            slot = read_slot(descriptor, number)
            if slot is None:
                break
            last = number, slot[1], len(slot[0])
            if len(slot[0]) < PAYLOAD_BYTES:
                break
        if last is not None:
            return last
        end = start
    return 0, "", 0


def _summed(header: bytes | memoryview, payload: bytes | memoryview) -> bytes:
    checksum = StreamChecksum()
    checksum.update(header)
    checksum.update(payload)
    return bytes.fromhex(checksum.hexdigest())


def read_slot(descriptor: int, number: int) -> tuple[memoryview, str] | None:
    """The payload of a slot and the digest of the stream up to its end; None when not valid."""
    slot = memoryview(os.pread(descriptor, SLOT_BYTES, slot_at(number)))
    if len(slot) <= SLOT_HEADER_BYTES:
        return None
    magic, length, stored_number, digest, checksum = _SLOT.unpack_from(slot)
    payload = slot[SLOT_HEADER_BYTES : SLOT_HEADER_BYTES + length]
    if magic != _SLOT_MAGIC or stored_number != number or len(payload) != length:
        return None
    if _summed(slot[:_SUMMED_BYTES], payload) != checksum:
        return None
    return payload, digest.hex()


def seal_slot(slot: memoryview, number: int, length: int, digest: str) -> memoryview:
    """Fill in the header of a slot that has its payload. Returns the part to be written, padded to
    complete blocks.
    """
    payload = slot[SLOT_HEADER_BYTES : SLOT_HEADER_BYTES + length]
    _SLOT.pack_into(slot, 0, _SLOT_MAGIC, length, number, bytes.fromhex(digest), bytes(16))
    slot[_SUMMED_BYTES:SLOT_HEADER_BYTES] = _summed(slot[:_SUMMED_BYTES], payload)
    end = SLOT_HEADER_BYTES + length
    slot[end : _aligned(end)] = bytes(_aligned(end) - end)
    return slot[: _aligned(end)]


def slot_at(number: int) -> int:
    """Where a slot begins."""
    return HEAD_BYTES + number * SLOT_BYTES


def read_head(descriptor: int) -> tuple[str | None, Snapshot] | None:
    """The base and the snapshot of a spool; None when its header is not valid."""
    data = os.pread(descriptor, HEAD_BYTES, 0)
    if len(data) < HEAD_BYTES:
        return None
    magic, length, checksum = _HEAD.unpack_from(data)
    text = data[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or _summed(b"", text) != checksum:
        return None
    header = json.loads(text)
    guid, name, kind, order, taken_at_ns = header["snapshot"]
    return header["base"], Snapshot(guid, name, SnapshotKind(kind), order, taken_at_ns)


def head_of(request: ReceiveRequest) -> bytes:
    """The header for the spool of a request; OSError when the names are too long."""
    one = request.snapshot
    words: dict[str, Any] = {
        "base": request.base,
        "snapshot": [one.guid, one.name, one.kind.value, one.order, one.taken_at_ns],
    }
    text = json.dumps(words).encode()
    head = _HEAD.pack(_MAGIC, len(text), _summed(b"", text)) + text
    if len(head) > HEAD_BYTES:
        raise OSError(errno.ENAMETOOLONG, "the names are too long for a spool")
    return head.ljust(HEAD_BYTES, b"\0")


def end_of(full: int, used: int) -> int:
    """The size of a file with `full` full slots and one with `used` bytes."""
    return HEAD_BYTES + full * SLOT_BYTES + (_aligned(SLOT_HEADER_BYTES + used) if used else 0)


def _aligned(length: int) -> int:
    """The length rounded up to complete blocks."""
    return -(-length // _ALIGN_BYTES) * _ALIGN_BYTES
