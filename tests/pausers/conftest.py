"""A mirror of three btrfs volumes, and a cgroup with the program that writes to them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.core.pause import PauseReport, decoded
from mirrord.system.paths import Paths
from tests.support import btrfs
from tests.support.cgroups import Cgroup, cgroup
from tests.support.service import until
from tests.support.stripes import FILE, WRITER
from tests.support.unit import ROOT
from tests.support.verbs import Service

NAME = "db"
VOLUMES = ("a", "b", "c")


class Group:
    """The mirror, its service, and its application."""

    def __init__(self, home: Path, here: Path, there: Path, app: Cgroup) -> None:
        self.home, self.here, self.there, self.app = home, here, there, app
        self.paths = Paths(home / "etc", home / "state", home / "run")
        self.service = Service(self.paths)
        for name in VOLUMES:
            btrfs.make_subvolume(here / name)
            (here / name / FILE).touch()

    def create(self, **options: Any) -> None:
        ends = tuple(f"btrfs:{self.here / one}=btrfs:{self.there / one}" for one in VOLUMES)
        self.service.create(NAME, members=ends, **options)

    def settings(self, lines: str) -> None:
        """Add lines to the top of the definition."""
        self.settings_of(NAME, lines)

    def settings_of(self, name: str, lines: str) -> None:
        """The same for another mirror."""
        file = self.service.definitions.file(name)
        file.write_text(lines + "\n" + file.read_text())

    def write(self, few: int = 50, *, flags: int = 0) -> None:
        """Start the writer, and wait until it writes. few: how many records between two pauses.
        flags: further ones to open its files with.
        """
        until(lambda: not self.app.frozen())
        self.app.python(WRITER, str(few), str(flags), *(self.here / one / FILE for one in VOLUMES))
        until(lambda: (self.here / "c" / FILE).stat().st_size > 0)

    def views(self) -> list[Path]:
        return [self.there / one / "current" for one in VOLUMES]

    def again(self) -> Service:
        """A new service, as a new process would have it."""
        self.service.close()
        self.service = Service(self.paths)
        return self.service

    def snapshots(self) -> list[str]:
        """The names of all snapshots of the sources."""
        return [one.name for one in self.service.snapshots(NAME).snapshots if one.source]

    def records(self) -> list[Path]:
        """The records of pauses."""
        return [*self.paths.run.glob("paused/*")]

    def report(self) -> PauseReport:
        """Of the last cycle."""
        found = decoded(self.service.history(NAME, limit=1).transfers[0].pause)
        assert found is not None
        return found


@pytest.fixture
def app() -> Iterator[Cgroup]:
    with cgroup() as made:
        yield made


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "m.paused"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with btrfs.folders() as (here, there), cgroup() as app:
        made = Group(tmp_path / "home", here, there, app)
        yield made
        app.remove()
        made.service.close()


#: Stops itself at a step, so that the test can look, and kill it.
_STOPPING = """
import os, signal, sys
from mirrord.cli.main import main
from mirrord.system import steps
wanted = sys.argv[1]
steps.observe(lambda label: os.kill(os.getpid(), signal.SIGSTOP) if label == wanted else None)
sys.argv[1:] = ["update", "db"]
main()
"""


def stopped_at(home: Path, label: str) -> subprocess.Popen[bytes]:
    """An update that has stopped itself at a step of the pause."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STOPPING, f"ENGINE:PAUSE:{label}"],
        env={**os.environ, "MIRRORD_HOME": str(home)},
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    stat = Path(f"/proc/{process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 60)
    return process
