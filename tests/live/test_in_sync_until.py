"""Until when both ends were in sync, as far as an end that was broken off knows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.command import Mirror, qemu_io
from tests.live.lab import Client, End, Pair, Proxy, stamp, wait_until


@pytest.fixture
def links(pair: Pair) -> Iterator[tuple[Proxy, Proxy]]:
    """From the primary to the secondary, and back once the roles have changed."""
    there, back = Proxy(pair.secondary.link_port), Proxy(pair.primary.link_port)
    pair.primary.peer = f"127.0.0.1:{there.port}"
    pair.secondary.peer = f"127.0.0.1:{back.port}"
    yield there, back
    there.close()
    back.close()


def _status(end: End) -> dict[str, Any]:
    status = end.status()
    assert status is not None
    return status


def _wait_past(pair: Pair, moment: float) -> None:
    """Until the secondary heard of the primary after that time."""
    wait_until(lambda: int(_status(pair.secondary)["since"]) > moment, "a heartbeat")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_time_is_kept_until_the_old_primary_is_fenced(
    pair: Pair, links: tuple[Proxy, Proxy], is_restarted: bool
) -> None:
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        _wait_past(pair, time.time())
        cut = time.time()
        for each in links:
            each.cut()
        wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)
        assert client.write(0, stamp(0, 2)) == 0
    until = _status(pair.secondary)["since"]
    assert cut - 3 < until <= cut
    if is_restarted:
        time.sleep(1)  # it is stored
        pair.secondary.kill()
        pair.secondary.start()
    assert pair.secondary.ask("break") == {"ok": True}
    wait_until(lambda: pair.secondary.is_state("out-of-sync"), "service at the other end")
    pair.secondary.kill()
    pair.secondary.start()
    assert (_status(pair.secondary)["since"], _status(pair.secondary)["unfenced"]) == (until, True)
    assert pair.secondary.bytes()[:4096] == stamp(0, 1)
    for each in links:
        each.heal()
    wait_until(lambda: _status(pair.primary)["role"] == "fenced", "the fence")
    wait_until(lambda: not _status(pair.secondary)["unfenced"], "the news of it")
    pair.secondary.kill()
    pair.secondary.start()
    assert (_status(pair.secondary)["since"], _status(pair.secondary)["unfenced"]) == (until, False)


def test_out_of_sync_the_time_stands_still(pair: Pair) -> None:
    pair.start()
    _wait_past(pair, time.time())
    assert pair.primary.ask("mode async") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync")
    left = time.time()
    time.sleep(2.5)
    assert _status(pair.secondary)["since"] <= left
    assert pair.primary.ask("mode sync") == {"ok": True}
    pair.wait_in_sync()
    _wait_past(pair, left + 2.5)


def test_in_semi_sync_it_is_the_time_of_what_the_replica_has(pair: Pair) -> None:
    pair.start()
    assert pair.primary.ask("mode semi-sync") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("semi-sync"), "semi-sync")
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    _wait_past(pair, time.time())
    pair.primary.kill()
    assert pair.secondary.ask("break") == {"ok": True}
    wait_until(lambda: pair.secondary.is_state("out-of-sync"), "service at the other end")
    assert pair.secondary.bytes()[:4096] == stamp(0, 1)


def test_break_and_status_say_it(mirror: Mirror) -> None:
    mirror.initialize()
    home = mirror.home
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 1M")
    written = time.time()
    wait_until(lambda: int(home.status()["live"]["destination"]["since"]) > written, "a heartbeat")
    killed = time.time()
    mirror.source.kill()
    said = json.loads(home.run("break", "db", "--json"))
    assert said["fenced"] is False
    assert written < said["in_sync_until"] <= killed
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(said["in_sync_until"]))
    assert any(each.startswith(f"In sync until {shown}") for each in said["warnings"])
    line = f"  in sync      until {shown}; the former source may still serve clients"
    assert line in home.run("status", "db").splitlines()
    # The daemon starts its process, which learns of the break.
    home.start_daemon()
    wait_until(lambda: not home.status()["live"]["destination"]["unfenced"], "the fence", 60)
    assert f"  in sync      no since {shown}" in home.run("status", "db").splitlines()


def test_a_break_that_the_source_knows_of_needs_no_time(mirror: Mirror) -> None:
    mirror.initialize()
    said = json.loads(mirror.home.run("break", "db", "--json"))
    assert said["fenced"] is True
    assert not any("In sync until" in each for each in said["warnings"])


def test_break_says_that_the_host_was_restarted(mirror: Mirror) -> None:
    mirror.initialize()
    mirror.source.kill()
    mirror.destination.kill()
    mirror.home.environment["MIRRORD_LIVE_BOOT_ID"] = "ab" * 16
    said = json.loads(mirror.home.run("break", "db", "--json"))
    assert any("was restarted: writes that were not flushed may be" in w for w in said["warnings"])
    assert said["in_sync_until"] is None
