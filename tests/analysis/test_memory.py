"""Memory does not grow with the length of a trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from mirrord.analysis.replay import COLUMNS
from mirrord.traces.model import NO_LATENCY, Batch, Facts
from mirrord.traces.store import TraceFile, TraceWriter

GROUPS, GROUP = 60, 50_000


def test_a_stored_trace_is_read_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    random = np.random.default_rng(1)
    with TraceWriter(path, Facts("long", "none", ("v",)), group_rows=GROUP) as writer:
        for group in range(GROUPS):
            writer.write(
                Batch(
                    np.arange(group * GROUP, (group + 1) * GROUP, dtype=np.int64),
                    np.zeros(GROUP, np.uint32),
                    np.zeros(GROUP, np.uint8),
                    random.integers(0, 1 << 36, GROUP) // 4096 * 4096,
                    np.full(GROUP, 4096, np.int64),
                    np.full(GROUP, NO_LATENCY, np.int64),
                )
            )
    assert path.stat().st_size > 10_000_000
    before = pa.total_allocated_bytes()
    held, records = [], 0
    for batch in TraceFile(path).batches(COLUMNS, rows=GROUP):
        records += len(batch)
        held.append(pa.total_allocated_bytes())
    # At most a few groups, never all that was read of the file.
    assert records == GROUPS * GROUP
    assert max(held) - before < 6_000_000, [each - before for each in held]
