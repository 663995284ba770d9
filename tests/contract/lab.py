"""What the conformance suite needs of each kind of volume.

A driver takes part by a module `tests/contract/lab_<kind>.py` with

    @contextmanager
    def lab(folder: Path, *, large: bool = False) -> Iterator[Lab]: ...

that yields a fresh `Lab` whose places lie below `folder` or on file systems of the lab's own, and
cleans up after itself. The suite runs on every lab that is found; so do the integration tests and
the crash matrix, where the kind is one that a definition can name (tests/support/labs.py). A kind
that cannot run here is an error, not a skip.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from mirrord.drivers.contract import Driver


def is_either(content: str, *wanted: str) -> bool:
    """Whether a view has one of these contents; of members each may have its part of any."""
    parts = zip(content.split(), *(one.split() for one in wanted), strict=True)
    return all(found in allowed for found, *allowed in parts)


class Lab(Protocol):
    """Two places, one for each end of a mirror, and a user who works there."""

    kind: str

    def source(self) -> Driver:
        """A fresh driver object on the source volume, which is LIVE and has some content."""
        ...

    def destination(self) -> Driver:
        """A fresh driver object on the destination place, ABSENT at first."""
        ...

    def foreign(self) -> Driver:
        """A driver on a place that holds foreign data."""
        ...

    def change(self, driver: Driver, seed: int) -> None:
        """Work as a user on the LIVE volume of `driver`: write, overwrite, delete. Another seed
        leaves other content; nothing is synced afterwards.
        """
        ...

    def change_much(self, driver: Driver, seed: int) -> None:
        """The same with some 40 MiB of data that do not compress (of a lab that is `large`; where
        volumes are not that large at all: with most of what there is).
        """
        ...

    def overwrite(self, driver: Driver, seed: int) -> None:
        """Work as a user on the LIVE volume: other bytes in the place of some, nothing longer or
        shorter. Raises `OSError` or `MirrordError` when it is not acknowledged; nothing is synced.
        """
        ...

    def writing(self, driver: Driver) -> AbstractContextManager[Callable[[int], bool]]:
        """A program that has the LIVE volume, or a file in it, open for writing all the time. To be
        called with a number from 0 to 999, which it writes durably; whether that was acknowledged.
        """
        ...

    def written(self, driver: Driver, guid: str | None = None) -> set[int]:
        """The numbers that such programs wrote, at the view or in a snapshot."""
        ...

    def freeze_and_die(self, driver: Driver) -> None:
        """A process that freezes the LIVE volume, and is killed."""
        ...

    def content(self, driver: Driver) -> str:
        """A digest of what a user sees at the view (all data, all names, all metadata that the
        driver promises to carry).
        """
        ...

    def snapshot_content(self, driver: Driver, guid: str) -> str:
        """The same digest of a snapshot."""
        ...

    def own_snapshot(self, driver: Driver, name: str) -> None:
        """Take a snapshot as the owner would, without mirrord."""
        ...

    def sound(self, driver: Driver) -> None:
        """Assert that the volume is sound, by the means of its kind (an fsck)."""
        ...
