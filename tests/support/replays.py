"""What tests and benchmarks of the analysis share."""

from __future__ import annotations

from mirrord.analysis.grids import Grid
from mirrord.analysis.recorded import Modes
from mirrord.core.live import Mode

#: A single update at the end of a trace.
WHOLE = Grid("one update at the end", boundaries=())


def balanced_accuracy(observed: Modes, foreseen: Modes, span: tuple[int, int]) -> float:
    """How well one course of modes foresees the other: the mean of the shares of the time in sync,
    and out of sync, in which both agree on that. Times of one unit, and from one zero.
    """
    places = sorted({span[0], *(at for at, _ in (*observed, *foreseen) if span[0] < at < span[1])})
    agreed, total = {True: 0, False: 0}, {True: 0, False: 0}
    for at, end in zip(places, [*places[1:], span[1]], strict=True):
        is_sync = _at(observed, at) in (Mode.SYNC, Mode.STRICT_SYNC)
        total[is_sync] += end - at
        if (_at(foreseen, at) in (Mode.SYNC, Mode.STRICT_SYNC)) is is_sync:
            agreed[is_sync] += end - at
    parts = [agreed[each] / total[each] for each in (True, False) if total[each]]
    return sum(parts) / len(parts)


def _at(modes: Modes, at: int) -> Mode:
    return next((mode for begin, mode in reversed(modes) if begin <= at), modes[0][1])
