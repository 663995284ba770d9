"""The crash matrix: every verb is broken at every labelled step, by a crash and by an I/O error;
the next command must end in a state that an undisturbed run could have reached.
"""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import MirrordError
from mirrord.core.model import Role
from mirrord.drivers.registry import open_driver
from mirrord.system.paths import Paths
from tests.contract.lab import Lab, is_either
from tests.contract.sets import SetLab
from tests.crash.faults import EACH, FAULTS, Crash, Point, attempt, broken_at, points
from tests.crash.scenes import SCENES, WRITTEN, checked, end, finish, kept, own_labels, sound
from tests.support.definitions import add_lines
from tests.support.processes import working_on
from tests.support.verbs import Service
from tests.support.world import NAME, ROOT, World


@pytest.mark.parametrize("fault", EACH)
def test_update(world: World, fault: str) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 99)
    found, failed = points(lambda: world.service.update(NAME)), 0
    for seed, point in enumerate(found):
        world.lab.change(world.lab.source(), seed)
        old, new = world.view_content(), world.source_content()
        failed += attempt(world, lambda: world.service.update(NAME), point, fault)
        assert is_either(world.view_content(), old, new), point
        world.service.update(NAME)
        assert world.in_step(), point
        sound(world)
        assert world.lab.destination().stagings() == [], point
        assert world.status()["healthy"], point
    assert failed > len(found) / 2
    assert len(world.lab.source().snapshots()) <= 3, "no snapshot is left behind"


@pytest.mark.parametrize("fault", EACH)
def test_update_that_is_verified(world: World, fault: str) -> None:
    """What was not proven equal is never shown; the digests are right after each interruption."""
    if world.lab.kind not in ("btrfs", "block"):
        pytest.skip("what it receives is not visible before the commit")
    world.initialized()
    add_lines(world.service.definitions.file(NAME), "verify_updates = true")
    for seed in (97, 98):  # the first reads everything
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
    world.lab.change(world.lab.source(), 99)
    found = points(lambda: world.service.update(NAME))
    own = [point for point in found if "VERIF" in point[0]]
    after = found[found.index(own[-1]) + 1 :][:3]
    assert {label for label, _ in own} >= {"VERIFY:TREE", "CATALOGUE:VERIFICATION:ADD"}
    for seed, point in enumerate([*own, *after]):
        world.lab.change(world.lab.source(), seed)
        old, new = world.view_content(), world.source_content()
        attempt(world, lambda: world.service.update(NAME), point, fault, sure=False)
        assert is_either(world.view_content(), old, new), point
        world.service.update(NAME)
        assert world.in_step(), point
        sound(world)
        assert world.lab.destination().stagings() == [], point
        status = world.status()
        assert status["healthy"], (point, status["problems"])
        world.lab.change(world.lab.source(), seed + 50)
        world.service.update(NAME)
        assert world.status()["verified"]["name"] == world.status()["shown"], point
        done = world.service.verify(NAME)
        assert done.data["equal"] and done.data["root"] == world.status()["verified"]["root"], point


#: Passed only by the first mirror of a source: what it makes serves those after it.
ONCE = frozenset(
    {
        "BTRFS:RESERVE:MAKE",
        "BTRFS:STORE:STORE",
        "BTRFS:STORE:SNAPSHOTS",
        "BTRFS:STORE:FOLDER",
        "BLOCK:PIN:FOLDER",
        "BTRFS:PIN:FOLDER",
        "BLOCK:RELATE:FOLDER",
        "BTRFS:RELATE:FOLDER",
        "BTRFS-TREE:PIN:FOLDER",
        "BTRFS-TREE:RELATE:FOLDER",
    }
)


@pytest.mark.parametrize("fault", EACH)
def test_initialize(lab: Lab, tmp_path: Path, fault: str) -> None:
    """Each try is the first transfer of another mirror of the same source."""

    def fresh(name: str) -> Callable[[], object]:
        service.create(name, str(lab.source()), f"{lab.destination()}.{name}", keep_source=1)
        return lambda: Service(paths).initialize(name)

    home = tmp_path / "home"
    paths = Paths(home / "etc", home / "state", home / "run")
    service = Service(paths)
    failed, unmet = 0, set[str]()
    for number, point in enumerate(points(fresh("learn"))):
        name = f"m{number}"
        work = fresh(name)
        try:
            with broken_at(point, FAULTS[fault]) as told:
                work()
        except (Crash, MirrordError, OSError):
            failed += 1
        if not told.met:
            unmet.add(point[0])
        if service.status(name)[0].state == "uninitialized":
            service.initialize(name)
        service.update(name)
        status = service.status(name)[0]
        assert status.state == "mirrored" and status.healthy, point
        destination = open_driver(parse_endpoint(status.reading.destination))
        assert lab.content(destination) == lab.content(lab.source()), point
        service.delete(name, yes=True, keep_snapshots=False)
        assert len(lab.source().snapshots()) == 1, f"only the first mirror's is left, {point}"
    assert failed >= 3
    assert unmet <= ONCE, "each fault was met"


