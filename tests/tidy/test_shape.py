"""The shape of what the verbs share: few fields each, and no phase of a cycle gets all of it."""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType

import pytest

from mirrord.engine import cycle, ship
from mirrord.engine.mirror import Ends, Mirror, Relation, RunContext

FIELDS_MAX = 6


@pytest.mark.parametrize("kind", [Mirror, Relation, Ends, RunContext])
def test_each_has_few_fields(kind: type) -> None:
    assert len(dataclasses.fields(kind)) <= FIELDS_MAX


@pytest.mark.parametrize("module", [cycle, ship])
def test_a_phase_of_the_cycle_takes_what_it_needs(module: ModuleType) -> None:
    functions = [one for one in vars(module).values() if inspect.isfunction(one)]
    own = [one for one in functions if one.__module__ == module.__name__]
    assert own
    for one in own:
        taken = {str(word.annotation) for word in inspect.signature(one).parameters.values()}
        assert taken.isdisjoint({"Mirror", "RunContext"}), one.__name__
