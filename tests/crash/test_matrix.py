"""The crash matrix: every verb is broken at every labelled step, by a crash and by an I/O error;
the next command must end in a state that an undisturbed run could have reached.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.control.api import Service
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import MirrordError
from mirrord.core.model import SnapshotKind
from mirrord.drivers.registry import open_driver
from mirrord.system import steps
from mirrord.system.paths import Paths
from tests.contract.lab import Lab
from tests.support.processes import working_on
from tests.support.world import NAME, ROOT, World


class Crash(BaseException):
    """Stands for the end of the process: nothing may catch it and go on."""


def io_error(label: str) -> BaseException:
    return OSError(errno.EIO, "injected", label)


def full(label: str) -> BaseException:
    return OSError(errno.ENOSPC, "injected", label)


FAULTS: dict[str, Callable[[str], BaseException]] = {
    "crash": Crash,
    "io-error": io_error,
    "disk-full": full,
}


Point = tuple[str, int]


@contextmanager
def broken_at(point: Point, fault: Callable[[str], BaseException]) -> Iterator[None]:
    """The step of that label fails when it is passed for the given time."""
    left = point[1]

    def observer(label: str) -> None:
        nonlocal left
        if label == point[0]:
            left -= 1
            if left == 0:
                raise fault(label)

    steps.observe(observer)
    try:
        yield
    finally:
        steps.observe(None)


def points(work: Callable[[], object]) -> list[Point]:
    """Where the work can be broken: each label's first and last passing.

    The passings between depend on the content (a step for each run of blocks that is written).
    """
    seen: list[str] = []
    steps.observe(seen.append)
    try:
        work()
    finally:
        steps.observe(None)
    found = {(label, time) for label in seen for time in (1, seen.count(label))}
    assert len(found) >= 3, "the work passes labelled steps"
    return sorted(found, key=lambda point: (seen.index(point[0]), point[1]))


def attempt(world: World, work: Callable[[], object], point: Point, fault: str) -> bool:
    """Run the work with the fault; True when it failed (it may survive one in its clean-up)."""
    try:
        with broken_at(point, FAULTS[fault]):
            work()
    except Crash:
        world.again()
        return True
    except (MirrordError, OSError):
        world.again()
        return True
    return False


def sound(world: World) -> None:
    """Both ends pass the fsck of their kind."""
    world.lab.sound(world.lab.source())
    world.lab.sound(world.lab.destination())


@pytest.mark.parametrize("fault", FAULTS)
def test_update(world: World, fault: str) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 99)
    found, failed = points(lambda: world.service.update(NAME)), 0
    for seed, point in enumerate(found):
        world.lab.change(world.lab.source(), seed)
        old, new = world.view_content(), world.source_content()
        failed += attempt(world, lambda: world.service.update(NAME), point, fault)
        assert world.view_content() in (old, new), point
        world.service.update(NAME)
        assert world.in_step(), point
        sound(world)
        assert world.lab.destination().stagings() == [], point
        assert world.status()["healthy"], point
    assert failed > len(found) / 2
    assert len(world.lab.source().snapshots()) <= 3, "no snapshot is left behind"


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_initialize(lab: Lab, tmp_path: Path, fault: str) -> None:
    """Each try is the first transfer of another mirror of the same source."""

    def fresh(name: str) -> Callable[[], object]:
        service.create(name, str(lab.source()), f"{lab.destination()}.{name}", keep_source=1)
        return lambda: Service(paths).initialize(name)

    home = tmp_path / "home"
    paths = Paths(home / "etc", home / "state", home / "run")
    service = Service(paths)
    failed = 0
    for number, point in enumerate(points(fresh("learn"))):
        name = f"m{number}"
        work = fresh(name)
        try:
            with broken_at(point, FAULTS[fault]):
                work()
        except (Crash, MirrordError, OSError):
            failed += 1
        if service.status(name)[0]["state"] == "uninitialized":
            service.initialize(name)
        service.update(name)
        status = service.status(name)[0]
        assert status["state"] == "mirrored" and status["healthy"], point
        destination = open_driver(parse_endpoint(status["destination"]))
        assert lab.content(destination) == lab.content(lab.source()), point
        service.delete(name, yes=True, keep_snapshots=False)
        assert len(lab.source().snapshots()) == 1, f"only the first mirror's is left, {point}"
    assert failed >= 3


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_break(world: World, fault: str) -> None:
    world.initialized()
    content = world.view_content()
    for point in points(lambda: world.service.break_off(NAME)):
        world.service.resync(NAME, yes=True)
        attempt(world, lambda: world.service.break_off(NAME), point, fault)
        assert world.view_content() == content, point
        world.service.break_off(NAME)
        assert world.status()["state"] == "broken-off", point
        assert world.view_content() == content, point


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_resync(world: World, fault: str) -> None:
    world.initialized()

    def diverge(seed: int) -> str:
        world.service.break_off(NAME)
        world.lab.change(world.lab.destination(), seed)
        world.lab.change(world.lab.source(), 1000 + seed)
        return world.view_content()

    diverge(0)
    for seed, point in enumerate(points(lambda: world.service.resync(NAME, yes=True)), 1):
        losing = diverge(seed)
        attempt(world, lambda: world.service.resync(NAME, yes=True), point, fault)
        world.service.resync(NAME, yes=True)
        assert world.in_step(), point
        sound(world)
        destination = world.lab.destination()
        kept = [s for s in destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
        contents = {world.lab.snapshot_content(destination, s.guid) for s in kept}
        assert losing in contents, f"the losing side is kept, {point}"
        for snapshot in kept:
            destination.delete_snapshot(snapshot.guid)


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_reverse(world: World, fault: str) -> None:
    world.initialized()

    def turn(seed: int) -> tuple[str, str]:
        """Break, and let the destination win; returns source as it is, and the winning content."""
        world.service.break_off(NAME)
        status = world.status()
        winner = open_driver(parse_endpoint(status["destination"]))
        world.lab.change(winner, seed)
        return status["source"], world.lab.content(winner)

    turn(0)
    for seed, point in enumerate(points(lambda: world.service.reverse(NAME, yes=True)), 1):
        before, winning = turn(seed)
        attempt(world, lambda: world.service.reverse(NAME, yes=True), point, fault)
        world.service.abort(NAME, hard=False)  # takes up what was left
        if world.status()["source"] == before:
            world.service.reverse(NAME, yes=True)
        else:
            world.service.update(NAME)
        assert world.source_content() == winning == world.view_content(), point
        sound(world)


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_restore_all(world: World, fault: str) -> None:
    world.initialized(keep_source=5)
    wanted = world.source_content()
    shown = world.lab.destination().facts().shown

    def restore() -> object:
        return world.service.restore_all(NAME, snapshot=shown, yes=True)

    world.lab.change(world.lab.source(), 0)
    for seed, point in enumerate(points(restore), 1):
        world.lab.change(world.lab.source(), seed)
        attempt(world, restore, point, fault)
        restore()
        assert world.source_content() == wanted, point
        sound(world)
    world.lab.change(world.lab.source(), 77)
    world.service.update(NAME)
    assert world.in_step()


KILLER = """
import os, signal, sys
from mirrord.system import steps
wanted, left = sys.argv[1], int(sys.argv[2])
def observer(label):
    global left
    left -= label == wanted
    if label == wanted and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
steps.observe(observer)
from mirrord.cli.main import run
sys.exit(run(sys.argv[3:]))
"""


def test_kill_minus_nine_of_an_update_at_every_step(world: World) -> None:
    """A real process, really killed: locks, children and files are as the kernel leaves them."""
    world.initialized()
    world.lab.change(world.lab.source(), 99)
    killed = 0
    for seed, (label, time) in enumerate(points(lambda: world.service.update(NAME))):
        world.service.close()
        world.lab.change(world.lab.source(), seed)
        old, new = world.view_content(), world.source_content()
        done = subprocess.run(
            [sys.executable, "-c", KILLER, label, str(time), "update", NAME],
            env=world.environment(), cwd=ROOT, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        killed += done.returncode == -signal.SIGKILL
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        assert world.view_content() in (old, new), label
        world.again().update(NAME)
        assert world.in_step(), label
        sound(world)
    assert killed >= 8
    assert working_on("receive", str(world.lab.destination().location)) == []