@pytest.mark.parametrize("fault", EACH)
@pytest.mark.parametrize("older", [False, True])
def test_break(world: World, older: bool, fault: str) -> None:
    world.initialized(keep_source=4, keep_destination=4)
    contents = {}
    for seed in range(3):
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
        contents[world.lab.destination().facts().shown or ""] = world.view_content()

    def chosen() -> tuple[str | None, str]:
        """The snapshot from which it is broken off, and its content."""
        ours = [one for one in world.lab.destination().snapshots() if one.guid in contents]
        picked = ours[-2] if older else ours[-1]
        return (picked.name if older else None), contents[picked.guid]

    def break_off() -> object:
        return world.service.break_off(NAME, snapshot=chosen()[0])

    for point in points(break_off):
        world.service.resync(NAME, yes=True)
        shown = world.view_content()
        contents[world.lab.destination().facts().shown or ""] = shown
        name, wanted = chosen()
        failed = attempt(world, break_off, point, fault)
        assert is_either(world.view_content(), shown, wanted), point
        broken_off = world.lab.destination().facts().role is Role.LIVE
        world.service.break_off(NAME, snapshot=None if broken_off else name)
        assert failed or broken_off, point
        assert world.status()["state"] == "broken-off", point
        assert world.view_content() == wanted, point
    world.service.resync(NAME, yes=True)
    sound(world)
    checked(world)


@pytest.mark.parametrize("fault", EACH)
def test_prune(world: World, fault: str) -> None:
    """It deletes what it may, never the base; the next one ends what it began."""
    world.initialized(keep_source=9, keep_destination=9)
    file = world.service.definitions.file(NAME)
    seeds = itertools.count()

    def keep(count: int) -> None:
        text = re.sub(r"keep = \d+", f"keep = {count}", file.read_text())
        file.write_text(text)
        world.again()

    def grow() -> None:
        keep(9)
        while len(world.lab.destination().snapshots()) < 4:
            world.lab.change(world.lab.source(), next(seeds))
            world.service.update(NAME)
        keep(2)

    def prune() -> object:
        return world.service.prune(NAME, dry_run=False, accept=True)

    grow()
    for point in points(prune):
        grow()
        base = world.lab.destination().facts().shown
        attempt(world, prune, point, fault)
        prune()
        for driver in (world.lab.source(), world.lab.destination()):
            left = driver.snapshots()
            assert len(left) == 2 and base in {one.guid for one in left}, point
            assert all(one.intact for one in left), point
        assert world.in_step(), point
    world.lab.change(world.lab.source(), next(seeds))
    world.service.update(NAME)
    assert world.in_step()
    checked(world)


@pytest.mark.parametrize("fault", EACH)
def test_a_copy_for_a_test_and_its_end(world: World, fault: str) -> None:
    world.initialized()
    content = world.view_content()

    def begin() -> object:
        return world.service.begin_test(NAME)

    def remove() -> object:
        return world.service.end_test(NAME)

    begins, ends = points(begin), points(remove, least=2)
    for point in begins:
        attempt(world, begin, point, fault)
        begin()
        assert world.lab.destination().facts().copy, point
        assert world.view_content() == content, point
        remove()
    for point in ends:
        begin()
        attempt(world, remove, point, fault)
        remove()
        assert not world.lab.destination().facts().copy, point
        assert world.view_content() == content, point
    world.lab.change(world.lab.source(), 1)
    world.service.update(NAME)
    assert world.in_step()
    sound(world)
    checked(world)


@pytest.mark.parametrize("fault", EACH)
@pytest.mark.parametrize("verb", ["resync", "restore"])
def test_abort_hard(world: World, verb: str, fault: str) -> None:
    """It gives up a verb that stands half way and waits for a decision; it is itself broken."""
    world.initialized(keep_source=4, keep_destination=8)
    scene = SCENES[verb]
    switched = (
        "BTRFS:ROLLBACK:EXCHANGE"
        if world.lab.kind.startswith("btrfs")
        else "ENGINE:SWITCH:CONFIRMED"
    )
    seeds = itertools.count()

    def half_way() -> str:
        goal = scene.prepare(world, next(seeds))
        attempt(world, lambda: scene.work(world), (switched, 1), "crash")
        return goal.losing

    def abort() -> object:
        return world.service.abort(NAME, hard=True)

    def check(losing: str, point: Point | None) -> None:
        loser = end(world, "destination" if verb == "resync" else "source")
        assert loser.facts().role is Role.LIVE and world.lab.content(loser) == losing, point
        scene.work(world)
        world.service.update(NAME)
        assert world.in_step(), point

    losing = half_way()
    found = points(abort, least=1)
    check(losing, None)
    for point in found:
        losing = half_way()
        attempt(world, abort, point, fault)
        abort()
        check(losing, point)
    sound(world)
    checked(world)


