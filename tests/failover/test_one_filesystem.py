"""Both ends on one file system: `btrfs receive` finds the source's copy of a base there, too."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.core.errors import Diverged
from mirrord.system.paths import Paths
from tests.support import btrfs
from tests.support.verbs import Service
from tests.support.world import NAME


class Both(NamedTuple):
    """A mirror within one file system."""

    service: Service
    home: Path

    def end(self, which: str) -> Path:
        place = Path(getattr(self.service.status(NAME)[0].reading, which).removeprefix("btrfs:"))
        return place if place == self.home else place / "current"

    def in_step(self) -> bool:
        return btrfs.digest(self.end("source")) == btrfs.digest(self.end("destination"))


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    with btrfs.folders() as (here, _):
        home = btrfs.make_subvolume(here / "home")
        btrfs.fill(home)
        service = Service(Paths(tmp_path / "etc", tmp_path / "state", tmp_path / "run"))
        service.create(NAME, f"btrfs:{home}", f"btrfs:{here / 'copy'}")
        service.initialize(NAME)
        yield Both(service, home)
        service.close()


def test_a_mirror_lives_through_all_verbs(both: Both) -> None:
    service = both.service
    for round_ in range(2):
        btrfs.change(both.end("source"), 10 * round_ + 1)
        service.update(NAME)
        assert both.in_step()
        service.reverse(NAME, yes=True)
        btrfs.change(both.end("source"), 10 * round_ + 2)
        service.update(NAME)
        assert both.in_step()
        service.break_off(NAME)
        btrfs.change(both.end("destination"), 10 * round_ + 3)
        btrfs.change(both.end("source"), 10 * round_ + 4)
        service.resync(NAME, yes=True)
        assert both.in_step()
        service.break_off(NAME)
        btrfs.change(both.end("destination"), 10 * round_ + 5)
        service.reverse(NAME, yes=True)
        assert both.in_step()
        btrfs.change(both.end("source"), 10 * round_ + 6)
        service.restore_all(NAME, snapshot=None, yes=True)
        assert both.in_step()


def test_a_copy_of_the_base_that_was_changed_is_not_started_from(both: Both) -> None:
    """Somebody has made the source's copy writable for a while."""
    both.service.reverse(NAME, yes=True)
    store = both.end("source").parent / ".mirrord" / "current" / "snapshots"
    [copy] = [path for path in store.glob("*/*") if path.is_dir()]
    before = btrfs.digest(both.end("destination"))
    for value in ("false", "true"):
        words = ["btrfs", "property", "set", "-f", "-ts", str(copy), "ro", value]
        subprocess.run(words, check=True)
        if value == "false":
            (copy / "foreign").write_text("changed")
    btrfs.change(both.end("source"), 1)
    with pytest.raises(Diverged):
        both.service.update(NAME)
    assert btrfs.digest(both.end("destination")) == before
