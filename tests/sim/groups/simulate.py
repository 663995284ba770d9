"""Simulates a group through its turns, and shortens those that fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mirrord.system import steps
from tests.sim.checks import Violation
from tests.sim.groups.events import Turn, shorter
from tests.sim.groups.group import Group
from tests.sim.groups.network import Net
from tests.sim.groups.pauses import Application, ports
from tests.sim.place import scratch

_SLICE_S = 2.0


def simulate(seed: int, turns: list[Turn], folder: Path) -> Counter[str]:
    """Play it; what happened how often. Raises `Violation`."""
    world, apps = Net(folder), dict[str, Application]()
    with ports(world, apps, lambda *words: group.observed(*words)), world:
        group = Group(world, seed, folder, apps)
        steps.observe(group.step)
        try:
            world.spawn(lambda: group.direct(turns))
            while not group.finished:
                world.run(world.now_s + _SLICE_S)
        finally:
            steps.observe(None)
    group.met["writes"] = group.acknowledged
    return group.met


def violation(seed: int, turns: list[Turn]) -> Violation | None:
    """What does not hold."""
    with scratch() as folder:
        try:
            simulate(seed, turns, folder)
        except Violation as found:
            return found
    return None


def shrink(seed: int, turns: list[Turn]) -> list[Turn]:
    """As few turns and faults as still fail."""
    while True:
        for fewer in shorter(turns):
            if violation(seed, fewer) is not None:
                turns = fewer
                break
        else:
            return turns
