"""The documents for developers lead to code that exists."""

from __future__ import annotations

import ast
import re

from tests.support.unit import ROOT

DOCUMENTS = [
    ROOT / "docs/architecture.md",
    ROOT / "docs/recovery.md",
    *(ROOT / "docs").glob("drivers-*.md"),
]
TEXT = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / "mirrord" / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_the_functions_of_an_update_are_there() -> None:
    named = re.findall(r"`([a-z_/]+\.py)` `([a-z_]+)`", TEXT)
    assert len(named) > 12
    assert [(path, name) for path, name in named if name not in functions(path)] == []


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", TEXT))
    folders = ("mirrord", "drivers", "schedules", "traces", "analysis", "tests")
    found = [path.relative_to(ROOT) for name in folders for path in (ROOT / name).rglob("*.py")]
    every = {f"/mirrord/{path}" for path in found} | {f"/{path}" for path in found}
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in every)] == []
