"""A mirror of block volumes that a daemon looks after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.control.documents import of_status
from tests.support.definitions import add_lines
from tests.support.labs import open_lab
from tests.support.world import NAME, DaemonWorld


class Served(DaemonWorld):
    """With ways to change definitions and settings as a person does."""

    def define(self, *lines: str, name: str = NAME) -> None:
        """Put lines into a definition (before its tables) and let the daemon read it."""
        file = self.paths.mirrors / f"{name}.toml"
        add_lines(file, *lines)
        self.service.reload()

    def redefine(self, before: str, after: str) -> None:
        """Change what a definition says and let the daemon read it."""
        self.redefine_stopped(before, after)
        self.service.reload()

    def redefine_stopped(self, before: str, after: str) -> None:
        """Change what a definition says."""
        file = self.paths.mirrors / f"{NAME}.toml"
        text = file.read_text()
        assert text.count(before) == 1
        file.write_text(text.replace(before, after))

    def settings(self, text: str) -> None:
        self.paths.config.mkdir(parents=True, exist_ok=True)
        (self.paths.config / "mirrord.toml").write_text(text)
        self.service.reload()

    def alarms(self) -> dict[str, str]:
        """kind -> level of those that are up."""
        return {alarm["kind"]: alarm["level"] for alarm in self.row()["alarms"]}

    def row(self, name: str = NAME) -> dict[str, Any]:
        [found] = [row for row in self.service.status() if row.name == name]
        return of_status(found)


def serving(kind: str, folder: Path) -> Iterator[Served]:
    """What a fixture yields for volumes of this kind."""
    with open_lab(kind, folder) as lab:
        made = Served(lab, folder / "home")
        yield made
        if made.daemon.process is not None:
            made.clean_up()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    yield from serving("lab_block", tmp_path)


@pytest.fixture
def served_btrfs(tmp_path: Path) -> Iterator[Served]:
    yield from serving("lab_btrfs", tmp_path)
