"""The crash matrix on real OpenZFS: the agent in the virtual machine is ended hard, or meets an
error, at every labelled step that it passes; the next command must end in a state that an
undisturbed run could have reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, SnapshotKind
from mirrord.engine import transfer
from mirrord.engine.members import Members
from tests.contract.lab import Lab, is_either
from tests.contract.lab_set_zfs import ZfsSetLab
from tests.contract.zfs import ZfsLab, zfs_lab
from tests.support.labs import MACHINE_SETS, open_lab
from tests.support.world import NAME, SetWorld, World
from tests.zfsvm.bridge import Bridge

#: A matrix is some twenty updates, each broken and mended, in an emulated machine.
pytestmark = [pytest.mark.zfs, pytest.mark.timeout(900)]

Point = tuple[str, int]
Work = Callable[[], object]
#: killed: the agent's process, and the client finds another one. gone: the whole machine cannot be
#: reached from then on, until the command has failed.
FAULTS = {"killed": "crash", "gone": "crash", "io-error": "EIO", "disk-full": "ENOSPC"}
_EACH = [pytest.param(name, marks=[pytest.mark.nightly] * (name != "killed")) for name in FAULTS]


class Matrix:
    """A mirror of a lab in the machine, and agents that break."""

    def __init__(self, lab: ZfsLab | ZfsSetLab, folder: Path) -> None:
        self.lab = lab
        self.bridge = Bridge(lab.guest, folder)
        lab.host = self.bridge.host
        home = folder / "home"
        made = SetWorld(lab, home) if isinstance(lab, ZfsSetLab) else World(lab, home)
        self.world = made.initialized()

    def close(self) -> None:
        self.world.clean_up()
        self.bridge.close()

    def points(self, work: Work, *, least: int = 3) -> list[Point]:
        """Where the work can be broken: each label's first and last passing in an agent. least: so
        many there must be.
        """
        self.world.close_links()
        self.bridge.learn()
        work()
        seen = self.bridge.labels()
        self.mend()
        found = {(label, time) for label in seen for time in (1, seen.count(label))}
        assert len(found) >= least, "the work passes labelled steps"
        return sorted(found, key=lambda point: (seen.index(point[0]), point[1]))

    def attempt(self, work: Work, point: Point, fault: str) -> bool:
        """Run the work with the fault; True when the fault was met."""
        self.world.close_links()
        self.bridge.break_at(*point, FAULTS[fault])
        self.bridge.stays_down = fault == "gone"
        try:
            work()
        except (MirrordError, OSError):
            pass
        met = "!" in self.bridge.labels()
        self.mend()
        return met

    def mend(self) -> None:
        """All is well again; a new process takes over."""
        self.bridge.behave()
        self.world.again()

    def sound(self) -> None:
        """Both pools are, and nothing is left of what was broken."""
        self.lab.sound(self.lab.source())
        self.lab.sound(self.lab.destination())


#: How long a transfer waits for a machine that does not come back: a minute is for people.
PATIENCE_S = 1.0


@pytest.fixture(params=["filesystem", "volume", pytest.param("set", marks=pytest.mark.nightly)])
def matrix(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Matrix]:
    monkeypatch.setattr(transfer, "_PATIENCE_S", PATIENCE_S)
    opened: AbstractContextManager[Lab] = zfs_lab(volume=request.param == "volume", large=False)
    if request.param == "set":
        opened = open_lab(MACHINE_SETS[0], tmp_path)
    with opened as lab:
        assert isinstance(lab, ZfsLab | ZfsSetLab)
        made = Matrix(lab, tmp_path)
        yield made
        made.close()


only_filesystem = pytest.mark.parametrize("matrix", ["filesystem"], indirect=True)
no_volume = pytest.mark.parametrize("matrix", ["filesystem", "set"], indirect=True)


@pytest.mark.parametrize("fault", _EACH)
def test_update(matrix: Matrix, fault: str) -> None:
    world, lab = matrix.world, matrix.lab

    def update() -> object:
        return world.service.update(NAME)

    lab.change(lab.source(), 99)
    found, met = matrix.points(update), 0
    new = world.view_content()
    for seed, point in enumerate(found):
        lab.change(lab.source(), seed)
        old, new = new, world.source_content()
        met += matrix.attempt(update, point, fault)
        assert is_either(world.view_content(), old, new), point
        world.service.update(NAME)
        assert world.view_content() == new, point
        assert lab.destination().stagings() == [], point
        assert world.status()["healthy"], point
    matrix.sound()
    assert met > len(found) / 2
    assert len(lab.source().snapshots()) <= 3, "no snapshot is left behind"


@pytest.mark.nightly
@no_volume
def test_break_and_resync(matrix: Matrix) -> None:
    """A broken break, then a broken resync of what has diverged."""
    world, lab = matrix.world, matrix.lab

    def diverge(seed: int) -> str:
        lab.change(lab.destination(), seed)
        lab.change(lab.source(), 1000 + seed)
        return world.view_content()

    def break_off() -> object:
        return world.service.break_off(NAME)

    def resync() -> object:
        return world.service.resync(NAME, yes=True)

    breaks = matrix.points(break_off, least=1)  # (one `zfs set` does it)
    diverge(0)
    resyncs = matrix.points(resync)
    met = 0
    for seed in range(1, 1 + max(len(breaks), len(resyncs))):
        content = world.view_content()
        if breaks:
            point = breaks.pop(0)
            met += matrix.attempt(break_off, point, "gone")
            assert world.view_content() == content, point
        world.service.break_off(NAME)
        assert world.status()["state"] == "broken-off" and world.view_content() == content
        losing = diverge(seed)
        if resyncs:
            point = resyncs.pop(0)
            met += matrix.attempt(resync, point, "gone")
        world.service.resync(NAME, yes=True)
        assert world.in_step(), point
        destination = lab.destination()
        kept = [s for s in destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
        contents = {lab.snapshot_content(destination, s.guid) for s in kept}
        assert losing in contents, f"the losing side is kept, {point}"
        for snapshot in kept:
            destination.delete_snapshot(snapshot.guid)
    matrix.sound()
    assert met >= 3


@pytest.mark.nightly
@only_filesystem
def test_break_thaws_what_a_killed_resync_has_frozen(matrix: Matrix) -> None:
    """What is to be set aside is read-only and not mounted, also when the process has ended."""
    world, lab = matrix.world, matrix.lab
    world.service.break_off(NAME)
    lab.change(lab.destination(), 1)
    losing = world.view_content()
    resync = partial(world.service.resync, NAME, yes=True)
    assert matrix.attempt(resync, ("ZFS:ROLLBACK:KEEP", 1), "gone")
    assert world.view_content() != losing, "it was frozen"
    world.service.break_off(NAME)
    assert world.view_content() == losing
    lab.change(lab.destination(), 2)  # (as a user: it can be written to)
    world.service.resync(NAME, yes=True)
    assert world.in_step()


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("matrix", ["set"], indirect=True)
def test_break_after_a_resync_that_was_broken(matrix: Matrix) -> None:
    """The catalogue is lost, too: by the relationship record what was set aside is put back."""
    world, lab = matrix.world, matrix.lab

    def roles() -> set[Role]:
        end = lab.destination()
        assert isinstance(end, Members)
        return set(end.roles())

    def diverge(seed: int) -> tuple[str, str]:
        """What the destination showed, and what it has then."""
        shown = world.view_content()
        world.service.break_off(NAME)
        lab.change(lab.destination(), seed)
        lab.change(lab.source(), 1000 + seed)
        return shown, world.view_content()

    def resync() -> object:
        return world.service.resync(NAME, yes=True)

    diverge(0)
    met = put_back = 0
    for seed, point in enumerate(matrix.points(resync), 1):
        shown, losing = diverge(seed)
        met += matrix.attempt(resync, point, "gone")
        between = roles() == {Role.MIRROR, Role.LIVE}
        world.forget_catalogue()
        world.service.break_off(NAME)
        assert roles() == {Role.LIVE}, point
        found = world.view_content()
        assert found == losing or (found == shown and not between), point
        put_back += between
        world.service.resync(NAME, yes=True)
        world.service.update(NAME)
        assert world.in_step(), point
        for kept in lab.destination().snapshots():
            if kept.kind is SnapshotKind.DIVERGED:
                lab.destination().delete_snapshot(kept.guid)
    matrix.sound()
    assert met >= 3 and put_back >= 1


@pytest.mark.nightly
@only_filesystem
def test_initialize(matrix: Matrix) -> None:
    """Each try is the first transfer of another mirror of the same source."""
    world, lab = matrix.world, matrix.lab
    content = world.source_content()

    def fresh(name: str) -> Work:
        world.service.create(name, str(lab.source()), f"{lab.destination()}.{name}", keep_source=1)
        return lambda: world.service.initialize(name)

    met = 0
    for number, point in enumerate(matrix.points(fresh("learn"))):
        name = f"m{number}"
        met += matrix.attempt(fresh(name), point, "gone")
        if world.service.status(name)[0].state == "uninitialized":
            world.service.initialize(name)
        world.service.update(name)
        status = world.service.status(name)[0]
        assert status.state == "mirrored" and status.healthy, point
        assert lab.content(lab.driver(f"{lab.destination().location}.{name}")) == content, point
        world.service.delete(name, yes=True, keep_snapshots=False)
    assert met >= 3


@pytest.mark.nightly
@no_volume
def test_reverse(matrix: Matrix) -> None:
    world, lab = matrix.world, matrix.lab

    def turn(seed: int) -> tuple[str, str]:
        """Break, and let the destination win; returns source as it is, and the winning content."""
        world.service.break_off(NAME)
        winner = world.driver("destination")
        lab.change(winner, seed)
        return world.status()["source"], lab.content(winner)

    def reverse() -> object:
        return world.service.reverse(NAME, yes=True)

    turn(0)
    met = 0
    for seed, point in enumerate(matrix.points(reverse), 1):
        before, winning = turn(seed)
        met += matrix.attempt(reverse, point, "gone")
        world.service.abort(NAME, hard=False)  # recovers what was interrupted
        if world.status()["source"] == before:
            reverse()
        else:
            world.service.update(NAME)
        assert world.source_content() == winning == world.view_content(), point
    matrix.sound()
    assert met >= 3
