"""A snapshot that two mirrors of a source share: it is there while either needs it, and no longer.

Both run in one process, as in a daemon. `two` begins its update first and reaches its snapshot
later: it uses the one that `one` has taken meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.control.shared import Shared
from mirrord.core.errors import HookFailed, MirrordError, TransferFailed
from mirrord.core.model import Snapshot
from mirrord.core.results import Result
from mirrord.engine import update
from mirrord.engine.mirror import Mirror
from mirrord.engine.progress import RunFiles
from mirrord.engine.ship import ship as really_ship
from tests.contract.lab import Lab
from tests.support.places import beside, driver_at
from tests.support.service import until
from tests.support.verbs import Service
from tests.support.world import World

pytestmark = pytest.mark.in_process


class Pair:
    """The mirrors `one` and `two`. two: the result of its last update, or its failure."""

    def __init__(self, world: World, lab: Lab) -> None:
        self._world, self._lab = world, lab
        self._shared = Shared()
        self.service = Service(world.paths, shared=self._shared)
        for name in ("one", "two"):
            place = beside(lab.destination(), name)
            self.service.create(name, str(lab.source()), place, keep_source=1, keep_destination=2)
            self.service.initialize(name)
        self.reached, self.free = threading.Event(), threading.Event()
        self.two: Result | MirrordError | None = None
        self._thread = threading.Thread(target=self._update_two)

    def hook(self, name: str, program: str) -> None:
        """Run a line of shell before each of the mirror's transfers."""
        file = self._world.paths.mirrors / f"{name}.toml"
        file.write_text(
            f"{file.read_text()}\n[site.primary.hooks]\n"
            f'before_transfer = ["/bin/sh", "-c", "{program}"]\n'
        )

    def _update_two(self) -> None:
        service = Service(self._world.paths, shared=self._shared)
        try:
            self.two = service.update("two")
        except MirrordError as error:
            self.two = error
        finally:
            service.close()

    def begin_two(self) -> None:
        """Begin its update, up to its snapshot."""
        self._thread.start()
        assert self.reached.wait(60)

    def end_two(self) -> None:
        """Wait for the end of its update."""
        self.free.set()
        self._thread.join()

    def change(self, seed: int) -> None:
        self._lab.change(self._lab.source(), seed)

    def in_step(self, name: str) -> bool:
        there = driver_at(self._lab, beside(self._lab.destination(), name))
        return self._lab.content(there) == self._lab.content(self._lab.source())

    def kept(self, name: str) -> int:
        """How many snapshots the mirror's destination has."""
        return len(driver_at(self._lab, beside(self._lab.destination(), name)).snapshots())

    def names(self) -> set[str]:
        """Of the source's snapshots."""
        return {one.name for one in self._lab.source().snapshots()}


@pytest.fixture
def pair(world: World, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair(world, lab)
    take = Mirror.take_snapshot

    def late(mirror: Mirror, name: str, **more: Any) -> Snapshot:
        if mirror.name == "two":
            made.reached.set()
            assert made.free.wait(60)
        return take(mirror, name, **more)

    monkeypatch.setattr(Mirror, "take_snapshot", late)
    yield made
    made.free.set()
    made.service.close()


def test_it_is_kept_until_the_transfer_of_the_other_mirror_begins(
    pair: Pair, tmp_path: Path
) -> None:
    runs, ends = tmp_path / "runs", tmp_path / "ends"
    pair.hook("two", f"touch {runs}; until test -e {ends}; do sleep 0.02; done")
    pair.change(1)
    pair.begin_two()
    pair.service.update("one")
    pair.free.set()
    until(runs.exists)
    for seed in (2, 3):  # keep_source is 1
        pair.change(seed)
        pair.service.update("one")
    ends.touch()
    pair.end_two()
    assert isinstance(pair.two, Result) and pair.two.status == "done", pair.two
    for seed in (4, 5):
        pair.change(seed)
        for name in ("two", "one"):
            pair.service.update(name)
            assert pair.in_step(name)
    assert len(pair.names()) == 2
    assert max(map(pair.kept, ("one", "two"))) <= 2, "at the destinations it is pruned as well"


def test_one_that_was_deleted_with_a_failed_run_is_not_used(pair: Pair) -> None:
    pair.hook("one", "false")
    pair.change(1)
    pair.begin_two()
    with pytest.raises(HookFailed):
        pair.service.update("one")
    pair.end_two()
    assert isinstance(pair.two, Result) and pair.two.status == "done", pair.two
    assert pair.in_step("two")


@pytest.mark.parametrize("gone", [True, False])
def test_the_last_mirror_that_has_it_deletes_it_also_after_a_failure(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    begun, fails = threading.Event(), threading.Event()

    def ship(*words: Any, run: RunFiles, **more: Any) -> Any:
        if not fails.is_set() and Path(run.lock).name.startswith("two"):
            begun.set()
            assert fails.wait(60)
            raise TransferFailed("the disk is gone")
        return really_ship(*words, run=run, **more)

    monkeypatch.setattr(update, "ship", ship)
    pair.change(1)
    pair.begin_two()
    before = pair.names()
    pair.service.update("one")
    [shared] = pair.names() - before
    pair.free.set()
    assert begun.wait(60)
    if gone:
        pair.service.delete("one", yes=True, keep_snapshots=False)
        assert shared in pair.names()
    fails.set()
    pair.end_two()
    assert isinstance(pair.two, TransferFailed)
    for seed in (2, 3):
        pair.change(seed)
        for name in ("two",) if gone else ("two", "one"):
            pair.service.update(name)
            assert pair.in_step(name)
    assert shared not in pair.names()
