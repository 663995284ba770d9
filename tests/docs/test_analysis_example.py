"""The example of the analysis: its commands print what it says, and its pictures are theirs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.traces import TRACES_FOLDER, real
from tests.support.unit import ROOT

TEXT = (ROOT / "docs/analysis-example.md").read_text(encoding="utf-8")
#: Each command with the lines that it prints there.
COMMANDS = [
    (lines[0][2:], lines[1:])
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for lines in (part.splitlines() for part in re.split(r"\n(?=\$ )", block.strip()))
]


def test_the_example_has_its_commands() -> None:
    verbs = [command.split()[1:3] for command, _ in COMMANDS]
    assert verbs == [
        *[["trace", "import"]] * 4,
        ["analyze", "reduction"],
        ["analyze", "risk"],
        ["analyze", "compare"],
    ]


def test_every_picture_is_shown() -> None:
    shown = set(re.findall(r"\]\((analysis/[^)]+)\)", TEXT))
    assert shown == {
        str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs/analysis").iterdir()
    }


@pytest.mark.skipif(TRACES_FOLDER is None, reason="the example is of the real traces")
def test_the_commands_print_what_is_written(tmp_path: Path) -> None:
    for name in re.findall(r"\S+\.zst", " ".join(command for command, _ in COMMANDS)):
        (tmp_path / name).symlink_to(real(name))
    for command, said in COMMANDS:
        words = [sys.executable, "-m", "mirrord", *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if said:
            assert done.stdout.splitlines() == said, command
    kept = json.loads((ROOT / "docs/analysis/reduction.json").read_text())
    made = json.loads((tmp_path / "report/reduction.json").read_text())
    assert [each["name"] for each in made["traces"]] == [each["name"] for each in kept["traces"]]
    for one, other in zip(made["traces"], kept["traces"], strict=True):
        for here, there in zip(one["intervals"], other["intervals"], strict=True):
            assert here["percent"] == pytest.approx(there["percent"])
    for path in (ROOT / "docs/analysis").glob("*.png"):
        assert (tmp_path / "report" / path.name).is_file(), path.name
