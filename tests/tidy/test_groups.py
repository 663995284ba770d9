"""`python -m tests`: every folder of tests is in it, and a group that tests nothing fails."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.__main__ import ON_MACHINE, TESTS, Run, failures, groups, report


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


def test_what_failed_is_named_again(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("def test_one():\n    assert 1 == 2\n\ndef test_two(missing):\n    pass\n")
    with tempfile.TemporaryFile() as output:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test.name]
        process = subprocess.Popen(words, stdout=output, cwd=tmp_path)
        process.wait()
        found = failures(Run(groups()[0], process, output, 0.0))
    assert [line.partition(" - ")[0] for line in found] == [
        "FAILED test_it.py::test_one",
        "ERROR test_it.py::test_two",
    ]
