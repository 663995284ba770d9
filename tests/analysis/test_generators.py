"""Generated workloads have the answers that they say, and the replay finds them."""

from __future__ import annotations

import numpy as np
import pytest

from mirrord.analysis.grids import fixed
from mirrord.analysis.replay import replay
from mirrord.core.errors import UsageError
from mirrord.traces.generators import Files, HotSpots, LogAndDatabase, Sequential, Workload
from mirrord.traces.model import BLOCK, Batch, Op
from tests.analysis.percents import percent

EXACT = 1e-12


@pytest.mark.parametrize(
    ("workload", "intervals", "tolerance"),
    [
        (Sequential(10_000, 700, 3600), (60, 300, 900, 3600), EXACT),
        (LogAndDatabase(12), (60, 120, 240, 720), EXACT),
        (LogAndDatabase(10, period_s=30, appends=0, repeats=9), (30, 60, 90), EXACT),
        (Files(30), (60, 120, 600), EXACT),
        (Files(9, early=0, file_blocks=300), (60, 180), EXACT),
        # Expected values: as many draws as these are within a hundredth of them.
        (HotSpots(600_000, 20_000, 3600), (60, 300, 1800), 0.01),
        (HotSpots(600_000, 5_000, 3600, skew=0, volumes=4), (60, 300), 0.01),
        (HotSpots(600_000, 50_000, 3600, skew=1.5), (60, 1200), 0.01),
        (HotSpots(100, 1, 3600, volumes=100), (60,), 0.01),
    ],
    ids=lambda value: value.facts.name if hasattr(value, "facts") else None,
)
def test_known_answers(workload: Workload, intervals: tuple[int, ...], tolerance: float) -> None:
    grids = [fixed(seconds) for seconds in intervals]
    found = replay(workload.batches(), workload.facts, grids)
    assert found.records == workload.records
    for result, seconds in zip(found.grids, intervals, strict=True):
        known = workload.share(seconds)
        for name in ("update_in_place", "active_map"):
            share = percent(result, name) / 100
            assert share == pytest.approx(getattr(known, name), rel=tolerance), (seconds, name)


@pytest.mark.parametrize(
    "workload", [HotSpots(5000, 100, 60), LogAndDatabase(3), Files(5), Sequential(5000, 7, 9)]
)
def test_same_records_again_in_any_batches(workload: Workload) -> None:
    def columns(rows: int) -> list[np.ndarray]:
        batches = list(workload.batches(rows))
        assert max(map(len, batches)) <= rows
        return [np.concatenate([getattr(b, name) for b in batches]) for name in Batch.__slots__]

    once, again = columns(1 << 20), columns(1 << 20)
    split = columns(1 << 20 if isinstance(workload, HotSpots) else 97)
    assert all(
        (a == b).all() and (a == c).all() for a, b, c in zip(once, again, split, strict=True)
    )
    assert (np.diff(once[0]) >= 0).all()
    assert (once[3] >= 0).all()


def test_hot_blocks_are_spread() -> None:
    """Zipf: the most popular blocks get their part, and do not lie side by side."""
    [batch] = HotSpots(500_000, 1000, 60, skew=1.2).batches()
    assert set(batch.op.tolist()) == {Op.WRITE}
    counts = np.bincount(batch.offset // BLOCK, minlength=1000)
    first, second = np.argsort(counts)[:-3:-1].tolist()
    assert counts[first] / counts[second] == pytest.approx(
        (2**0.2 - 1) / 2**0.2 / ((3**0.2 - 2**0.2) / 6**0.2), rel=0.02
    )
    assert abs(first - second) > 100
    assert (counts > 0).all()


def test_what_cannot_be_drawn() -> None:
    for wrong in (
        lambda: HotSpots(0, 1, 1),
        lambda: HotSpots(1, 1, 1, skew=1),
        lambda: LogAndDatabase(1, appends=9),
        lambda: Files(1, early=51),
        lambda: Files(1).share(90),
        lambda: Files(99).share(60 * 11),
        lambda: Sequential(1, 0, 1),
    ):
        with pytest.raises(UsageError):
            wrong()
