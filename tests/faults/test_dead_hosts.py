"""A host that does not come back must not hold up what can be done without it."""

from __future__ import annotations

import time

import pytest

from mirrord.system import steps
from tests.support.remote import MIB, SOON_S, Remote, content, one_error
from tests.support.service import PATIENCE_S


def test_a_destination_is_broken_off_without_its_source(site: Remote) -> None:
    """The case for which all of this exists."""
    source, copy = site.volume(data_bytes=MIB), site.folder / "copy"
    site.create(f"block://dr{source}", f"block:{copy}")
    site.service.initialize("home")
    before = content(copy)
    site.close_links()
    site.proxy.stall()
    broken = site.cli("break", "home")
    assert broken.returncode == 0, broken.stderr
    assert content(copy) == before
    assert site.status()["state"] == "broken-off"


def test_break_during_an_update_does_not_wait_for_a_dead_link(site: Remote) -> None:
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block://dr{source}", f"block:{copy}")
    site.service.initialize("home")
    before = content(copy)
    site.change(source, 40 * MIB)
    site.close_links()
    process = site.start("update", "home")
    site.await_passed(16 * MIB, "down")
    site.proxy.stall()
    began_s = time.monotonic()
    broken = site.cli("break", "home")
    assert broken.returncode == 0, broken.stderr
    assert time.monotonic() - began_s < 45  # and not until the link is given up: 60 s and more
    process.communicate(timeout=PATIENCE_S)
    assert content(copy) == before
    assert site.status()["state"] == "broken-off"


def test_nothing_to_abort_needs_no_connection(site: Remote) -> None:
    source = site.volume(data_bytes=MIB)
    site.create(f"block:{source}", f"block://dr{site.folder}/copy")
    site.close_links()
    site.proxy.stall()
    began_s = time.monotonic()
    done = site.cli("abort", "home")
    assert done.returncode == 0 and "No transfer of 'home' is running" in done.stdout
    assert time.monotonic() - began_s < SOON_S


def test_status_of_many_mirrors_of_a_dead_host(site: Remote) -> None:
    source = site.volume(data_bytes=MIB)
    for number in range(5):
        name = f"m{number}"
        site.create(f"block:{source}", f"block://dr{site.folder}/copy{number}", name)
    site.close_links()
    site.proxy.stall()
    began_s = time.monotonic()
    rows = site.service.status()
    assert time.monotonic() - began_s < 25  # the host is waited for once, not five times
    assert len(rows) == 5
    assert all("cannot be reached" in row.problems[0] for row in rows)


def test_a_hard_abort_and_a_deletion_do_without_it(site: Remote) -> None:
    _source, _copy, process = site.under_way()
    process.kill()
    process.communicate()
    assert site.agents_after() == []
    site.proxy.refuse()
    done = site.cli("abort", "home")
    assert done.returncode == 1 and "abort home --hard' gives it up" in one_error(done.stderr)[1]
    done = site.cli("abort", "home", "--hard")
    assert done.returncode == 0 and "given up" in done.stdout
    done = site.cli("delete", "home")
    assert done.returncode == 1 and "--yes" in one_error(done.stderr)[1]
    done = site.cli("delete", "home", "--yes")
    assert done.returncode == 0, done.stderr
    assert "The other end was not cleaned up" in done.stdout and "dr" in done.stdout
    assert site.service.definitions.names() == []
    site.proxy.go_on()


def test_a_half_done_restore_is_not_forgotten_by_a_hard_abort_without_it(site: Remote) -> None:
    """What was set aside is known from the operation's record alone."""
    source, copy = site.volume(data_bytes=MIB), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    site.service.initialize("home")
    site.change(source, MIB)
    live = content(source)

    def crash(label: str) -> None:
        if label == "CATALOGUE:OPERATION:PREPARED":
            raise KeyboardInterrupt

    steps.observe(crash)
    try:
        with pytest.raises(KeyboardInterrupt):
            site.service.restore_all("home", snapshot=None, yes=True)
    finally:
        steps.observe(None)
    site.close_links()
    site.proxy.refuse()
    error, hint = one_error(site.cli("abort", "home", "--hard").stderr)
    assert "dr" in error and "needs both ends" in hint
    site.proxy.go_on()
    done = site.cli("abort", "home", "--hard")
    assert done.returncode == 0, done.stderr
    assert content(source) == live


def test_after_a_hard_abort_without_it_the_next_transfer_is_whole(site: Remote) -> None:
    source, copy, process = site.under_way()
    process.kill()
    process.communicate()
    assert site.agents_after() == []
    site.proxy.refuse()
    assert site.cli("abort", "home", "--hard").returncode == 0
    site.proxy.go_on()
    done = site.cli("initialize", "home")
    assert done.returncode == 0, done.stderr
    assert content(copy) == content(source)
    assert site.status()["checkpoint_bytes"] == 0
    assert len(site.service.snapshots("home").snapshots) == 2, site.service.snapshots("home")
