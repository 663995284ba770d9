"""kill -9 at every step of the verbs that switch a live volume, while a program writes to whatever
volume lets it: before, during, and until the mirror works again. No acknowledged line is lost.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from tests.crash.faults import killed
from tests.crash.scenes import EACH_KIND, SCENES, WAYS_ON, checked, end, own_labels, settle
from tests.failover.switches import Game, game
from tests.support.world import NAME

#: A label that the verb passes only when something was written meanwhile is tried so often.
_TRIES = 24
_LATER_S = 2.0


def _wait_for_lines(played: Game) -> None:
    """Somebody works on, where a volume is live."""
    before, deadline_s = len(played.acknowledged()), time.monotonic() + _LATER_S
    while len(played.acknowledged()) == before and time.monotonic() < deadline_s:
        time.sleep(0.02)


@pytest.mark.parametrize(("kind", "verb"), EACH_KIND)
def test_kill_minus_nine_under_a_program_that_writes(tmp_path: Path, kind: str, verb: str) -> None:
    scene = SCENES[verb]
    with game(kind, tmp_path, seed=3) as played:
        world = played.world

        def begin() -> None:
            if "resync" in verb or "broken off" in verb:
                world.service.break_off(NAME)
            _wait_for_lines(played)

        begin()
        for number, label in enumerate(own_labels(world, scene)):
            for _ in range(_TRIES):
                begin()
                if killed(world, lambda: scene.work(world), label):
                    break
                settle(world, WAYS_ON[0])
                played.check(planned=False)
            else:
                raise AssertionError(f"{label} was not met")
            _wait_for_lines(played)
            try:
                settle(world, WAYS_ON[number % 2])
            except MirrordError as error:
                raise AssertionError(f"killed at {label}: {error}") from error
            played.check(planned=False)
            world.lab.sound(end(world, "destination"))
        checked(world)
