"""The send stream: the blocks that are in use in the incremental only, by ascending address.

A stream is a sequence of frames. Each has a header of 24 bytes (magic, number of runs, blocks,
bytes of text, XXH3-64 of what follows), then its table of runs, its blocks, its text:

- `HEAD`: text is JSON: format version, volume, base, the incremental's table entry, the first
  address. First.
- `RUNS`: up to 256 blocks in up to 256 runs (address and count, 8 bytes each), then the blocks.
- `DONE`: text is JSON: blocks in this stream, XXH3-128 of all frame headers. Last.

It is deterministic. The checkpoint of an interrupted receive is the next address; a stream that
begins there has the same content from there on.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from mirrord.core.errors import MirrordError, TransferFailed
from mirrord.core.model import BlockStates, Changes, Delta
from mirrord.drivers.block.activemap import Run, added_runs
from mirrord.drivers.block.format import BLOCK_BYTES, Root, number_of, segment_of, sum_of
from mirrord.drivers.block.rootrecord import Entry
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.refusals import checkpoint_useless, stream_damaged
from mirrord.drivers.streams import SendStream
from mirrord.system.native import StreamChecksum

#: Version 1: the first.
VERSION = 1
HEADER = struct.Struct("<4sIIIQ")
RUN = struct.Struct("<QQ")
#: Object, offset, length: see `Changes`.
CHANGE = struct.Struct("<QQQ")
HEAD, RUNS, DONE = b"HEAD", b"RUNS", b"DONE"
#: Blocks in a frame: 1 MiB.
BLOCKS_PER_FRAME = 256
TEXT_BYTES_MAX = 1 << 20


def text_frame(magic: bytes, words: dict[str, Any]) -> bytes:
    """A frame that holds JSON."""
    text = json.dumps(words, sort_keys=True).encode()
    return HEADER.pack(magic, 0, 0, len(text), sum_of(text)) + text


def head_frame(volume: str, base: str | None, entry: Entry, start: int) -> bytes:
    """The first frame. start: the address from which on blocks follow."""
    words = {"version": VERSION, "volume": volume, "base": base, "start": f"{start:016x}"}
    return text_frame(HEAD, {**words, "block_bytes": BLOCK_BYTES, "entry": entry.as_dict()})


def done_frame(blocks: int, checksum: str) -> bytes:
    """The last frame, which has a constant length."""
    return text_frame(DONE, {"blocks": f"{blocks:016x}", "checksum": checksum})


class BlockSendStream(SendStream):
    """Reads the blocks of a delta in large runs. See the module's docstring for the format."""

    def __init__(
        self, path: Path, volume: str, base: Entry | None, entry: Entry, start: int
    ) -> None:
        self._store = BlockStore(path, writable=False)
        self._frames = self._made(volume, base, entry, start)
        self._closed = False

    def read(self) -> bytes | memoryview:
        """The next frame."""
        if self._closed:
            raise TransferFailed("the stream was closed", where=self._store.where)
        return next(self._frames, b"")

    def close(self) -> None:
        """Close the data files."""
        self._closed = True
        self._store.close()

    def _made(
        self, volume: str, base: Entry | None, entry: Entry, start: int
    ) -> Iterator[bytes | memoryview]:
        checksum, blocks = StreamChecksum(), 0
        head = head_frame(volume, base.guid if base else None, entry, start)
        checksum.update(head[: HEADER.size])
        yield head
        added = added_runs(self._store, base.root if base else None, entry.root)
        for runs in frames_of(runs_from(added, start)):
            frame = self._frame(runs)
            checksum.update(frame[: HEADER.size])
            blocks += sum(count for _, count in runs)
            yield frame
        yield done_frame(blocks, checksum.hexdigest())

    def _frame(self, runs: list[Run]) -> memoryview:
        blocks = sum(count for _, count in runs)
        at = HEADER.size
        frame = memoryview(bytearray(at + len(runs) * RUN.size + blocks * BLOCK_BYTES))
        for run in runs:
            RUN.pack_into(frame, at, *run)
            at += RUN.size
        for address, count in runs:
            self._store.read_into(address, frame[at : at + count * BLOCK_BYTES])
            at += count * BLOCK_BYTES
        checksum = sum_of(frame[HEADER.size :])
        HEADER.pack_into(frame, 0, RUNS, len(runs), blocks, 0, checksum)
        return frame


