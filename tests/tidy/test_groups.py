"""`python -m tests`: every folder of tests is in it, and a group that tests nothing fails."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.__main__ import ON_MACHINE, TESTS, Run, groups, report


def test_every_folder_is_in_one_group() -> None:
    """With the machine: tests/conftest.py refuses those in other folders."""
    folders = sorted({path.parent.name for path in TESTS.glob("**/test_*.py")})
    those = [group.folders for group in groups() if group.marks == "not zfs"]
    assert sorted(name for folders_of in those for name in folders_of) == folders
    assert set(ON_MACHINE) <= set(folders)


def test_every_test_can_be_collected() -> None:
    """Also those of the machine: a folder that is not in its group is an error for all of it."""
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", str(TESTS)]
    done = subprocess.run(words, cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("status", "arguments", "well"),
    [
        (0, [], True),
        (1, [], False),
        (5, [], False),
        (5, ["--maxfail=1"], False),
        (5, ["-k", "name"], True),
        (5, ["-kname"], True),
        (1, ["-k", "name"], False),
    ],
)
def test_nothing_selected_is_a_failure_unless_tests_were_chosen(
    status: int, arguments: list[str], well: bool
) -> None:
    with tempfile.TemporaryFile() as output:
        words = [sys.executable, "-c", f"raise SystemExit({status})"]
        process = subprocess.Popen(words, stdout=output, cwd=Path(__file__).parent)
        assert report(Run(groups()[0], process, output, 0.0), arguments) is well
