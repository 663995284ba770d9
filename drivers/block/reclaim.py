"""Returning space to the file system: punches holes where nothing refers to a block.

This happens after the root record that freed the blocks, and is not needed for correctness: space
that a crash leaves unpunched is reused by the allocator.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrord.drivers.block import staging
from mirrord.drivers.block.activemap import MapView, Run, differing_chunks, merged, runs_of
from mirrord.drivers.block.format import CHUNK_BITS
from mirrord.drivers.block.image import LiveImage
from mirrord.drivers.block.rootrecord import Entry, RootRecord
from mirrord.drivers.block.store import BlockStore

_ALL = (1 << CHUNK_BITS) - 1


def punch_runs(store: BlockStore, runs: Iterable[Run]) -> None:
    """Punch holes."""
    for address, count in merged(runs):
        store.punch("BLOCK:RECLAIM:PUNCH", address, count)


def reclaim_snapshots(
    store: BlockStore, image: LiveImage, record: RootRecord, dropped: list[Entry]
) -> None:
    """Punch blocks that only the deleted snapshots held, and remove empty segments."""
    for entry in dropped:
        # A map block shared with a remaining root covers nothing that became free; the
        # snapshot closest in time shares the most.
        others = sorted(record.snapshots, key=lambda one: abs(one.order - entry.order))
        nearest = others[0].root if others else record.live
        view = MapView(store, entry.root)
        runs: list[Run] = []
        for segment, chunk, _, _ in differing_chunks(store, nearest, entry.root):
            bits = view.bits(segment, chunk)
            if bits:
                bits &= ~image.allocator.held_bits(segment, chunk)
                bits &= ~image.map.bits(segment, chunk)
                runs.extend(runs_of(segment, chunk, bits))
        punch_runs(store, runs)
    remove_empty_segments(store, record)


def reclaim_unheld(store: BlockStore, image: LiveImage) -> None:
    """Punch everything that no root holds, up to the end of the data files (left by an abandoned
    transfer); nothing while a transfer is staged, whose blocks no root holds yet. The time is
    proportional to the size of the data files.
    """
    if staging.transfer_ids(store.directory):
        return
    for segment, blocks in sorted(store.segments_on_disk().items()):
        runs: list[Run] = []
        for chunk in range(-(-blocks // CHUNK_BITS)):
            held = image.allocator.held_bits(segment, chunk) | image.map.bits(segment, chunk)
            runs.extend(runs_of(segment, chunk, ~held & _ALL))
        punch_runs(store, runs)


def remove_empty_segments(store: BlockStore, record: RootRecord) -> None:
    """Remove the data files of segments in which no root has a block any more; none while a
    transfer is staged, whose segments no root names yet.
    """
    if staging.transfer_ids(store.directory):
        return
    used = {record.segment, 0}
    for root in record.roots.values():
        used.update(one.segment for one in root.segments)
    for segment in store.segments_on_disk():
        if segment not in used:
            store.remove_segment("BLOCK:RECLAIM:SEGMENT", segment)
