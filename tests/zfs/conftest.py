"""A mirror on real pools that things happen to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.zfs import ZfsLab, zfs_lab
from tests.support.world import NAME, World
from tests.zfsvm.bridge import Bridge


class Trouble(World):
    """A mirror of a file system, reached through a bridge; `place` is its destination."""

    lab: ZfsLab

    def __init__(self, lab: ZfsLab, folder: Path) -> None:
        self.bridge = Bridge(lab.guest, folder)
        lab.host = self.bridge.host
        super().__init__(lab, folder / "home")
        self.run = lab.guest.run
        self.source = lab.source().location

    def mirrored(self, place: str = "") -> Trouble:
        """Initialized to that dataset."""
        self.place = place or self.lab.destination().location
        self.service.create(NAME, f"zfs://there/{self.source}", f"zfs://there/{self.place}")
        self.service.initialize(NAME)
        return self

    def change(self, seed: int = 1) -> None:
        self.lab.change(self.lab.source(), seed)

    def shown(self) -> str:
        return self.lab.content(self.lab.driver(self.place))

    def update(self) -> object:
        return self.service.update(NAME)

    def goes_on(self) -> None:
        """The next update brings everything."""
        self.update()
        assert self.shown() == self.source_content()
        assert self.status()["healthy"]

    def clean_up(self) -> None:
        super().clean_up()
        self.bridge.close()


@pytest.fixture
def trouble(tmp_path: Path) -> Iterator[Trouble]:
    with zfs_lab(volume=False, large=False) as lab:
        made = Trouble(lab, tmp_path)
        yield made
        made.clean_up()
