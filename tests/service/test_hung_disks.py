"""Disks that hang occupy all threads for probes. Commands end nevertheless."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from mirrord.control.command import Call
from mirrord.control.commands.abort import abort
from mirrord.control.commands.break_ import break_off
from mirrord.control.commands.quiesce import quiesce
from mirrord.control.commands.reverse import reverse
from mirrord.core.results import Result, Silent
from mirrord.daemon import daemon as daemon_module
from mirrord.daemon.daemon import Daemon
from mirrord.daemon.workers import PROBES
from tests.support.labs import open_lab
from tests.support.world import NAME, World


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (quiesce(NAME), "done"),
        (abort(NAME), "already_idle"),
        (break_off(NAME), "done"),
        (reverse(NAME), "confirmation-required"),
    ],
    ids=["at once", "ends runs", "breaks", "queued"],
)
def test_a_command_is_answered_and_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call[Any], status: str
) -> None:
    monkeypatch.setattr(daemon_module, "_PROBE_S", 0.2)

    async def check() -> None:
        daemon, end = Daemon(world.paths), threading.Event()
        await daemon.begin()
        hung = [daemon.workers.probe(lambda _service: end.wait(60)) for _ in range(PROBES)]
        found = await asyncio.wait_for(daemon.call(call, Silent()), 30)
        assert isinstance(found, Result) and found.status == status
        watched = daemon.scheduler.mirrors[NAME]
        assert not watched.held and not daemon.scheduler.queue.running
        verb = call.command.name
        assert watched.standing.mirrored is (verb != "break_off")  # or a run would begin
        assert watched.standing.quiesced is (verb == "quiesce")
        end.set()
        await asyncio.gather(*hung)
        await daemon.refresh(NAME)
        state = daemon.store.readings[NAME]
        assert state.quiesced is (verb == "quiesce")
        await daemon.end(patience_s=0)

    with open_lab("lab_block", tmp_path) as lab:
        world = World(lab, tmp_path / "home")
        world.initialized()
        asyncio.run(check())
        world.close()


def test_a_probe_that_fails_unexpectedly_lets_the_mirror_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        daemon = Daemon(world.paths)
        await daemon.begin()

        async def fail(_name: str) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(daemon, "refresh", fail)
            found = await daemon.call(abort(NAME), Silent())
        assert found.status == "already_idle"
        assert not daemon.scheduler.mirrors[NAME].held
        await daemon.end(patience_s=0)

    with open_lab("lab_block", tmp_path) as lab:
        world = World(lab, tmp_path / "home")
        world.initialized()
        asyncio.run(check())
        world.close()
