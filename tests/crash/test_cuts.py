"""A power cut at every step of the verbs that switch a live volume: both ends, the definition and
the catalogue are on two file systems, whose images are copied at each step as the disks hold them,
with what a program wrote until then. Each pair is mounted in its place and the mirror brought back
to work: no acknowledged line is lost, and the file systems pass their check.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.contract import Driver
from mirrord.system import steps
from tests.contract.lab import Lab
from tests.contract.lab_block import SIZE_BYTES, BlockLab
from tests.contract.lab_btrfs import BtrfsLab
from tests.crash.scenes import EACH_KIND, SCENES, WAYS_ON, end, own_labels, settle
from tests.support import btrfs
from tests.support.service import until
from tests.support.world import NAME, World


class Cut(NamedTuple):
    """What the disk held at a step, and the numbers that were acknowledged until then."""

    label: str
    images: tuple[Path, ...]
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
    """All of a mirror, on two file systems."""

    mounts: tuple[Path, Path]
    lab: Lab

    def copy(self, name: str) -> tuple[Path, ...]:
        """What their disks hold, as it is when the power fails now."""
        copies = []
        for mount in self.mounts:
            copies.append(mount.with_name(name))
            run("cp", "--sparse=always", mount.with_name("image"), copies[-1])
        return tuple(copies)

    def mount(self, images: Sequence[Path]) -> None:
        for image, mount in zip(images, self.mounts, strict=True):
            run("mount", "-o", "loop,noatime", image, mount)

    def unmount(self) -> None:
        """Wholly: a copy of what is still mounted somewhere may not be mounted beside it."""
        for mount in self.mounts:
            until(partial(_unmounted, mount), what=f"{mount} is in use")


@contextmanager
def machine(kind: str) -> Iterator[Machine]:
    """A small one, which writes to its disks only what is synced."""
    options = "noatime,commit=300"
    with (
        btrfs.filesystem(size_mib=512, options=options) as here,
        btrfs.filesystem(size_mib=512, options=options) as there,
    ):
        lab: Lab = BtrfsLab(here, there)
        if kind == "block":
            Volume.create(here / "source", SIZE_BYTES).close()
            lab = BlockLab(here)
        yield Machine((here, there), lab)


def _unmounted(mount: Path) -> bool:
    """Not as long as a child that was killed is still on its way out."""
    return subprocess.run(["umount", mount], check=False, capture_output=True).returncode == 0


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
    for mount in made.mounts:
        run("sync", "-f", mount)

    def cut(label: str) -> None:
        if label not in wanted or label in {one.label for one in taken}:
            return
        steps.observe(None)
        people.write(*ends)
        steps.observe(cut)
        copies = made.copy(f"cut{len(taken)}")
        taken.append(Cut(label, copies, frozenset(people.written)))

    steps.observe(cut)
    try:
        scene.work(world)
    finally:
        steps.observe(None)
    world.service.close()
    assert len(taken) >= len(wanted) * 0.8, set(wanted) - {one.label for one in taken}
    return taken


@pytest.mark.parametrize(("kind", "verb"), EACH_KIND)
def test_a_power_cut_loses_nothing(kind: str, verb: str) -> None:
    with machine(kind) as made:
        world = World(made.lab, made.mounts[0] / "mirrord").initialized(keep_source=3)
        taken = cuts(made, world, verb)
        made.unmount()  # a copy has the identity of the original: only one may be mounted
        for number, one in enumerate(taken):
            made.mount(one.images)
            try:
                world.again()
                settle(world, WAYS_ON[number % 2])
                lost = one.written - found(world)
                assert not lost, f"{one.label}: {sorted(lost)} of {sorted(one.written)}"
                assert world.in_step(), one.label
                world.lab.sound(end(world, "destination"))
            finally:
                world.service.close()
                made.unmount()
            for image in one.images:
                run("btrfs", "check", "--readonly", image)
                image.unlink()
        made.mount([mount.with_name("image") for mount in made.mounts])