def test_break_says_that_it_gave_up_a_restore(world: World) -> None:
    world.initialized()
    world.service.break_off(NAME)
    world.lab.change(world.lab.destination(), 1)

    def restore() -> object:
        return world.service.restore_all(NAME, snapshot=None, yes=True, force=True)

    attempt(world, restore, ("ENGINE:SWITCH:CONFIRMED", 1), "crash")
    text = world.service.break_off(NAME).text
    assert text.startswith(f"'{NAME}' is already broken off.")
    assert "the interrupted restore was given up" in text


def test_abort_hard_says_that_it_completed_a_resync(world: World) -> None:
    """Nothing was written after the break: there is nothing to put back."""
    world.initialized()
    world.service.break_off(NAME)
    world.lab.change(world.lab.source(), 1)

    def resync() -> object:
        return world.service.resync(NAME, yes=True)

    attempt(world, resync, ("CATALOGUE:OPERATION:END", 1), "crash")
    text = world.service.abort(NAME, hard=True).text
    assert "was completed, as it lost nothing: it is mirrored." in text
    assert world.lab.destination().facts().role is Role.MIRROR
    world.service.update(NAME)
    assert world.in_step()


class Kept:
    """What each snapshot held when it was shown: it must hold that as long as it is there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shown: dict[str, str] = {}

    def note(self, content: str) -> None:
        """The view is that now."""
        self._shown[end(self._world, "destination").facts().shown or ""] = content

    def check(self) -> None:
        """At both ends, by their content."""
        compared = 0
        for which in ("source", "destination"):
            driver = end(self._world, which)
            for one in driver.snapshots():
                if one.guid in self._shown:
                    content = self._world.lab.snapshot_content(driver, one.guid)
                    assert content == self._shown[one.guid], (which, one.name)
                    compared += 1
        assert compared >= 2, "what is shown is there, at both ends"


@pytest.mark.parametrize(
    "faults",
    [
        ["crash", "error"],
        pytest.param(["crash"], marks=pytest.mark.nightly),
        pytest.param(["error"], marks=pytest.mark.nightly),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("verb", SCENES)
def test_switching(world: World, verb: str, faults: list[str]) -> None:
    """The steps meet these in turn. error: an I/O error or a full disk, and the other of both when
    the verb is given again.
    """
    world.initialized(keep_source=4, keep_destination=8)
    scene, held = SCENES[verb], Kept(world)
    scene.prepare(world, 0)
    found = own_labels(world, scene)
    if world.lab.kind == "btrfs-tree" and verb.startswith("restore"):
        # The first one also assembles the tree of the snapshot, which the others find.
        scene.prepare(world, 0)
        found = own_labels(world, scene)
    if faults == ["crash"] and world.lab.kind == "btrfs" and verb in WRITTEN:
        found = found[::3]  # test_kills.py has them all
    if len(faults) > 1 and isinstance(world.lab, SetLab):
        # Those of the engine; the volumes' own are the same for one alone.
        found = [
            label for at, label in enumerate(found) if label.startswith("ENGINE") or at % 3 == 0
        ]
    for seed, label in enumerate(found, 1):
        goal = scene.prepare(world, seed)
        turn, number = faults[seed % len(faults)], seed // len(faults)
        kinds = ["crash"] if turn == "crash" else ["io-error", "disk-full"]
        if number % 2:
            kinds.reverse()
        attempt(world, lambda: scene.work(world), (label, 1), kinds[0])
        if turn == "error" and world.status()["source"] == goal.source:
            attempt(world, lambda: scene.work(world), (label, 1), kinds[1], sure=False)
        finish(world, scene, goal)
        assert world.source_content() == goal.winning == world.view_content(), label
        held.note(goal.winning)
        left = kept(world)
        if goal.losing:
            assert goal.losing in {one.content for one in left}, f"the losing side, {label}"
        for one in left:
            one.driver.delete_snapshot(one.guid)
        assert world.lab.destination().stagings() == [] == world.lab.source().stagings(), label
        assert world.status()["healthy"], label
        sound(world)
    held.check()
    checked(world)


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
        assert is_either(world.view_content(), old, new), label
        world.again().update(NAME)
        assert world.in_step(), label
        sound(world)
    assert killed >= 8
    assert working_on("receive", str(world.lab.destination().location)) == []
