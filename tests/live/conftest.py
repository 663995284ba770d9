"""A pair of ends for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.system import native
from tests.live.command import Mirror
from tests.live.lab import Pair


@pytest.fixture(scope="session")
def program() -> Path:
    return Path(native.live_program())


@pytest.fixture
def pair(program: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A parameter is what reads and writes the images (`--io`)."""
    pair = Pair(program, tmp_path)
    if io := getattr(request, "param", ""):
        pair.primary.options += ["--io", io]
        pair.secondary.options += ["--io", io]
    try:
        yield pair
    finally:
        pair.stop()


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    mirror = Mirror(tmp_path)
    try:
        yield mirror
    finally:
        mirror.close()
