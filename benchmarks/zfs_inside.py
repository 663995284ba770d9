"""The part of benchmarks/zfs.py that runs in the virtual machine, on real OpenZFS.

It prints JSON: the seconds of each round, and the number of programs that one update starts.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mirrord.drivers.zfs.commands import command
from mirrord.system import steps
from mirrord.system.paths import Paths
from tests.support.verbs import Service

FILES = 200
TOOLS = ("mirrord", "syncoid", "bzfs")
#: Programs that are counted: each is replaced by a script that writes a line, then runs it.
COUNTED = ("zfs", "zpool", "zstream", "ps", "mbuffer", "pv", "zstd", "lzop", "uname", "which", "sh")


def run(*words: str, variables: dict[str, str] | None = None) -> str:
    """Run a program; its output. Its error output is in the exception."""
    done = subprocess.run(list(words), capture_output=True, text=True, env=variables)
    if done.returncode != 0:
        raise RuntimeError(f"{words}: {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def timed(work: Callable[[], object]) -> float:
    """The time that it takes, in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Bench:
    """Each tool has its own source, which changes as the others do, so that the snapshots of one
    tool do not affect another; and a destination on the other pool.
    """

    def __init__(self, inside: Path) -> None:
        self.inside = inside
        for name in ("here/bench", "there/bench", *(f"here/bench/{tool}" for tool in TOOLS)):
            run("zfs", "create", "-o", "atime=off", name)
        for number in range(FILES):
            self.write(number)
        folders = inside / "mirrord"
        self.service = Service(Paths(folders / "etc", folders / "state", folders / "run"))
        self.variables = {
            **os.environ,
            "MIRRORD_HOME": str(folders),
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        self._changes = 0
        self.service.create("home", "zfs:here/bench/mirrord", "zfs:there/bench/mirrord")
        self.service.initialize("home")
        self.syncoid()
        self.bzfs()

    def change(self) -> None:
        """Change 4 KiB of one file, the same in each source; then wait, so that no tool is slowed
        by the pools' work for another's update. (And snapshots of bzfs are named by the second.)
        """
        self._changes += 1
        self.write(self._changes % FILES)
        run("zpool", "sync")
        time.sleep(1)

    @staticmethod
    def write(number: int) -> None:
        """Rewrite one file."""
        content = os.urandom(4096)
        for tool in TOOLS:
            path = Path(f"/here/bench/{tool}/file{number}")
            with path.open("r+b" if path.exists() else "wb") as file:
                file.write(content)

    def visible(self) -> float:
        """Seconds from the call of an update until the destination durably shows it."""
        started, seen = time.perf_counter(), []

        def observer(label: str) -> None:
            if label == "CATALOGUE:OPERATION:END":
                seen.append(time.perf_counter() - started)

        steps.observe(observer)
        try:
            self.service.update("home")
        finally:
            steps.observe(None)
        return seen[0]

    def whole(self) -> None:
        """An update with its cleanup."""
        self.service.update("home")

    def program(self, variables: dict[str, str] | None = None) -> None:
        """The same from a shell: a process is started for it."""
        words = [sys.executable, "-m", "mirrord", "update", "home"]
        run(*words, variables=variables or self.variables)

    def syncoid(self, variables: dict[str, str] | None = None) -> None:
        """Debian's syncoid, as in its manual."""
        run(
            "syncoid",
            "--no-privilege-elevation",
            "--quiet",
            "here/bench/syncoid",
            "there/bench/syncoid",
            variables=variables or self.variables,
        )

    def bzfs(self, variables: dict[str, str] | None = None) -> None:
        """Started per run; it takes the snapshot and sends it."""
        run(
            "bzfs",
            "here/bench/bzfs",
            "there/bench/bzfs",
            "--quiet",
            "--create-src-snapshots",
            "--create-src-snapshots-even-if-not-due",
            "--create-src-snapshots-plan",
            "{'b': {'': {'secondly': 1}}}".replace("'", '"'),
            variables=variables or self.variables,
        )

    def rounds(self, tools: dict[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
        """Each tool in turn, after a separate change."""
        found: dict[str, list[float]] = {name: [] for name in tools}
        for _ in range(count):
            for name, tool in tools.items():
                self.change()
                found[name].append(tool())
        return found

    def executed(self, tool: Callable[[dict[str, str]], None]) -> int:
        """How many of the counted programs one update of a tool starts."""
        counting, list_file = self.inside / "counting", self.inside / "count"
        shutil.rmtree(counting, ignore_errors=True)
        counting.mkdir()
        list_file.write_text("")
        for name in COUNTED:
            found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
            if found is None:
                continue
            # (`#!` with a real shell: `sh` itself is one of those that are counted)
            script = f'#!/bin/dash\necho {name} >> {list_file}\nexec {found} "$@"\n'
            (counting / name).write_text(script)
            (counting / name).chmod(0o755)
        self.change()
        tool({**self.variables, "PATH": f"{counting}:{self.variables['PATH']}"})
        return len(list_file.read_text().splitlines())

    def snapshots(self, first: int, last: int) -> None:
        """Create user snapshots at the source: each transaction group takes one per dataset."""
        words = ["xargs", "-P", "3", "-I{}", "zfs", "snapshot", "here/bench/mirrord@auto-{}"]
        numbers = "\n".join(map(str, range(first, last + 1)))
        subprocess.run(words, input=numbers, text=True, check=True)


def measure(count: int, many: int) -> dict[str, object]:
    """All rounds, as plain values."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        bench = Bench(Path(folder))
        try:
            return _measured(bench, count, many)
        finally:
            bench.service.close()
            for parent in ("here/bench", "there/bench"):
                listed = run("zfs", "list", "-H", "-t", "snapshot", "-o", "name", "-r", parent)
                held = [name for name in listed.split() if "auto-" not in name]
                subprocess.run(["zfs", "release", "mirrord", *held], capture_output=True)
                subprocess.run(["zfs", "destroy", "-R", parent], capture_output=True)


def _measured(bench: Bench, count: int, many: int) -> dict[str, object]:
    tools: dict[str, Callable[[], float]] = {
        "visible": bench.visible,
        "whole": functools.partial(timed, bench.whole),
        "program": functools.partial(timed, bench.program),
        "syncoid": functools.partial(timed, bench.syncoid),
        "bzfs": functools.partial(timed, bench.bzfs),
    }
    bench.rounds({name: tools[name] for name in ("visible", "program")}, 1)
    found: dict[str, object] = dict(bench.rounds(tools, count))
    bench.change()
    before = command.executions()
    bench.whole()
    found["executed"] = {
        "mirrord": command.executions() - before,
        "mirrord update": bench.executed(bench.program),
        "syncoid": bench.executed(bench.syncoid),
        "bzfs": bench.executed(bench.bzfs),
    }
    # Each tool's destination is identical to its source.
    bench.change()
    for update in (bench.whole, bench.syncoid, bench.bzfs):
        update()
    for tool in TOOLS:
        subprocess.run(["zfs", "mount", f"there/bench/{tool}"], capture_output=True)
        there, here = (Path(f"/{pool}/bench/{tool}") for pool in ("there", "here"))
        for number in range(FILES):
            name = f"file{number}"
            assert (there / name).read_bytes() == (here / name).read_bytes(), (tool, name)
    bench.snapshots(1, 10)
    found["few"] = bench.rounds({"visible": bench.visible}, count + 2)["visible"]
    bench.snapshots(11, many)
    found["many"] = bench.rounds({"visible": bench.visible}, count + 2)["visible"]
    listed = run("zfs", "list", "-H", "-t", "snapshot", "-o", "name", "here/bench/mirrord")
    found["snapshots"] = len(listed.splitlines())
    return found


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
