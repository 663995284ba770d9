"""Fixtures for all: a fresh lab of each kind of volume, and a world with a mirror in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.system import clock, steps
from tests.contract.lab import Lab
from tests.support.labs import LABS, PRODUCT_LABS, open_lab
from tests.support.world import DaemonWorld, World

WAYS = ("process", "daemon")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lab" in metafunc.fixturenames:
        bare = "contract" in metafunc.definition.path.parts
        labs = LABS if bare else PRODUCT_LABS
        if bare and metafunc.definition.get_closest_marker("in_process") is not None:
            # Steps are seen in their own process only.
            labs = [name for name in labs if not name.startswith("lab_remote")]
        assert labs, "no lab was found: the suite would test nothing"
        metafunc.parametrize("lab", labs, indirect=True)
    if "world" in metafunc.fixturenames and "integration" in metafunc.definition.path.parts:
        # The life cycle is the same whether this process does the work or a daemon.
        ways = WAYS if metafunc.definition.get_closest_marker("in_process") is None else WAYS[:1]
        metafunc.parametrize("way", ways)


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    large = request.node.get_closest_marker("large") is not None
    with open_lab(request.param, tmp_path, large=large) as made:
        yield made


@pytest.fixture
def way() -> str:
    return WAYS[0]


@pytest.fixture
def world(lab: Lab, way: str, tmp_path: Path) -> Iterator[World]:
    made = {"process": World, "daemon": DaemonWorld}[way](lab, tmp_path / "home")
    yield made
    made.clean_up()


@pytest.fixture(autouse=True)
def nobody_observes() -> Iterator[None]:
    yield
    steps.observe(None)
    clock.use(None)
