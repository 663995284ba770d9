"""The rate of a copy follows the definition while the command that ordered it waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.config.hosts import Hosts
from mirrord.core.live import LiveStatus
from mirrord.core.results import Silent
from mirrord.drivers.live import Live
from mirrord.engine.progress import RunFiles
from mirrord.live.mirror import Book, LiveMirror
from mirrord.system import clock
from tests.live.test_policies import TEXT
from tests.unit.ticking import Hand

MIB = 1 << 20


class Copying:
    """A primary that copies until then."""

    def __init__(self, hand: Hand, until_s: float) -> None:
        self._hand, self.until_s = hand, until_s
        self.rates: list[int] = []

    def live_status(self) -> LiveStatus:
        is_done = self._hand.passed_s >= self.until_s
        rate = self.rates[-1] if self.rates else 0
        return LiveStatus(mode="sync", connected=True, in_sync=is_done, copy_rate=rate)

    def live_resync(self) -> None:
        """It copies anyway."""

    def live_copy_rate(self, rate: int) -> None:
        self.rates.append(rate)


@pytest.fixture
def hand() -> Iterator[Hand]:
    made = Hand()
    clock.use(made)
    yield made
    clock.use(None)


def copying(folder: Path, throttle: str, primary: Copying) -> LiveMirror:
    write(folder, throttle)
    definitions, run = Definitions(folder), RunFiles(folder, "db")
    row = cast(Catalogue, SimpleNamespace())
    book = Book(definitions, row, cast(Hosts, None), "UTC", "host")
    end = cast(Live, primary)
    return LiveMirror(definitions.load("db"), end, end, book, run, Silent())


def write(folder: Path, throttle: str) -> None:
    text = TEXT.format(policy="sync").replace("policy =", f"throttle = '{throttle}'\npolicy =")
    (folder / "db.toml").write_text(text)


def test_a_copy_has_the_rate_of_each_hour(tmp_path: Path, hand: Hand) -> None:
    """It is 22:13 at its beginning."""
    primary = Copying(hand, 180)
    mirror = copying(tmp_path, "2MiB/s 08:00-22:14, 4MiB/s 22:15-06:00, else 3MiB/s", primary)
    mirror.copy(mirror.source, mirror.destination)
    assert primary.rates == [2 * MIB, 3 * MIB, 4 * MIB]


def test_a_rate_that_is_set_meanwhile_is_not_undone(tmp_path: Path, hand: Hand) -> None:
    primary = Copying(hand, 60)
    mirror = copying(tmp_path, "2MiB/s", primary)
    write(tmp_path, "5MiB/s")  # as 'mirrord throttle' does
    mirror.copy(mirror.source, mirror.destination)
    assert primary.rates == [5 * MIB]
    (tmp_path / "db.toml").write_text("not a definition")
    primary.until_s += 60
    mirror.copy(mirror.source, mirror.destination)
    assert primary.rates == [5 * MIB]
