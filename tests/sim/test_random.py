"""Fleets of seeds that nobody has tried before: other ones with each run of the tests."""

from __future__ import annotations

import secrets

import pytest

from tests.sim.__main__ import main

#: So many in each run, of some 2 s of a processor each.
SEEDS = 15
_PLAN = ("--mirrors", "40", "--hours", "8")


@pytest.mark.parametrize("number", range(SEEDS))
def test_a_fleet_of_a_random_seed(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", str(secrets.randbelow(1 << 32)), *_PLAN]
    failed = main(words)
    output = capsys.readouterr()
    assert not failed, f"{output.err}again: python -m tests.sim {' '.join(words)}"
    assert "checks of views" in output.out
