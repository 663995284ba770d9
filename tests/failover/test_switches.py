"""Switches under a writer, a few of them (`python -m tests.failover.switches`: hundreds)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failover.switches import game


@pytest.mark.parametrize("kind", ["btrfs", "block"])
def test_no_acknowledged_line_is_lost(tmp_path: Path, kind: str) -> None:
    with game(kind, tmp_path, seed=7) as played:
        # (On a busy host the writer may be slower than the switches.)
        while played.switches < 12 or len(played.acknowledged()) <= 12:
            played.switch()
