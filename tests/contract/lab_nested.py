"""Two btrfs file systems, and a subvolume with two more nested inside it, one in the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.core.model import SnapshotKind
from mirrord.drivers.btrfs import assemble, store
from mirrord.drivers.btrfs.nested_driver import NestedDriver
from mirrord.drivers.contract import Driver
from tests.contract.lab import Lab
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs

INNER, INNERMOST = "dir3/inner", "dir3/inner/folder/innermost"


class NestedLab(BtrfsLab):
    """See `tests.contract.lab.Lab`. The user works in the outermost and in the innermost one."""

    kind = "btrfs-tree"

    def __init__(self, here: Path, there: Path) -> None:
        super().__init__(here, there)
        for inner in (INNER, INNERMOST):
            (self._source / inner).parent.mkdir(parents=True, exist_ok=True)
            btrfs.make_subvolume(self._source / inner)
        (self._source / INNER / "file").write_text("inner")
        btrfs.fill(self._source / INNERMOST, seed=1)

    def source(self) -> Driver:
        return NestedDriver(str(self._source), self._known)

    def destination(self) -> Driver:
        return NestedDriver(str(self._destination), self._known)

    def foreign(self) -> Driver:
        return NestedDriver(str(self._foreign), self._known)

    def change(self, driver: Driver, seed: int) -> None:
        super().change(driver, seed)
        btrfs.change(Path(driver.facts().view) / INNERMOST, seed + 1000)

    @staticmethod
    def _path(driver: Driver, guid: str) -> str:
        """At the source the tree of a snapshot is assembled for the test; what was set aside is
        one already.
        """
        assert isinstance(driver, NestedDriver)
        place = driver._place()
        one = store.find(place, guid)
        assert one is not None
        if one.snapshot.kind is SnapshotKind.DIVERGED:
            return str(one.path)
        assemble.show(place, one, str(driver))
        return str(assemble.shown_path(one))


@contextmanager
def lab(folder: Path, *, large: bool = False) -> Iterator[Lab]:
    with btrfs.folders() as (here, there):
        yield NestedLab(here, there)
