"""Traces for tests of the reports: generated ones with known answers, stored as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mirrord.analysis.assess import Terms
from mirrord.analysis.cost import Choice, best_links, candidates
from mirrord.analysis.grids import fixed
from mirrord.analysis.numbers import Workload, from_replay
from mirrord.analysis.prices import Prices
from mirrord.analysis.replay import replay
from mirrord.traces import generators
from mirrord.traces.store import TraceWriter

#: Bounds of semi-synchronous mirrors: the defaults of `Terms`.
BOUNDS_S = Terms().bounds_s
INTERVALS_S = (60, 300, 900, 1800, 3600, 21600, 43200, 86400)
#: Monday 2024-01-01 07:00 UTC.
MORNING_NS = 1_704_092_400 * 10**9


def stored(folder: Path, source: generators.Workload, name: str, *, dated: bool = False) -> Path:
    """A generated workload as a stored trace called `name`."""
    path = folder / f"{name}.parquet"
    facts = replace(source.facts, name=name, epoch_ns=MORNING_NS if dated else None)
    with TraceWriter(path, facts, durable=False) as writer:
        for batch in source.batches():
            writer.write(batch)
    return path


def workload(source: generators.Workload, name: str, *, dated: bool = False) -> Workload:
    """A generated workload, replayed by the default intervals."""
    facts = replace(source.facts, name=name, epoch_ns=MORNING_NS if dated else None)
    grids = [fixed(seconds) for seconds in INTERVALS_S]
    return from_replay(replay(source.batches(), facts, grids, bounds_s=BOUNDS_S), facts)


def two() -> list[Workload]:
    """Two workloads: hot spots over two hours with a date, files with trims without one."""
    hot = generators.HotSpots(40_000, 3_000, 7300)
    return [workload(hot, "hot", dated=True), workload(generators.Files(90), "files")]


def choices(workload: Workload, terms: Terms, prices: Prices) -> list[Choice]:
    """All modes of mirroring this workload, each on its best link."""
    return best_links(candidates(workload, terms, prices))
