"""Style as a test: sizes, docstrings, leftovers, links."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
BLOB_BYTES_MAX = 256 << 10


def tracked(*endings: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    paths = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    found = [p for p in paths if p.is_file() and not p.is_symlink()]
    return [p for p in found if p.suffix in endings] if endings else found


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(tracked(".py")) > 30


@pytest.mark.parametrize("path", tracked(".py", ".rs"), ids=name_of)
def test_modules_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MODULE_LINES_MAX


@pytest.mark.parametrize("path", tracked(".py"), ids=name_of)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", tracked(".py", ".rs", ".sh"), ids=name_of)
def test_nothing_is_left_to_do(path: Path) -> None:
    words = "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"])
    assert not re.search(rf"\b({words})\b", path.read_text())


def test_no_blob_is_large() -> None:
    for path in tracked():
        assert path.stat().st_size <= BLOB_BYTES_MAX, name_of(path)


def test_links_in_documents_lead_somewhere() -> None:
    for path in tracked(".md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{name_of(path)}: {target}"


def test_every_error_code_is_documented() -> None:
    from tests.unit.test_vocabulary import all_errors

    documented = (ROOT / "docs/errors.md").read_text()
    for each in all_errors():
        assert f"`{each.code}`" in documented


def test_every_command_is_documented() -> None:
    from mirrord.cli.table import commands

    documented = (ROOT / "docs/commands.md").read_text()
    for name in commands():
        assert f"mirrord {name}" in documented
