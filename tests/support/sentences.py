"""Documents whose numbered sentences name their tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def numbered(document: str) -> list[str]:
    """The names of the sentences of a document, such as K1. Each letter counts from 1 without a
    gap, and nothing else is set in bold like one.
    """
    text = (ROOT / document).read_text()
    names = re.findall(r"^- \*\*([A-Z]\d+)\*\* ", text, re.MULTILINE)
    assert len(names) == len(set(names)) > 30
    assert len(names) == len(re.findall(r"\*\*[A-Z]\d+\*\*", text))
    for letter in {name[0] for name in names}:
        numbers = [int(name[1:]) for name in names if name[0] == letter]
        assert numbers == list(range(1, len(numbers) + 1)), letter
    return names


def assert_there(tests: Iterable[tuple[str, str]]) -> None:
    """Each (file, test) is a test in that file."""
    for file, test in tests:
        nodes = ast.walk(ast.parse((ROOT / file).read_text()))
        assert test.startswith("test_")
        assert test in {n.name for n in nodes if isinstance(n, ast.FunctionDef)}, (file, test)
