"""The simulated fleet: the real scheduler, engine and catalogue in simulated time."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.harness import ROOT, Row, timed


def measure() -> list[Row]:
    """A day of 1,000 mirrors with faults, and a day of 10,000 for the scheduler alone."""
    return [
        Row(
            "simulated day of 1,000 mirrors, with faults",
            _simulated("--mirrors", "1000", "--hours", "24"),
            "s",
            "<=",
            300,
        ),
        Row(
            "  the same without faults",
            _simulated("--mirrors", "1000", "--hours", "24", "--faults", "0"),
            "s",
            "<=",
            300,
        ),
        Row(
            "  the scheduler alone, 10,000 mirrors",
            _simulated("--alone", "--mirrors", "10000", "--hours", "24", "--faults", "0"),
            "s",
            "<=",
            300,
        ),
    ]


def _simulated(*words: str) -> float:
    """The time that it takes, in seconds; its rules are always checked, a violation is an error."""
    command = [sys.executable, "-m", "tests.sim", "--seed", "1", *words]
    return timed(lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True))
