"""Style as a test: sizes, docstrings, leftovers, links."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

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


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """Parsed once for all that judge it: that is most of the time they take."""
    return ast.parse(text_of(path))


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All of them, however deep."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        # (No expression contains a definition.)
        left += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]


def test_there_is_something_to_check() -> None:
    assert len(tracked(".py")) > 30


def test_modules_are_short() -> None:
    lines = {name_of(path): len(text_of(path).splitlines()) for path in tracked(".py", ".rs")}
    assert {name: count for name, count in lines.items() if count > MODULE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    lines = {
        f"{name_of(path)}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in tracked(".py")
        for node in functions_of(tree_of(path))
    }
    assert len(lines) > 5000
    assert {name: count for name, count in lines.items() if count > FUNCTION_LINES_MAX} == {}


def test_nothing_is_left_to_do() -> None:
    words = re.compile(
        r"\b({})\b".format("|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]))
    )
    paths = tracked(".py", ".rs", ".sh")
    assert [name_of(path) for path in paths if words.search(text_of(path))] == []


#: The end of a command of the shell, before a path, or the name of a dataset.
_COMMAND = re.compile(
    r"\b(mkdir -p|chmod \d+|mount|mount --bind|mv|ls -l|ssh-add|ssh-keygen -lf|fuser -vm|echo 0 >|"
    r"btrfs (subvolume|property|qgroup) [a-z]+( -\w+)?|zfs (mount|create -p|set \w+=\w+)|"
    r"mirrord (volume check|volume create)) $"
)


def test_paths_in_commands_that_are_shown_are_quoted() -> None:
    """They are copied to a shell, and may contain spaces."""
    bare, quoted = [], 0
    for path in tracked(".py"):
        if path.is_relative_to(ROOT / "tests"):
            continue
        strings = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.JoinedStr))
        for before, value in (pair for node in strings for pair in pairwise(node.values)):
            if not (isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue)):
                continue
            if _COMMAND.search(str(before.value)):
                quoted += "quote(" in ast.unparse(value)
                if "quote(" not in ast.unparse(value):
                    bare.append(f"{name_of(path)}:{value.lineno}: {before.value!r}")
    assert bare == [] and quoted >= 15


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
