"""A volume with nested subvolumes whose application is paused: one moment of it in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.core.pause import decoded
from tests.pausers.conftest import VOLUMES, Group
from tests.support import btrfs
from tests.support.service import until
from tests.support.stripes import FILE, WRITER, is_prefix, numbers

CYCLES = 5


@pytest.fixture
def home(group: Group) -> Path:
    """A subvolume with one nested for each file of the writer."""
    made = btrfs.make_subvolume(group.here / "home")
    for name in VOLUMES:
        btrfs.make_subvolume(made / name)
        (made / name / FILE).touch()
    return made


def test_each_snapshot_is_a_prefix_and_its_spread_is_within_the_pause(
    group: Group, home: Path
) -> None:
    destination = group.there / "home"
    pause = f"cgroup:{group.app.name}"
    group.service.create(
        "nested", f"btrfs:{home}", f"btrfs:{destination}", nested=True, pause=pause
    )
    group.settings_of("nested", 'pause_max = "10s"')
    group.app.python(WRITER, "50", "0", *(home / name / FILE for name in VOLUMES))
    until(lambda: (home / "c" / FILE).stat().st_size > 0)
    group.service.initialize("nested")
    counts = []
    for _ in range(CYCLES):
        group.service.update("nested")
        found = numbers([destination / "current" / name for name in VOLUMES])
        assert is_prefix(found), "a write is missing that was acknowledged before another"
        counts.append(len(found))
        row = group.service.history("nested", limit=1).transfers[0]
        report = decoded(row.pause)
        assert report is not None and row.spread_ms is not None
        assert row.spread_ms <= report.longest_ms, (row.spread_ms, report)
    assert counts == sorted(set(counts)), "each has more than the one before"
    assert not group.app.asked() and not group.records()
