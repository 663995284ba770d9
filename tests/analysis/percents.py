"""The results of a replay as the paper's figures have them, and as far as they can be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mirrord.analysis.results import GridResult, Replay


def percent(grid: GridResult, volume: str) -> float:
    """Figure 2: blocks transferred as a percentage of all block writes (0 without writes)."""
    written = int(grid.written.sum())
    return 100.0 * int(grid.blocks(volume).sum()) / written if written else 0.0


def percent_of_bytes(grid: GridResult, volume: str) -> float:
    """The same against a synchronous mirror that sends the exact bytes of each write."""
    sent = int(grid.blocks(volume).sum()) * grid.block
    return 100.0 * sent / int(grid.written_bytes.sum())


def totals(found: Replay) -> Replay:
    """All but the columns."""
    nothing: Any = None
    return replace(found, grids=(), writes_series=nothing)
