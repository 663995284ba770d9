"""A command is declared in one file: nothing else is edited for it to be everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.unit import ROOT

_REHEARSE = '''"""Count to a number, as a rehearsal.

Panel: Other 9

Counts, and does nothing else; see the [guide](operator-guide.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from mirrord.control.command import MirrorName, Option, Right, Service, command


class Counted(NamedTuple):
    name: str
    numbers: tuple[int, ...]


def _shown(found: Counted, _arguments: Mapping[str, Any]) -> Iterator[str]:
    for number in found.numbers:
        yield f"{found.name}: {number}"


@command(Right.READ, text=_shown)
def rehearse(
    service: Service,
    name: MirrorName,
    *,
    times: Annotated[int, Option("How far to count.", "N", most=9)] = 2,
) -> Counted:
    return Counted(name, tuple(range(1, times + 1)))
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of mirrord that has one more file."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "mirrord", folder / "mirrord", ignore=shutil.ignore_patterns("*.pyc"))
    place = folder / "mirrord/control/commands/rehearse.py"
    place.write_text(_REHEARSE, encoding="utf-8")
    return folder


def environment(tree: Path, **more: str) -> dict[str, str]:
    paths = f"{tree}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, "MIRRORD_HOME": str(tree / "home"), **more}


def run(tree: Path, *words: str, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *words],
        env=environment(tree, **more),
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_has_it(tree: Path) -> None:
    assert "  rehearse  " in run(tree, "-m", "mirrord", "--help")
    assert "How far to count." in run(tree, "-m", "mirrord", "rehearse", "--help")
    shown = run(tree, "-m", "mirrord", "rehearse", "home", "--times", "3")
    assert shown == "home: 1\nhome: 2\nhome: 3\n"
    found = json.loads(run(tree, "-m", "mirrord", "rehearse", "home", "--json"))
    assert found == {"name": "home", "numbers": [1, 2]}


def test_completion_has_it(tree: Path) -> None:
    shown = run(
        tree,
        "-m",
        "mirrord",
        _MIRRORD_COMPLETE="complete_bash",
        COMP_WORDS="mirrord reh",
        COMP_CWORD="1",
    )
    assert shown.split() == ["rehearse"]


def test_the_socket_has_it(tree: Path) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-P", "-m", "mirrord", "daemon"], env=environment(tree), cwd=tree
    )
    try:
        path = tree / "home/run/status.sock"
        request = ["--unix-socket", str(path), "-d", '{"name": "home", "times": 1}']
        patience = ["--retry", "60", "--retry-all-errors", "--retry-delay", "1"]
        shown = subprocess.check_output(
            ["curl", "-s", *patience, *request, "http://mirrord/v2/rehearse"], text=True
        )
        assert json.loads(shown) == {"result": {"name": "home", "numbers": [1]}}
        # And a client knows what it gets.
        assert run(tree, "-m", "mirrord", "rehearse", "x", "--times", "1") == "x: 1\n"
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0


def test_the_documents_and_the_manual_page_have_it(tree: Path) -> None:
    folder = tree / "made"
    run(tree, "-m", "tests.docs.documents", "--to", str(folder))
    text = (folder / "docs/commands.md").read_text()
    assert "### rehearse\n\n`mirrord rehearse NAME`\n\nCounts, and does" in text
    assert "| `--times N` | How far to count. (default: 2) |" in text
    row = "| `rehearse` | status | `name` (string), `times` (integer, optional) | report |"
    assert row in (folder / "docs/api.md").read_text()
    manual = (folder / "packaging/man/mirrord.1").read_text()
    assert '.SS "mirrord rehearse NAME"' in manual
    assert "\\-\\-times N" in manual
