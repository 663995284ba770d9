"""Switches by the product's verbs under a program that writes, with both ends on the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.drivers.contract import Driver
from tests.contract.zfs import zfs_lab
from tests.failover.switches import Game
from tests.zfsvm.bridge import Bridged

pytestmark = pytest.mark.zfs

#: Between two lines: a verb is refused while the file is open.
_PAUSE_S = 0.05


class ZfsGame(Game):
    """The same game; the writer runs in the machine, at whichever end takes its lines."""

    def __init__(self, world: Bridged, seed: int) -> None:
        self.guest, self._log = world.guest, f"/var/tmp/{world.lab.name}.acknowledged"
        super().__init__(world, Path(self._log), seed)
        self.views = [driver.facts().view for driver in self.ends()]
        self.writer = self.guest.user("write_lines", self.views, self._log, False, _PAUSE_S)
        while not self.acknowledged():
            time.sleep(0.5)

    def acknowledged(self) -> set[int]:
        return self._numbers(self._log)

    def read(self, driver: Driver, guid: str | None) -> set[int]:
        if guid is None:
            return self._numbers(driver.facts().view)
        [path] = [one.path for one in driver.snapshots() if one.guid == guid]
        return self._numbers(path)

    def _numbers(self, place: str) -> set[int]:
        found = self.guest.user("lines", [place])
        return {int(line.removeprefix("line ")) for line in found}


@pytest.fixture
def played(tmp_path: Path) -> Iterator[ZfsGame]:
    with zfs_lab(volume=False, large=False) as lab:
        world = Bridged(lab, tmp_path)
        world.initialized()
        made = ZfsGame(world, seed=7)
        try:
            yield made
        finally:
            lab.guest.user("kill", made.writer)
            world.clean_up()


@pytest.mark.nightly
def test_no_acknowledged_line_is_lost(played: ZfsGame) -> None:
    while played.switches < 5:
        played.switch()
    assert len(played.acknowledged()) > 5
    for view in played.views:
        assert played.guest.user("below_mountpoint", view) == []
