"""The loops of live mirrors in the daemon: which run, and what they show."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.model import Definition
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.core.status import Reading
from mirrord.daemon.steering import Steering
from mirrord.daemon.tasks import Tasks
from mirrord.daemon.workers import WINDOWS, Workers
from mirrord.system import clock


def _live(name: str, policy: str) -> Definition:
    image = parse_endpoint("image:/srv/a")
    return Definition(name, "1a2b3c4d", image, image, policy=policy)


def test_a_mirror_whose_window_is_only_probed_gets_another_policy() -> None:
    async def check() -> None:
        steered, ended = list[str](), asyncio.Event()

        async def window(_work: object) -> None:
            await ended.wait()

        async def steer(_work: object) -> None:
            steered.append("dynamic")

        tasks = Tasks()
        workers = cast(Workers, SimpleNamespace(window=window, steer=steer))
        steering = Steering(workers, tasks.begin, lambda _name: None)
        for number in range(WINDOWS + 1):
            steering.define(_live(f"db{number}", "semi-sync"), "UTC")
        steering.define(_live(f"db{WINDOWS}", "dynamic"), "UTC")
        await asyncio.sleep(0.05)
        assert steered == ["dynamic"]
        ended.set()
        await tasks.ended(9)
        steering.end()

    asyncio.run(check())


def test_a_full_window_is_shown_beside_a_lost_link_and_a_failed_policy() -> None:
    async def check() -> None:
        async def steer(_work: object) -> None:
            raise RuntimeError("no")

        tasks = Tasks()
        workers = cast(Workers, SimpleNamespace(steer=steer))
        steering = Steering(workers, tasks.begin, lambda _name: None)
        steering.define(_live("db", "dynamic"), "UTC")
        await tasks.ended(9)
        lost = Finding(AlarmKind.SYNC, Level.WARNING, "the replica is not connected")
        full = Finding(AlarmKind.SYNC, Level.ERROR, "writes wait")
        reading = steering.shown("db", Reading("db", faults=(lost,)))
        steered = steering._steered["db"]
        steered.full, steered.full_s = full, clock.monotonic_s()
        for _ in range(2):  # it is shown again from what was shown
            reading = steering.shown("db", reading)
            assert reading.faults[:2] == (full, lost)
            assert "the policy 'dynamic' failed" in reading.faults[2].text
            assert len(reading.faults) == 3
        steering.end()

    asyncio.run(check())


def test_a_loop_of_a_policy_that_cannot_run_is_shown() -> None:
    async def check() -> None:
        async def steer(_work: object) -> None:
            raise RuntimeError("can't start new thread")

        tasks = Tasks()
        workers = cast(Workers, SimpleNamespace(steer=steer))
        steering = Steering(workers, tasks.begin, lambda _name: None)
        steering.define(_live("db", "dynamic"), "UTC")
        await tasks.ended(9)
        [fault] = steering.shown("db", Reading("db")).faults
        assert "it cannot be applied: RuntimeError: can't start new thread" in fault.text
        steering.end()

    asyncio.run(check())
