"""The shape of what the verbs share: few fields each, and no phase of a cycle gets all of it."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest

from mirrord.engine import cycle, ship
from mirrord.engine.mirror import Mirror
from mirrord.engine.parts import Ends, Relation, RunContext
from tests.support.unit import ROOT

FIELDS_MAX = 6
#: A record without a type: what reads it has to know its keys.
UNTYPED = re.compile(r"\b(dict|Mapping)\[str, (Any|object)\]")


@pytest.mark.parametrize("kind", [Mirror, Relation, Ends, RunContext])
def test_each_has_few_fields(kind: type) -> None:
    fields = getattr(kind, "_fields", None) or vars(kind)["__slots__"]
    assert 1 < len(fields) <= FIELDS_MAX


@pytest.mark.parametrize("module", [cycle, ship])
def test_a_phase_of_the_cycle_takes_what_it_needs(module: ModuleType) -> None:
    functions = [one for one in vars(module).values() if inspect.isfunction(one)]
    own = [one for one in functions if one.__module__ == module.__name__]
    assert own
    for one in own:
        taken = {str(word.annotation) for word in inspect.signature(one).parameters.values()}
        assert taken.isdisjoint({"Mirror", "RunContext"}), one.__name__


@pytest.mark.parametrize("room", ["engine", "scheduler", "daemon"])
def test_records_have_types(room: str) -> None:
    folder = ROOT / "mirrord"
    files = sorted((folder / room).rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(folder)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if UNTYPED.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("room", ["core", "catalogue"])
def test_records_are_quick_to_load(room: str) -> None:
    """Annotations that are text would be compiled one by one for each NamedTuple, at each start."""
    slow = [
        file.name
        for file in (ROOT / "mirrord" / room).glob("*.py")
        if "(NamedTuple" in (text := file.read_text(encoding="utf-8"))
        and "from __future__ import annotations" in text
    ]
    assert slow == []
