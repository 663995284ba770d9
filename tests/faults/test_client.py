"""Our own process is killed or asked to end: nothing of it stays at either end, and it goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from mirrord.core.model import Endpoint
from mirrord.drivers.registry import open_driver
from mirrord.system import locks
from tests.support import btrfs
from tests.support.remote import MIB, SOON_S, Remote, content, one_error
from tests.support.service import PATIENCE_S


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_checkpoint(site: Remote, number: signal.Signals) -> None:
    source, copy, process = site.under_way(24 * MIB)
    process.send_signal(number)
    began_s = time.monotonic()
    _out, errors = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - began_s < SOON_S
    assert process.returncode == 128 + number, errors
    error, _hint = one_error(errors)
    assert error == f"error: interrupted: {number.name}"
    assert site.agents_after(SOON_S) == []
    assert site.status()["checkpoint_bytes"] >= 8 * MIB
    before = site.proxy.passed["up"]
    done = site.service.initialize("home")
    assert done.data["resumed_bytes"] >= 8 * MIB
    assert site.proxy.passed["up"] - before < 42 * MIB
    assert content(copy) == content(source)


@pytest.mark.parametrize("stalled", [False, True])
def test_a_client_that_is_killed_leaves_nothing_behind(site: Remote, stalled: bool) -> None:
    """stalled: the network does not even tell the other end."""
    source, copy, process = site.under_way(24 * MIB)
    if stalled:
        site.proxy.stall()
    process.kill()
    process.communicate()
    assert site.agents_after() == []
    assert locks.holder_of(copy / "lock") is None
    with open_driver(Endpoint("block", str(copy))).lock("anybody"):
        pass
    site.proxy.go_on()
    done = site.cli("initialize", "home")
    assert done.returncode == 0, done.stderr
    assert "resumed after" in done.stdout
    assert content(copy) == content(source)


def test_a_client_that_is_killed_while_it_pulls(site: Remote) -> None:
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block://dr{source}", f"block:{copy}")
    process = site.start("initialize", "home")
    site.await_passed(24 * MIB, "down")
    process.kill()
    process.communicate()
    site.close_links()
    done = site.cli("initialize", "home")
    assert done.returncode == 0, done.stderr
    assert "resumed after" in done.stdout
    assert content(copy) == content(source)


def test_a_signal_ends_a_stalled_transfer(site: Remote) -> None:
    source, copy, process = site.under_way(24 * MIB)
    site.proxy.stall()
    time.sleep(0.5)
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _out, errors = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - began_s < SOON_S
    assert process.returncode == 130, errors
    site.proxy.go_on()
    assert site.cli("initialize", "home").returncode == 0
    assert content(copy) == content(source)


def test_abort_by_the_command_line_in_a_stall(site: Remote) -> None:
    source, copy, process = site.under_way(24 * MIB)
    site.proxy.stall()
    time.sleep(0.5)
    began_s = time.monotonic()
    aborted = site.cli("abort", "home")
    assert time.monotonic() - began_s < SOON_S
    assert aborted.returncode == 0, aborted.stderr
    assert "The transfer was aborted" in aborted.stdout
    _out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert one_error(errors)[0].startswith("error: the transfer was aborted")
    site.proxy.go_on()
    assert site.cli("initialize", "home").returncode == 0
    assert content(copy) == content(source)


def test_no_receiver_of_btrfs_stays_either(site: Remote) -> None:
    with btrfs.filesystem() as one, btrfs.filesystem() as two:
        home = btrfs.make_subvolume(one / "home")
        btrfs.fill(home)
        with (home / "big").open("wb") as file:
            for _ in range(64):
                file.write(os.urandom(MIB))
        site.create(f"btrfs:{home}", f"btrfs://dr{two}/copy")
        process = site.start("initialize", "home")
        site.await_passed(24 * MIB)
        process.kill()
        process.communicate()
        site.close_links()
        done = site.cli("initialize", "home")
        assert done.returncode == 0, done.stderr
        assert btrfs.digest(two / "copy/current") == btrfs.digest(home)
        site.close_links()
