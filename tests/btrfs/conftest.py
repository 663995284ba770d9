"""A source volume and the place of its destination, on the file systems that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirrord.system import steps
from tests.btrfs.pair import Pair
from tests.support import btrfs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/btrfs" in str(item.path):
            item.add_marker(pytest.mark.platform)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with btrfs.folders() as (here, there):
        btrfs.make_subvolume(here / "home")
        btrfs.fill(here / "home")
        yield Pair(here / "home", there / "backup")
        steps.observe(None)
