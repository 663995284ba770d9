"""A full window of semi-sync is an alarm at once, whether or not the secondary answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrord.config.reading import parse_both
from mirrord.core.errors import Refused
from mirrord.core.status import Reading
from mirrord.daemon.steering import Steering
from mirrord.daemon.workers import Workers
from tests.live.command import Image, Mirror
from tests.live.lab import BLOCK, Client, Server, stamp, wait_until
from tests.live.test_commands import Served
from tests.live.test_dynamic import _begin, _is, _primary, _slow
from tests.live.test_hosts import Remote
from tests.live.test_policies import DYNAMIC

_BLOCKS = 16
#: A probe of a stopped secondary takes so long at least. (The alarm takes 0.6 s.)
_PROBE_S = 5.0


@contextmanager
def _stopped(secondary: Image) -> Iterator[None]:
    """Its process does not run: nothing is journaled, and a probe of it takes long."""
    pid = secondary.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _known(mirror: Mirror) -> dict[str, Any]:
    """What the daemon knows, without another look at the ends."""
    [found] = json.loads(mirror.home.run("status", "--json"))["mirrors"]
    assert isinstance(found, dict)
    return found


def _alarms(mirror: Mirror) -> int:
    text = (mirror.home.folder / "daemon.log").read_text()
    return text.count("ALARM sync: writes wait")


def _fill(mirror: Mirror, client: Client) -> float:
    """Write until a write waits, and then until that is an alarm; how long that took (s)."""
    before = _alarms(mirror)
    for block in range(_BLOCKS):
        client.send(1, block + 1, block * BLOCK, stamp(block, 1))
    client.send(1, 99, _BLOCKS * BLOCK, stamp(_BLOCKS, 1))
    began = time.monotonic()
    wait_until(lambda: _alarms(mirror) > before, "the alarm", 60)
    return time.monotonic() - began


class There:
    """What the lab's client needs of a primary at the other host."""

    def __init__(self, mirror: Mirror) -> None:
        self.nbd = mirror.destination.path.parent / "s"


def _check(mirror: Mirror, secondary: Image, served: Server) -> None:
    """In semi-sync: an alarm comes before the ends were read again, and goes."""
    with Client(served) as client:
        with _stopped(secondary):
            assert _fill(mirror, client) < _PROBE_S
            found = _known(mirror)
            assert [alarm["kind"] for alarm in found["alarms"]] == ["sync"], found["alarms"]
            # It was raised by what the primary said, not by a probe: that finds `window_full`.
            assert found["live"]["source"]["window_full"] is False, found["live"]
            assert found["problems"] == [alarm["text"] for alarm in found["alarms"]]
        answers = {client.answer() for _ in range(_BLOCKS + 1)}
        assert answers == {(each, 0) for each in (*range(1, _BLOCKS + 1), 99)}
    wait_until(lambda: _known(mirror)["alarms"] == [], "the end of the alarm", 60)


def test_semi_sync(mirror: Mirror) -> None:
    mirror.initialize("--policy", "semi-sync", "--window", str(_BLOCKS * BLOCK))
    mirror.home.start_daemon()
    mirror.home.run("serve", "db")
    wait_until(lambda: _is(mirror, "semi-sync"), "semi-sync", 60)
    wait_until(lambda: _known(mirror)["alarms"] == [], "no alarm", 60)
    _check(mirror, mirror.destination, Served(mirror))


def test_a_policy_that_changes_the_mode(mirror: Mirror) -> None:
    _begin(mirror, "--max-rpo", str(_BLOCKS * BLOCK))
    with _slow(mirror) as proxy:
        mirror.home.start_daemon()
        mirror.home.run("serve", "db")
        wait_until(lambda: _is(mirror, "in-sync"), "sync", 60)
        with Client(Served(mirror)) as client:
            proxy.late_s = 0.3
            number = 0

            def is_left() -> bool:
                nonlocal number
                number += 1
                assert client.write(BLOCK * 100, stamp(100, number)) == 0
                return _is(mirror, "semi-sync")

            wait_until(is_left, "semi-sync", 30)
        wait_until(lambda: _primary(mirror)["lag_bytes"] == 0, "the secondary", 30)
        _check(mirror, mirror.destination, Served(mirror))


def test_a_primary_at_another_host(tmp_path: Path) -> None:
    remote = Remote(tmp_path, "--allow", f"receive={tmp_path}/b")
    try:
        remote.initialize("--window", str(_BLOCKS * BLOCK))
        remote.home.run("reverse", "db", "--yes")
        remote.home.run("mode", "db", "semi-sync")
        there = There(remote)
        remote.home.run("serve", "db", "--socket", str(there.nbd))
        remote.home.start_daemon()

        def is_semi() -> bool:
            found = _known(remote)
            live = found["live"]["source"]
            return bool(live and live["state"] == "semi-sync" and found["alarms"] == [])

        wait_until(is_semi, "semi-sync", 60)
        _check(remote, remote.source, there)
    finally:
        remote.close()


@pytest.mark.parametrize("policy", ["semi-sync", "dynamic"])
def test_a_primary_that_refuses_is_an_alarm_only_of_a_policy_that_decides(policy: str) -> None:
    """For a full window another end is asked by the next loop; an older program cannot be."""
    text = DYNAMIC.replace('"dynamic"', f'"{policy}"')
    definition = parse_both("db", text, "db.toml")["primary"]
    reading = Reading("db")

    async def shown() -> Reading:
        async def refuse(_work: object) -> None:
            raise Refused("unknown command")

        tasks: list[asyncio.Future[None]] = []
        crews = cast(Workers, SimpleNamespace(window=refuse, steer=refuse))
        loops = Steering(
            crews, lambda work: tasks.append(asyncio.ensure_future(work)), lambda _name: None
        )
        loops.define(definition, "UTC")
        await asyncio.gather(*tasks)
        found = loops.shown("db", reading)
        loops.end()
        assert len(tasks) == 1
        return found

    faults = asyncio.run(shown()).faults
    assert [fault.kind for fault in faults] == ([] if policy == "semi-sync" else ["sync"])
