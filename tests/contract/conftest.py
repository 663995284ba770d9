"""Runs the conformance suite on every kind of volume that has a lab."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.lab import Lab

LABS = sorted(path.stem for path in Path(__file__).parent.glob("lab_*.py"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lab" in metafunc.fixturenames:
        assert LABS, "no lab was found: the conformance suite would test nothing"
        metafunc.parametrize("lab", LABS, indirect=True)


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    name = f"tests.contract.{request.param}"
    module = sys.modules.get(name)
    if module is None:
        module = importlib.import_module(name)
    with module.lab(tmp_path) as made:
        yield made
