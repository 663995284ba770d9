"""Two btrfs file systems on loop devices, with a subvolume on one and a place on the other. They
are those of the whole run: a test that fills, damages or unmounts one has to make its own.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.btrfs.known import Known
from mirrord.drivers.contract import Driver
from tests.contract.lab import Lab
from tests.support import btrfs, files
from tests.support.processes import FILE_WRITER, freeze_and_die, writer


class BtrfsLab:
    """See `tests.contract.lab.Lab`."""

    kind = "btrfs"

    def __init__(self, here: Path, there: Path) -> None:
        self._source = btrfs.make_subvolume(here / "home")
        self._own = here / "own"
        self._own.mkdir()
        btrfs.fill(self._source)
        self._destination = there / "backup"
        self._foreign = there / "foreign"
        self._foreign.mkdir()
        (self._foreign / "file").write_text("somebody's")
        self._known = Known()

    def source(self) -> Driver:
        return BtrfsDriver(str(self._source), self._known)

    def destination(self) -> Driver:
        return BtrfsDriver(str(self._destination), self._known)

    def foreign(self) -> Driver:
        return BtrfsDriver(str(self._foreign), self._known)

    def change(self, driver: Driver, seed: int) -> None:
        btrfs.change(Path(driver.facts().view), seed)

    def change_much(self, driver: Driver, seed: int) -> None:
        view = Path(driver.facts().view)
        btrfs.change(view, seed)
        made = random.Random(f"much {seed}")
        for number in range(4):
            (view / f"much{number}").write_bytes(made.randbytes(10 << 20))

    def overwrite(self, driver: Driver, seed: int) -> None:
        files.overwrite(Path(driver.facts().view), seed)

    def writing(self, driver: Driver) -> AbstractContextManager[Callable[[int], bool]]:
        return writer(FILE_WRITER, str(Path(driver.facts().view) / files.WRITTEN))

    def written(self, driver: Driver, guid: str | None = None) -> set[int]:
        return files.written(
            Path(driver.facts().view if guid is None else self._path(driver, guid))
        )

    def freeze_and_die(self, driver: Driver) -> None:
        freeze_and_die(driver)

    def content(self, driver: Driver) -> str:
        return btrfs.digest(Path(driver.facts().view))

    def snapshot_content(self, driver: Driver, guid: str) -> str:
        return btrfs.digest(Path(self._path(driver, guid)))

    @staticmethod
    def _path(driver: Driver, guid: str) -> str:
        every = [*driver.snapshots(), *driver.own_snapshots(("*",))]
        [path] = {snapshot.path for snapshot in every if snapshot.guid == guid}
        return path

    def sound(self, driver: Driver) -> None:
        """btrfs checks itself; ours is that every kept snapshot is still what it was."""
        assert all(snapshot.intact for snapshot in driver.snapshots())

    def own_snapshot(self, driver: Driver, name: str) -> None:
        view = driver.facts().view
        command: list[str | Path] = [
            "btrfs",
            "-q",
            "subvolume",
            "snapshot",
            "-r",
            view,
            self._own / name,
        ]
        subprocess.run(command, check=True)


@contextmanager
def lab(folder: Path, *, large: bool = False) -> Iterator[Lab]:
    with btrfs.folders() as (here, there):
        yield BtrfsLab(here, there)
