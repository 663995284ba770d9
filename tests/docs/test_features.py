"""The feature table in README: every cell names a test, and every named test is there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.unit import ROOT

_NOTHING = ("no", "by hand", "the same")


def rows() -> list[list[str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    part = text.partition("## What each kind of volume can do")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith(("| ", "|-"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named() -> list[str]:
    return sorted({name for row in rows()[2:] for name in re.findall(r"`(tests/[^`]+)`", str(row))})


def test_the_table_has_the_three_kinds_side_by_side() -> None:
    assert rows()[0] == ["", "btrfs", "ZFS", "block"]
    assert len(rows()) > 15


@pytest.mark.parametrize("row", rows()[2:], ids=lambda row: str(row[0]))
def test_each_cell_names_a_test_or_says_no(row: list[str]) -> None:
    assert len(row) == 4
    for cell in row[1:]:
        assert "`tests/" in cell or cell.startswith(_NOTHING), cell
    assert not row[1].startswith("the same")


@pytest.mark.parametrize("name", named())
def test_each_named_test_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert (ROOT / file).exists(), file
    if function:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
