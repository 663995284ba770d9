"""Groups over hosts: cuts, kills and delays in each phase, and seeded bugs."""

from __future__ import annotations

import pytest

from tests.sim.groups.bugs import BUGS, Bug
from tests.sim.groups.events import Fault, Turn, turns_of
from tests.sim.groups.simulate import shrink, simulate, violation
from tests.sim.place import scratch

#: So many seeds in each run of the tests; more at night (`python -m tests.sim --groups`).
SEEDS = 40
TURNS = 5
#: A bug is met within so many.
_SOON = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_a_group_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + 10):
        assert violation(seed, turns_of(seed, TURNS)) is None, f"--groups --seed {seed}"


def test_a_set_is_deleted_once_the_host_that_was_cut_off_is_back() -> None:
    """Found here: the command after the next one knew nothing of it, and its snapshots stayed."""
    cut = Fault("cut", "one", "ENGINE:PAUSE:TAKEN", 0.0, 20.0)
    turns = [Turn(630505269, ()), Turn(811293682, (cut,)), Turn(600618217, ())]
    assert violation(1436, turns) is None


def test_one_seed_is_one_run() -> None:
    with scratch() as one, scratch() as other:
        first, second = (simulate(3, turns_of(3, TURNS), folder) for folder in (one, other))
    assert first == second


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.put(monkeypatch)
    seeds = [*range(bug.seed, _SOON), *range(bug.seed)]
    found = (violation(seed, turns_of(seed, TURNS)) for seed in seeds)
    assert any(one is not None and bug.rule in str(one) for one in found)


def test_what_fails_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[0].put(monkeypatch)
    assert shrink(0, turns_of(0, TURNS)) == []  # it fails without any fault
