"""Two real btrfs file systems for the session, and a fresh pair of places for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.system import steps
from tests.btrfs.pair import Pair
from tests.support import btrfs

_number = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/btrfs" in str(item.path):
            item.add_marker(pytest.mark.platform)


@pytest.fixture(scope="session")
def filesystems() -> Iterator[tuple[Path, Path]]:
    with btrfs.filesystem(size_mib=3072) as one, btrfs.filesystem(size_mib=3072) as other:
        yield one, other


@pytest.fixture
def pair(filesystems: tuple[Path, Path]) -> Iterator[Pair]:
    number = next(_number)
    here, there = (filesystem / f"test{number}" for filesystem in filesystems)
    here.mkdir()
    there.mkdir()
    btrfs.make_subvolume(here / "home")
    btrfs.fill(here / "home")
    yield Pair(here / "home", there / "backup")
    steps.observe(None)
