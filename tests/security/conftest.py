"""One attacked host and one btrfs file system for all of them; fresh folders for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.world import Host
from tests.support import btrfs

_number = itertools.count()


@pytest.fixture(scope="session")
def filesystem() -> Iterator[Path]:
    with btrfs.filesystem(size_mib=1024) as mount:
        yield mount


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("host"))
    yield made
    made.close()


@pytest.fixture
def root(filesystem: Path) -> Path:
    """A folder on btrfs with `backup` (what peers are given), `private` (what they are not), and
    the subvolume `home`.
    """
    made = filesystem / f"test{next(_number)}"
    for name in ("backup", "private"):
        (made / name).mkdir(parents=True)
    (made / "private/secret").write_text("nobody's business")
    (made / "private/secret").chmod(0o600)
    btrfs.make_subvolume(made / "home")
    (made / "home/file").write_text("first")
    return made
