"""Fixtures for all: a fresh lab of each kind of volume, and a world with a mirror in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.system import clock, steps
from tests.contract.lab import Lab
from tests.support.labs import LABS, PRODUCT_LABS, open_lab
from tests.support.sshd import Sshd, running
from tests.support.world import DaemonWorld, RemoteWorld, World

WAYS = ("process", "daemon", "push", "pull")


#: With one end on another host: which.
AWAY = {"push": "destination", "pull": "source"}


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
def world(lab: Lab, way: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made: World
    if way in AWAY:
        made = RemoteWorld(lab, tmp_path / "home", request.getfixturevalue("host"), AWAY[way])
    else:
        made = {"process": World, "daemon": DaemonWorld}[way](lab, tmp_path / "home")
    yield made
    made.clean_up()


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Another host: a real sshd, which lets one key in."""
    with running(tmp_path_factory.mktemp("host") / "sshd") as made:
        yield made


@pytest.fixture(autouse=True)
def nobody_observes() -> Iterator[None]:
    yield
    steps.observe(None)
    clock.use(None)
