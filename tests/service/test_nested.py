"""A volume with nested subvolumes that the daemon updates by its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import Busy
from tests.contract.lab_nested import INNER
from tests.service.conftest import Served, serving
from tests.support import btrfs
from tests.support.service import until
from tests.support.world import NAME


@pytest.fixture
def served_nested(tmp_path: Path) -> Iterator[Served]:
    yield from serving("lab_nested", tmp_path)


def test_the_daemon_updates_by_the_schedule_before_and_after_a_reverse(
    served_nested: Served,
) -> None:
    served = served_nested
    served.initialized(schedule="every 1s")
    source = Path(served.lab.source().facts().view)
    btrfs.make_subvolume(source / INNER / "new")
    (source / INNER / "new/file").write_text("by the schedule")
    until(served.in_step, 60)

    def is_reversed() -> bool:
        try:
            return served.service.reverse(NAME, yes=True).status == "done"
        except Busy:
            return False  # an update is running

    until(is_reversed, 60)
    there = Path(served.lab.destination().facts().view)
    (there / INNER / "new/file").write_text("the other way round")
    until(served.in_step, 60)
    assert (source / INNER / "new/file").read_text() == "the other way round"
    assert served.row()["state"] == "mirrored" and served.row()["healthy"]
