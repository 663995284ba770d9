"""kill -9 where a verb has done its work for some of the nested subvolumes of a volume, and not
yet for the others: nothing is lost or left read-only. (All steps: test_matrix.py, nightly.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.model import Role
from tests.contract.lab_nested import INNER, INNERMOST
from tests.crash.faults import Point, killed
from tests.crash.scenes import SCENES, end, finish, kept
from tests.support.labs import open_lab
from tests.support.world import NAME, World

POINTS: dict[str, list[Point]] = {
    "reverse": [
        ("BTRFS:FREEZE:SET", 2),
        ("BTRFS:ROLLBACK:EXCHANGE", 1),
        ("BTRFS:NESTED:DISCARD", 5),
    ],
    "resync": [
        ("BTRFS:ROLLBACK:MOVE", 1),
        ("BTRFS:ROLLBACK:READONLY", 2),
    ],
}
MORE: dict[str, list[Point]] = {
    "reverse": [
        ("BTRFS:NESTED:PLACE", 2),
        ("BTRFS:PROMOTE:EXCHANGE", 1),
        ("BTRFS:ROLLBACK:WRITABLE", 1),
        ("BTRFS:NESTED:DROP", 1),
    ],
    "resync": [
        ("BTRFS:ROLLBACK:PARTS:RENAME", 2),
        ("BTRFS:ROLLBACK:PARTS:WRITE", 3),
        ("BTRFS:ROLLBACK:KEEP", 1),
    ],
}


@pytest.fixture
def nested(tmp_path: Path) -> Iterator[World]:
    with open_lab("lab_nested", tmp_path) as lab:
        made = World(lab, tmp_path / "home")
        yield made
        made.clean_up()


@pytest.mark.parametrize(
    "chosen", [POINTS, pytest.param(MORE, marks=pytest.mark.nightly)], ids=["main", "more"]
)
@pytest.mark.parametrize("verb", POINTS)
def test_kill_minus_nine_between_two_of_them(
    nested: World, verb: str, chosen: dict[str, list[Point]]
) -> None:
    world, scene = nested, SCENES[verb]
    world.initialized(keep_source=3, keep_destination=6)
    for seed, (label, time) in enumerate(chosen[verb], 1):
        goal = scene.prepare(world, seed)
        assert killed(world, lambda: scene.work(world), label, time), f"{label} was not met"
        finish(world, scene, goal)
        assert world.source_content() == goal.winning == world.view_content(), label
        left = kept(world)
        assert not goal.losing or goal.losing in {one.content for one in left}, label
        whole = {goal.losing, goal.winning}
        assert {one.content for one in left} <= whole, "what is kept is complete"
        for one in left:
            one.driver.delete_snapshot(one.guid)
        live = end(world, "source")
        assert live.facts().role is Role.LIVE and not live.facts().frozen, label
        for inner in ("", INNER, INNERMOST):
            (Path(live.facts().view) / inner / "writable").touch()
        assert world.status()["healthy"], label


@pytest.mark.parametrize("label", ["BTRFS:NESTED:PLACE", "BTRFS:PROMOTE:BEGUN:RENAME"])
def test_kill_minus_nine_of_a_break(nested: World, label: str) -> None:
    nested.initialized()
    shown = nested.view_content()
    assert killed(nested, lambda: nested.service.break_off(NAME), label), "not met"
    assert nested.view_content() == shown
    nested.service.break_off(NAME)
    assert nested.view_content() == shown
    assert end(nested, "destination").facts().role is Role.LIVE
    nested.service.resync(NAME, yes=True)
    assert nested.in_step()
