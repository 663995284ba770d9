"""All tests, in groups that run side by side: `python -m tests` (what `make test` calls).

Most tests wait: for a silence to be noticed, a disk to sync, an emulated machine. So groups share
the processors well. What a group prints is shown when it ends, whole; arguments go to each pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NamedTuple

#: What runs together, in the order in which it begins: a long one that began last would run alone,
#: as would one that mostly waits.
#: Folders that are not here are "the rest".
TOGETHER = {
    "crashes": ("crash", "soak"),
    "daemon": ("pausers", "recording", "service"),
    "live": ("live",),
    "other hosts": ("agent", "faults", "link", "security", "transport"),
    "life cycle": ("integration",),
    "sets": ("sets",),
    "drivers": ("block", "btrfs", "contract"),
    "failover": ("failover",),
    "commands": ("cli", "docs"),
    "simulation": ("schedules", "sim"),
}
#: Folders with tests on the machine that has OpenZFS (tests/conftest.py finds one elsewhere).
ON_MACHINE = ("contract", "crash", "failover", "integration", "pausers", "sets", "zfs", "zfsvm")
TESTS = Path(__file__).parent
#: So many groups run at the same time: more would make each other's waits time out.
AT_ONCE = max(4, len(os.sched_getaffinity(0)) + 1)
#: What pytest returns when nothing was selected: no group may be empty, but what `-k` and its like
#: choose may all be in other groups.
_NOTHING = 5
_CHOOSING = ("-k", "--deselect", "--lf", "--last-failed")
#: Also what takes too long for every run.
_NIGHTLY = "--nightly"
#: So many of a group's slowest tests are named.
_SLOWEST = 30
#: So often it is told how far they are, seconds.
_TELL_S = 60.0


class Group(NamedTuple):
    """Some folders below tests/, of which only what the expression of marks selects runs."""

    name: str
    marks: str
    folders: tuple[str, ...]
    #: What makes ready for it: a module and its words. When it fails, the tests say why.
    before: tuple[str, ...] = ()


class Run(NamedTuple):
    """A group that runs."""

    group: Group
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    began_s: float


def groups() -> list[Group]:
    """Each test is in one of them."""
    every = sorted({path.parent.name for path in TESTS.glob("*/test_*.py")})
    named = [Group(name, "not zfs", folders) for name, folders in TOGETHER.items()]
    rest = tuple(name for name in every if all(name not in group.folders for group in named))
    machine = Group("OpenZFS", "zfs", ON_MACHINE, before=("tests.zfsvm", "build"))
    return [machine, *named, Group("the rest", "not zfs", rest)]


def folder_of(group: Group, files: str) -> str:
    """Where its tests write."""
    return f"{files}/{group.name.replace(' ', '-')}"


def start(group: Group, arguments: list[str], files: str) -> Run:
    """Begin it in a process of its own.

    What its tests write is below a folder of its own in `files`: two pytests that use the same one
    remove each other's old folders, and where both remove one, a warning fails a group that passed.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115 - read when the group has ended
    own = f"--basetemp={folder_of(group, files)}"
    words = [sys.executable, "-m", "tests", "--group", group.name, own, *arguments]
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=TESTS.parent
    )
    return Run(group, process, output, time.monotonic())


def chosen(arguments: list[str]) -> bool:
    """Whether these arguments of pytest choose among the tests."""
    return any(word.startswith(_CHOOSING) for word in arguments)


def report(run: Run, arguments: list[str]) -> bool:
    """Show what it printed; whether it went well."""
    status = run.process.wait()
    took_s = time.monotonic() - run.began_s
    print(f"\n===== {run.group.name}: {took_s:.0f} s, exit {status}", flush=True)
    run.output.seek(0)
    sys.stdout.buffer.write(run.output.read())
    sys.stdout.buffer.flush()
    return status == 0 or (status == _NOTHING and chosen(arguments))


def failures(run: Run) -> list[str]:
    """The lines in which pytest names what failed."""
    run.output.seek(0)
    found = re.findall(rb"^(?:FAILED|ERROR) .*", run.output.read(), re.MULTILINE)
    return [line.decode(errors="replace") for line in found]


def run_one(name: str, arguments: list[str]) -> int:
    """Run a group here; what pytest returned."""
    [group] = [group for group in groups() if group.name == name]
    marks = group.marks
    if _NIGHTLY in arguments:
        arguments = [word for word in arguments if word != _NIGHTLY]
        arguments.append("--hypothesis-profile=nightly")
    else:
        marks += " and not nightly"
    if group.before:
        subprocess.run([sys.executable, "-m", *group.before], cwd=TESTS.parent, check=False)
    words = [sys.executable, "-m", "pytest", "-q", "-m", marks]
    words += [f"--durations={_SLOWEST}", *arguments]
    words += [str(TESTS / folder) for folder in group.folders]
    os.execv(words[0], words)


def far(run: Run) -> str:
    """How far it is, as pytest says at the end of a line."""
    size = os.fstat(run.output.fileno()).st_size
    tail = os.pread(run.output.fileno(), 400, max(0, size - 400))
    said = re.findall(rb"\[ *(\d+%)\]", tail)
    return said[-1].decode() if said else ""


def main(arguments: list[str]) -> int:
    """Run all; 0 when each went well. `--group NAME`: that one alone."""
    if arguments[:1] == ["--group"]:
        return run_one(arguments[1], arguments[2:])
    # (Debian 13 has /tmp in memory: they write more than 10 GB. Sockets need short paths.)
    files = tempfile.mkdtemp(prefix="mirr-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        return 0 if run_all(arguments, files) else 1
    finally:
        remove(files)


def remove(folder: str) -> None:
    """Remove what tests have written."""
    # (Some paths are too deep for shutil.rmtree.)
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False)


def run_all(arguments: list[str], files: str) -> bool:
    """Run all, in this folder; whether each went well."""
    waiting = groups()
    left: list[Run] = []
    failed: list[str] = []
    well = True
    told_s = time.monotonic()
    try:
        while left or waiting:
            while waiting and len(left) < AT_ONCE:
                left.append(start(waiting.pop(0), arguments, files))
            if time.monotonic() - told_s > _TELL_S:
                told_s = time.monotonic()
                print("running:", ", ".join(f"{run.group.name} {far(run)}" for run in left))
                sys.stdout.flush()
            for run in [run for run in left if run.process.poll() is not None]:
                left.remove(run)
                well = report(run, arguments) and well
                failed += failures(run)
                remove(folder_of(run.group, files))
            time.sleep(0.2)
    finally:
        for run in left:
            run.process.terminate()
        for run in left:
            run.process.wait()
    # (Between the groups' output they are hard to find.)
    print("", *failed, sep="\n")
    return well


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
