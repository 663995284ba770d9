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


class Machine(NamedTuple):
    """One file system with all of a mirror on it, and the image of its disk."""

    mount: Path
    image: Path
    lab: Lab


@contextmanager
def machine(kind: str) -> Iterator[Machine]:
    """A small one, which writes to its disk only what is synced."""
    with btrfs.filesystem(size_mib=512, options="noatime,commit=300") as mount:
        lab: Lab
        if kind == "btrfs":
            for name in ("here", "there"):
                (mount / name).mkdir()
            lab = BtrfsLab(mount / "here", mount / "there")
        else:
            Volume.create(mount / "source", SIZE_BYTES).close()
            lab = BlockLab(mount)
        yield Machine(mount, mount.parent / "image", lab)


def run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)


def cuts(made: Machine, world: World, verb: str) -> list[Cut]:
    """Run the verb; what the disk holds at each of its steps."""
    scene, people, taken = SCENES[verb], People(world), list[Cut]()
    if "resync" in verb or "broken off" in verb:
        world.service.break_off(NAME)
    wanted = own_labels(world, scene)
    if "resync" in verb or "broken off" in verb:
        world.service.break_off(NAME)
    ends = end(world, "source"), end(world, "destination")
    people.write(*ends)
    run("sync", "-f", made.mount)

    def cut(label: str) -> None:
        if label not in wanted or label in {one.label for one in taken}:
            return
        steps.observe(None)
        people.write(*ends)
        steps.observe(cut)
        copy = made.image.with_name(f"cut{len(taken)}")
        run("cp", "--sparse=always", made.image, copy)
        taken.append(Cut(label, copy, frozenset(people.written)))

    steps.observe(cut)
    try:
        scene.work(world)
    finally:
        steps.observe(None)
    world.service.close()
    assert len(taken) >= len(wanted) * 0.8, set(wanted) - {one.label for one in taken}
    return taken


@pytest.mark.parametrize("verb", WRITTEN)
@pytest.mark.parametrize("kind", ["btrfs", "block"])
def test_a_power_cut_loses_nothing(kind: str, verb: str) -> None:
    with machine(kind) as made:
        world = World(made.lab, made.mount / "home").initialized(keep_source=3)
        taken = cuts(made, world, verb)
        # A copy has the identity of the original: only one may be mounted.
        run("umount", made.mount)
        for number, one in enumerate(taken):
            run("mount", "-o", "loop,noatime", one.image, made.mount)
            try:
                world.again()
                settle(world, WAYS_ON[number % 2])
                lost = one.written - found(world)
                assert not lost, f"{one.label}: {sorted(lost)} of {sorted(one.written)}"
                assert world.in_step(), one.label
                world.lab.sound(end(world, "destination"))
            finally:
                world.service.close()
                run("umount", made.mount)
            run("btrfs", "check", "--readonly", one.image)
            one.image.unlink()
        run("mount", "-o", "loop", made.image, made.mount)
