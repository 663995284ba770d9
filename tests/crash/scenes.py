"""The verbs that switch a live volume: what comes before each, and what must have come of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.core.errors import Undecided
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.contract import Driver
from tests.contract.flows import volumes
from tests.crash.faults import labels, persist
from tests.failover.volumes import lose
from tests.support import btrfs
from tests.support.world import NAME, World

#: The ways on from a verb that cannot be finished unasked.
WAYS_ON = ("resume-operation", "abort --hard")
_ENDED = "CATALOGUE:OPERATION:END"


class Goal(NamedTuple):
    """What must come of a verb. winning: what both ends are like. losing: what must be kept as a
    `diverged` snapshot, or "". source: the endpoint that was the source before.
    """

    winning: str
    losing: str
    source: str


class Scene(NamedTuple):
    """A verb. prepare: from a mirror that works to the moment before it."""

    prepare: Callable[[World, int], Goal]
    work: Callable[[World], object]
    turns: bool = False


def end(world: World, which: str) -> Driver:
    """The driver of an end as the definition names it now."""
    return world.driver(which)


def _goal(world: World, winner: Driver, loser: Driver | None) -> Goal:
    losing = world.lab.content(loser) if loser is not None else ""
    return Goal(world.lab.content(winner), losing, world.status()["source"])


def _broken_off(world: World, seed: int) -> tuple[Driver, Driver]:
    world.service.break_off(NAME)
    source, destination = end(world, "source"), end(world, "destination")
    world.lab.change(source, 1000 + seed)
    world.lab.change(destination, seed)
    return source, destination


def _to_resync(world: World, seed: int) -> Goal:
    source, destination = _broken_off(world, seed)
    return _goal(world, source, destination)


def _to_reverse(world: World, seed: int) -> Goal:
    source = end(world, "source")
    world.lab.change(source, seed)
    return _goal(world, source, None)


def _to_fail_over(world: World, seed: int) -> Goal:
    source, destination = _broken_off(world, seed)
    return _goal(world, destination, source)


def _to_restore(world: World, seed: int) -> Goal:
    source = end(world, "source")
    world.lab.change(source, seed)
    return _goal(world, end(world, "destination"), source)


def _to_restore_lost(world: World, _seed: int) -> Goal:
    goal = _goal(world, end(world, "destination"), None)
    lose(world.lab, end(world, "source"))
    return goal


def resync(world: World) -> object:
    return world.service.resync(NAME, yes=True, force=True)


def reverse(world: World) -> object:
    return world.service.reverse(NAME, yes=True, force=True)


def restore(world: World) -> object:
    return world.service.restore_all(NAME, snapshot=None, yes=True, force=True)


SCENES = {
    "resync": Scene(_to_resync, resync),
    "reverse": Scene(_to_reverse, reverse, turns=True),
    "reverse of a mirror that is broken off": Scene(_to_fail_over, reverse, turns=True),
    "restore": Scene(_to_restore, restore),
    "restore of a lost source": Scene(_to_restore_lost, restore),
}
#: Those of which both volumes are there all the time, so that programs can write to them.
WRITTEN = [name for name in SCENES if "lost" not in name]
#: The same for each kind of volume. What switches members is the engine's, and is seen on btrfs.
EACH_KIND = [
    pytest.param(kind, name, marks=[pytest.mark.nightly] * (kind == "block" and name != "reverse"))
    for kind in ("btrfs", "block")
    for name in WRITTEN
]


def own_labels(world: World, scene: Scene) -> list[str]:
    """Each label of the verb itself once, in order: the update that is before or after it has a
    matrix of its own.
    """
    seen = labels(lambda: persist(lambda: scene.work(world)))
    confirmed = seen.index("ENGINE:SWITCH:CONFIRMED")
    done = seen.index(_ENDED, confirmed)
    begin = max((at + 1 for at in range(confirmed) if seen[at] == _ENDED), default=0)
    return list(dict.fromkeys(seen[begin : done + 1]))


class KeptAside(NamedTuple):
    """A diverged snapshot."""

    driver: Driver
    guid: str
    content: str


def kept(world: World) -> list[KeptAside]:
    """The diverged snapshots of both ends."""
    return [
        KeptAside(driver, one.guid, world.lab.snapshot_content(driver, one.guid))
        for driver in (end(world, "source"), end(world, "destination"))
        for one in driver.snapshots()
        if one.kind is SnapshotKind.DIVERGED
    ]


def finish(world: World, scene: Scene, goal: Goal) -> None:
    """The same command again; a reverse that was finished already is not turned back by it."""
    world.service.abort(NAME, hard=False)  # recovers what was interrupted
    if not scene.turns or world.status()["source"] == goal.source:
        scene.work(world)
    world.service.update(NAME)


def settle(world: World, way_on: str) -> None:
    """A person brings the mirror back to work, while programs write: an interrupted verb is
    finished, or waits for a decision, which is made.
    """

    def look() -> object:
        try:
            return world.service.recover(NAME)  # what the daemon does when it starts
        except Undecided as why:
            assert "resume-operation" in why.hint and "--hard" in why.hint
            world.again()
            if way_on == "abort --hard":
                return world.service.abort(NAME, hard=True)
            return world.service.resume_operation(NAME, yes=True)

    def go_on() -> object:
        if world.status()["state"] == "broken-off":
            return resync(world)
        return world.service.update(NAME)

    for work in (look, go_on):
        try:
            persist(work)
        finally:
            world.again()
    assert world.status()["state"] == "mirrored"
    assert end(world, "destination").facts().role is Role.MIRROR
    assert not end(world, "source").facts().frozen


def sound(world: World) -> None:
    """Both ends pass the fsck of their kind."""
    world.lab.sound(world.lab.source())
    world.lab.sound(world.lab.destination())


def checked(world: World) -> None:
    """An independent check finds nothing: that of the file system, that of the command."""
    if world.lab.kind.startswith("btrfs"):
        for which in ("source", "destination"):
            for one in volumes(end(world, which)):
                btrfs.scrub(Path(one.location).parent)
        return
    for which in ("source", "destination"):
        for one in volumes(end(world, which)):
            done = world.cli("volume", "check", one.location)
            assert done.returncode == 0, done.stdout + done.stderr
