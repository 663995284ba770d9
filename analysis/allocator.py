"""A no-overwrite volume without the active map: the physical blocks written before an update.

The volume allocates as WAFL does, in sweeps: a cursor passes over the physical blocks and allocates
each free one; at the end it starts again. A block is free if neither the file system nor the base
snapshot of the mirror uses it. So all blocks that were free at the start of an interval are
allocated before any block is used twice, and which blocks these are does not matter: an interval of
W block writes that began with F free blocks has written min(W, F) different ones. This is exact
(tests simulate the sweep block by block), and needs no table of physical blocks.

Contents of the volume: at the beginning all of its logical blocks, and free blocks, whose share of
all is `free_space`. A block that is written for the first time replaces an existing one; a trimmed
one is free once no base uses it, until it is written again. If there is no room for both the base
and the new blocks, the volume grows by the missing blocks at that update, permanently; such an
update sends all blocks in the active map. See docs/analysis.md.
"""

from __future__ import annotations

import numpy as np

from mirrord.analysis.results import Column


def physical_blocks_written(
    written: Column, active: Column, live: Column, volume_blocks: int, free_space: float
) -> Column:
    """Different physical blocks written in each interval of one volume.

    written: block writes; active: blocks written that are in the active map at the end; live:
    change of the number of blocks in use; one entry per interval, in order. volume_blocks: blocks
    in use at the beginning; free_space: share of the physical blocks, 0 to below 1.
    """
    free = int(volume_blocks * free_space / (1.0 - free_space))
    held = volume_blocks + np.cumsum(live) - live
    # The volume has grown by the blocks that were missing at earlier updates.
    size = np.maximum.accumulate(np.concatenate(([volume_blocks + free], held + active)))[:-1]
    physical: Column = np.minimum(written, np.maximum(size - held, active))
    return physical
