"""Stories of one mirror with all verbs, and one seeded bug for each rule."""

from __future__ import annotations

import pytest

from tests.sim.bugs import BUGS, Bug
from tests.sim.events import Event, events_of
from tests.sim.place import scratch
from tests.sim.telling import fails, shrink, tell

#: So many stories in each run of the tests; more at night (`python -m tests.sim --stories`).
SEEDS = 60
EVENTS = 30
#: A bug is met within so many stories; it knows one, as long as stories stay what they are.
_SOON = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_random_sequences_of_verbs_keep_the_invariants(first: int) -> None:
    for seed in range(first, first + 10):
        assert fails(events_of(seed, EVENTS)) is None, f"--stories --seed {seed}"


def test_the_same_seed_gives_the_same_sequence() -> None:
    with scratch() as one, scratch() as other:
        first, second = (tell(events_of(3, EVENTS), folder) for folder in (one, other))
    assert first.history == second.history
    assert first.lines == second.lines


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.put(monkeypatch)
    seeds = [*range(bug.seed, _SOON), *range(bug.seed)]
    found = (fails(events_of(seed, EVENTS)) for seed in seeds)
    assert any(violation is not None and bug.rule in str(violation) for violation in found)


def test_a_story_that_fails_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    [bug] = [bug for bug in BUGS if bug.name == "what was live is dropped unproven"]
    bug.put(monkeypatch)
    events = events_of(0, EVENTS)
    short = shrink(events)
    assert fails(short) is not None
    assert len(short) <= 4 < len(events)
    assert all(isinstance(event, Event) for event in short)
