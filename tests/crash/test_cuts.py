"""A power cut at every step of the verbs that switch a live volume: both ends, the definition and
the catalogue are on one file system, whose image is copied at each step as the disk would hold it,
with what a program wrote until then. Each copy is mounted in its place and the mirror brought back
to work: no acknowledged line is lost, and the file system passes its check.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.base import Driver
from mirrord.drivers.block.volume import Volume
from mirrord.system import steps
from tests.contract.lab import Lab
from tests.contract.lab_block import SIZE_BYTES, BlockLab
from tests.contract.lab_btrfs import BtrfsLab
from tests.crash.scenes import SCENES, WAYS_ON, WRITTEN, end, own_labels, settle
from tests.support import btrfs
from tests.support.world import NAME, World


class Cut(NamedTuple):
    """What the disk held at a step, and the numbers that were acknowledged until then."""

    label: str
    image: Path
    written: frozenset[int]


class People:
    """They write numbers to whatever volume is live, each durable before it counts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._number = 0
        self.written: set[int] = set()

    def write(self, *drivers: Driver) -> None:
        for driver in drivers:
            self._number += 1
            try:
                if driver.facts().role is not Role.LIVE:
                    continue
                with self._world.lab.writing(driver) as write:
                    if write(self._number):
                        self.written.add(self._number)
            except (MirrordError, OSError, AssertionError):
                continue


def found(world: World) -> set[int]:
    """The numbers in the source, and in what is kept aside."""
    source, destination = end(world, "source"), end(world, "destination")
    numbers = world.lab.written(source)
    for driver in (source, destination):
        for one in driver.snapshots():
            if one.kind is SnapshotKind.DIVERGED:
                numbers |= world.lab.written(driver, one.guid)
    return numbers
