"""One attacked host for all of them; fresh folders on btrfs for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.world import Host
from tests.support import btrfs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/security" in str(item.path) and "root" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.platform)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("host"))
    yield made
    made.close()


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder on btrfs with `backup` (what peers are given), `private` (what they are not), and
    the subvolume `home`.
    """
    with btrfs.folders() as (made, _):
        for name in ("backup", "private"):
            (made / name).mkdir()
        (made / "private/secret").write_text("nobody's business")
        (made / "private/secret").chmod(0o600)
        btrfs.make_subvolume(made / "home")
        (made / "home/file").write_text("first")
        yield made
