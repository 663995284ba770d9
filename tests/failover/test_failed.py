"""Switches that fail before anything was switched: all goes on as before."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable

import pytest

from mirrord.core.errors import Refused, TransferFailed
from mirrord.core.model import Role
from mirrord.system import steps
from tests.failover.test_break import Mirror, mirror
from tests.failover.test_interrupted import CONFIRMED, LOSING, end, kept
from tests.support.world import NAME, World

__all__ = ["mirror"]


def at_step(label: str, act: Callable[[], object]) -> None:
    """Once, when that step is reached."""

    def observer(seen: str) -> None:
        if seen == label:
            steps.observe(None)
            act()

    steps.observe(observer)


@pytest.mark.parametrize("verb", LOSING)
def test_a_switch_that_fails_before_it_switched_leaves_all_as_it_was(
    world: World, verb: str
) -> None:
    world.initialized()
    losing, work = LOSING[verb](world)
    driver = end(world, losing)
    world.lab.change(driver, 60)
    content, state = world.lab.content(driver), world.status()["state"]

    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    at_step(CONFIRMED, fail)
    with pytest.raises(Exception, match="injected"):
        work()
    world.again()
    assert world.lab.content(driver) == content and driver.facts().role is Role.LIVE
    assert not driver.facts().frozen and kept(world, driver) == []
    assert world.status()["state"] == state
    assert world.service.abort(NAME, hard=True).status == "already_idle"
    work = LOSING[verb](world)[1]
    work()
    assert kept(world, driver) == [content]


def test_a_restore_that_the_next_command_finishes_is_no_problem_any_more(world: World) -> None:
    world.initialized()
    losing, work = LOSING["restore"](world)
    world.lab.change(end(world, losing), 60)

    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    at_step("CATALOGUE:OPERATION:PREPARED", fail)
    with pytest.raises(Exception, match="injected"):
        work()
    world.again()
    assert "the last restore failed" in str(world.status()["problems"])
    world.service.update(NAME)
    assert world.in_step() and world.status()["healthy"]


def test_a_freeze_that_ends_early_gives_the_reverse_up(mirror: Mirror) -> None:
    """Somebody makes the source writable, and writes, while the last snapshot is on its way."""

    def begin() -> None:
        (mirror.source / "file").write_text("three")
        at_step("CATALOGUE:TRANSFER:BEGIN", thaw)

    def thaw() -> None:
        words = ["btrfs", "property", "set", "-ts", str(mirror.source), "ro", "false"]
        subprocess.run(words, check=True)
        (mirror.source / "file").write_text("four")

    at_step(CONFIRMED, begin)
    with pytest.raises(TransferFailed, match="the reverse was cancelled"):
        mirror.service.reverse(NAME, yes=True)
    status = mirror.service.status(NAME)[0]
    assert status.state == "mirrored" and status.reading.source.endswith(str(mirror.source))
    assert (mirror.source / "file").read_text() == "four" and mirror.view.is_symlink()
    mirror.again().update(NAME)
    assert mirror.content() == "four"


@pytest.mark.parametrize("broken", [False, True])
def test_a_resync_leaves_nothing_behind_where_something_else_is_in_the_place_of_the_view(
    mirror: Mirror, broken: bool
) -> None:
    """The record beside it, which would refuse that earlier, is lost, too."""
    if broken:
        mirror.service.break_off(NAME)
    (mirror.store / "mirror.json").unlink()
    mirror.view.rename(mirror.view.with_name("aside"))
    mirror.view.symlink_to("/tmp")
    for _ in range(2):
        with pytest.raises(Refused, match="something else is in the place of"):
            mirror.again().resync(NAME, yes=True)
    status = mirror.service.status(NAME)[0]
    assert status.state == ("broken-off" if broken else "mirrored")
    assert status.reading.interrupted is None
    mirror.view.unlink()
    mirror.service.resync(NAME, yes=True)
    assert mirror.content() == "two" and mirror.view.is_symlink()