def start_of(checkpoint: Mapping[str, int | str] | None, where: str) -> int:
    """The first address of a stream that resumes there; `CheckpointUseless`."""
    start = (checkpoint or {}).get("address", 0)
    if not isinstance(start, int):
        raise checkpoint_useless(where, f"{start!r:.60} is not an address")
    return start


def runs_from(runs: Iterator[Run], start: int) -> Iterator[Run]:
    """The part of ascending runs that is at or after an address."""
    for address, count in runs:
        if address >= start:
            yield address, count
        elif address + count > start:
            yield start, address + count - start


def frames_of(runs: Iterator[Run]) -> Iterator[list[Run]]:
    """Split runs into frames, each full except the last."""
    frame: list[Run] = []
    room = BLOCKS_PER_FRAME
    for address, count in runs:
        while count:
            taken = min(count, room)
            frame.append((address, taken))
            address, count, room = address + taken, count - taken, room - taken
            if not room:
                yield frame
                frame, room = [], BLOCKS_PER_FRAME
    if frame:
        yield frame


def delta_of(store: BlockStore, volume: str, base: Entry | None, entry: Entry) -> Delta:
    """The four block states and the stream's exact length (FAST'02, 3.2.2).

    The blocks that are neither in base nor incremental are counted up to the highest number
    that either ever used, because the volume has no fixed number of blocks.
    """
    old = base.root if base is not None else None
    ends = list(accumulate(count for _, count in added_runs(store, old, entry.root)))
    added = ends[-1] if ends else 0
    frames = -(-added // BLOCKS_PER_FRAME)
    # A run is split where a frame is full.
    full_frames = sum(not end % BLOCKS_PER_FRAME for end in ends)
    entries = len(ends) + added // BLOCKS_PER_FRAME - full_frames
    texts = len(head_frame(volume, base.guid if base else None, entry, 0))
    texts += len(done_frame(0, "0" * 32))
    unchanged = entry.root.allocated - added
    deleted = (old.allocated if old is not None else 0) - unchanged
    capacity = _capacity(old, entry.root)
    return Delta(
        base=base.guid if base else None,
        incremental=entry.guid,
        block_size=BLOCK_BYTES,
        states=BlockStates(capacity - unchanged - deleted - added, unchanged, deleted, added),
        added_bytes=added * BLOCK_BYTES,
        send_bytes=texts + frames * HEADER.size + entries * RUN.size + added * BLOCK_BYTES,
        exact=True,
    )


def changes_of(store: BlockStore, base: Entry, entry: Entry) -> Changes:
    """The blocks in use in only one of the two. Addresses in segment 0 are block numbers."""
    return Changes(
        _packed(added_runs(store, base.root, entry.root)),
        _packed(added_runs(store, entry.root, base.root)),
    )


def _packed(runs: Iterator[Run]) -> bytes:
    return b"".join(
        CHANGE.pack(segment_of(address), number_of(address) * BLOCK_BYTES, count * BLOCK_BYTES)
        for address, count in runs
    )


def parse_text(where: str, text: bytes) -> dict[str, Any]:
    """The JSON of a text frame. `Damaged`."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise stream_damaged(where, f"a header is malformed ({error})") from error
    if not isinstance(words, dict):
        raise stream_damaged(where, "a header is malformed")
    return words


def parse_head(where: str, words: dict[str, Any]) -> tuple[str | None, Entry, int]:
    """Base, entry and first address of a stream; the entry's root is checked for plausibility.
    `Damaged`.
    """
    if words.get("version") != VERSION or words.get("block_bytes") != BLOCK_BYTES:
        raise stream_damaged(where, f"its version {words.get('version')} is not supported")
    try:
        entry = Entry.from_dict(words["entry"])
        entry.root.check()
        return words["base"], entry, int(words["start"], 16)
    except (ArithmeticError, ValueError, KeyError, TypeError, MirrordError) as error:
        raise stream_damaged(where, f"its first header is malformed ({error})") from error


def _capacity(old: Root | None, new: Root) -> int:
    highs: dict[int, int] = {}
    for root in (old, new):
        for one in root.segments if root is not None else ():
            highs[one.segment] = max(highs.get(one.segment, 1), one.high)
    return sum(high - 1 for high in highs.values())
