"""Definitions are read again while commands, probes and other reloads go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mirrord.control.commands.create import create
from mirrord.control.commands.delete import delete
from mirrord.core.results import Silent
from mirrord.daemon.daemon import Daemon
from tests.support.definitions import add_lines
from tests.support.labs import open_lab
from tests.support.world import NAME, World


class Held:
    """Holds the result of the daemon's next probe back: it is older than all that happens until
    `release`.
    """

    def __init__(self, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_read, self._go_on = asyncio.Event(), asyncio.Event()
        probe = daemon.workers.probe

        async def slow(work: Any) -> Any:
            monkeypatch.setattr(daemon.workers, "probe", probe)
            found = await probe(work)
            self.has_read.set()
            await self._go_on.wait()
            return found

        monkeypatch.setattr(daemon.workers, "probe", slow)

    def release(self) -> None:
        self._go_on.set()


def with_daemon(
    folder: Path, check: Callable[[World, Daemon], Awaitable[None]], *lines: str
) -> None:
    """Do `check` with a daemon in this process that has one initialized mirror."""

    async def run() -> None:
        daemon = Daemon(world.paths)
        await daemon.begin()
        await asyncio.wait_for(check(world, daemon), 60)
        await daemon.end(patience_s=0)

    with open_lab("lab_block", folder) as lab:
        world = World(lab, folder / "home")
        world.initialized()
        add_lines(world.paths.mirrors / f"{NAME}.toml", *lines)
        asyncio.run(run())
        world.close()


def reschedule(world: World, before: str, after: str) -> None:
    file = world.paths.mirrors / f"{NAME}.toml"
    file.write_text(file.read_text().replace(before, after))


def rules(daemon: Daemon) -> tuple[str, ...]:
    schedule = daemon.scheduler.mirrors[NAME].schedule
    return schedule.rules if schedule else ()


def test_a_mirror_that_is_created_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(world: World, daemon: Daemon) -> None:
        held = Held(daemon, monkeypatch)
        reload = asyncio.ensure_future(daemon.reload())
        await held.has_read.wait()
        source, third = str(world.lab.source()), f"{world.lab.destination()}-third"
        await daemon.call(create("other", source, third), Silent())
        held.release()
        await reload
        assert set(daemon.scheduler.mirrors) == set(daemon.store.readings) == {NAME, "other"}

    with_daemon(tmp_path, check)


def test_a_mirror_that_is_deleted_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(_world: World, daemon: Daemon) -> None:
        held = Held(daemon, monkeypatch)
        reload = asyncio.ensure_future(daemon.reload())
        await held.has_read.wait()
        await daemon.call(delete(NAME, yes=True), Silent())
        held.release()
        await reload
        assert not daemon.scheduler.mirrors and not daemon.store.readings

    with_daemon(tmp_path, check)


@pytest.mark.parametrize("is_probe", [False, True], ids=["reload", "probe"])
def test_what_was_read_before_a_reload_does_not_replace_what_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_probe: bool
) -> None:
    async def check(world: World, daemon: Daemon) -> None:
        held = Held(daemon, monkeypatch)
        first = asyncio.ensure_future(daemon.refresh(NAME) if is_probe else daemon.reload())
        await held.has_read.wait()
        reschedule(world, "every 10h", "every 20h")
        second = asyncio.ensure_future(daemon.reload())
        await asyncio.wait({second}, timeout=2)
        held.release()
        await asyncio.gather(first, second)
        assert rules(daemon) == ("every 20h",)

    with_daemon(tmp_path, check, "schedule = 'every 10h'")
