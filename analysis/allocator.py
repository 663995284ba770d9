"""A no-overwrite volume without the active map: which physical blocks an update finds written.

The volume allocates as WAFL does, in sweeps: a cursor goes through the physical blocks and takes
each one that is free; at the end it begins again. A block is free if neither the file system holds
it nor the base snapshot of the mirror. So all that was free when an interval began is taken before
any block comes for a second time, and which blocks these are does not matter: an interval of W
block writes that began with F free blocks has written min(W, F) different ones. That is exact
(tests simulate the sweep block by block), and takes no table of physical blocks.

What the volume holds: at the beginning each of its blocks, and besides them free ones, of which
`free_space` says the share of all. A block that is written for the first time replaces one that was
there; a trimmed one is free once no base holds it, until it is written again. If the base and the
new blocks find no room beside each other, the volume grows by what is missing, at that update, and
stays so; such an update sends all that the active map has. See docs/analysis.md.
"""

from __future__ import annotations

import numpy as np

from mirrord.analysis.results import Column


def physical_blocks_written(
    written: Column, active: Column, live: Column, volume_blocks: int, free_space: float
) -> Column:
    """Different physical blocks written in each interval of one volume.

    written: block writes; active: blocks written that the active map has at the end; live: change
    of the number of blocks that hold something; one entry per interval, in order. volume_blocks:
    what the volume holds at the beginning; free_space: share of the physical blocks, 0 to below 1.
    """
    free = int(volume_blocks * free_space / (1.0 - free_space))
    held = volume_blocks + np.cumsum(live) - live
    # The volume has grown by what earlier updates found missing.
    size = np.maximum.accumulate(np.concatenate(([volume_blocks + free], held + active)))[:-1]
    physical: Column = np.minimum(written, np.maximum(size - held, active))
    return physical
