"""Programs that have files of a volume open for writing while that is switched."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import pytest

from mirrord.core.errors import Busy, Refused
from mirrord.core.model import Role, SnapshotKind
from mirrord.core.results import Result
from mirrord.drivers.contract import Driver
from tests.failover.test_break import Mirror, mirror
from tests.failover.test_interrupted import end
from tests.support.world import NAME, World

__all__ = ["mirror"]


def begin_resync(world: World) -> tuple[Driver, Callable[[bool], Result]]:
    world.service.break_off(NAME)
    return end(world, "destination"), lambda force: world.service.resync(
        NAME, yes=True, force=force
    )


def begin_reverse(world: World) -> tuple[Driver, Callable[[bool], Result]]:
    return end(world, "source"), lambda force: world.service.reverse(NAME, yes=True, force=force)


def begin_restore(world: World) -> tuple[Driver, Callable[[bool], Result]]:
    return end(world, "source"), lambda force: world.service.restore_all(
        NAME, snapshot=None, yes=True, force=force
    )


VERBS = {"resync": begin_resync, "reverse": begin_reverse, "restore": begin_restore}


def found(world: World) -> set[int]:
    """The numbers that are in a live volume or were kept aside, at either end."""
    numbers: set[int] = set()
    for which in ("source", "destination"):
        driver = end(world, which)
        if driver.facts().role is Role.LIVE:
            numbers |= world.lab.written(driver)
        for one in driver.snapshots():
            if one.kind is SnapshotKind.DIVERGED:
                numbers |= world.lab.written(driver, one.guid)
    return numbers


@pytest.mark.parametrize("verb", VERBS)
def test_an_open_file_refuses_a_switch_and_with_force_nothing_is_lost(
    world: World, verb: str
) -> None:
    world.initialized()
    losing, switch = VERBS[verb](world)
    with world.lab.writing(losing) as write:
        assert write(0)
        role = losing.facts().role
        with pytest.raises((Refused, Busy), match=r"open for writing|\(writing\)") as refused:
            switch(False)
        assert "process " in str(refused.value).lower()
        if world.lab.kind != "block":
            assert "--force" in refused.value.hint
        assert losing.facts().role is role and write(1)
        if world.lab.kind == "block":
            with pytest.raises(Busy):
                switch(True)
            assert losing.facts().role is role
        else:
            switch(True)
        acknowledged = {0, 1} | {number for number in range(2, 6) if write(number)}
    world.again()
    assert acknowledged <= found(world)


def test_a_plan_names_what_is_lost_and_who_writes(mirror: Mirror) -> None:
    mirror.service.break_off(NAME)
    with (mirror.view / "file").open("a") as held:
        (mirror.view / "other").write_text("of its own")
        plan = mirror.service.resync(NAME, yes=False)
    assert plan.status == "confirmation-required" and plan.data["lost_files"] == ["other"]
    [writer] = plan.data["writers"]
    assert writer["pid"] == os.getpid() and writer["path"] == held.name
    assert "other" in plan.text and f"Process {os.getpid()}" in plan.text


def test_what_is_written_after_a_forced_reverse_is_kept_and_said(mirror: Mirror) -> None:
    """btrfs cannot stop who has a file open. What came before the freeze is in the new source."""
    with (mirror.source / "file").open("r+b", buffering=0) as held:
        held.write(b"before")
        result = mirror.service.reverse(NAME, yes=True, force=True)
        held.write(b" after")
    assert mirror.content() == "before"
    [kept] = (mirror.source.parent / ".mirrord/home/diverged").iterdir()
    assert (kept / kept.name / "file").read_text() == "before after"
    assert result.data["kept_as"] == kept.name
    assert f"open for writing: what it writes goes to {kept.name} only" in result.text


def test_a_mapping_without_a_descriptor_counts_as_open(mirror: Mirror) -> None:
    with (mirror.source / "file").open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    with memory:
        with pytest.raises(Refused, match="open for writing"):
            mirror.service.restore_all(NAME, snapshot=None, yes=True)
        memory[:3] = b"TWO"
        memory.flush()
    mirror.service.restore_all(NAME, snapshot=None, yes=True)
    assert (mirror.source / "file").read_text() == "two"
    [kept] = (mirror.source.parent / ".mirrord/home/diverged").iterdir()
    assert (kept / kept.name / "file").read_text() == "TWO"


def test_reading_files_counts_as_a_change_where_access_times_are_kept(mirror: Mirror) -> None:
    """What was read may differ from the snapshot in its access times: it is kept, not dropped."""
    store = mirror.source.parent / ".mirrord/home/diverged"
    mirror.service.restore_all(NAME, snapshot=None, yes=True)
    assert list(store.glob("*")) == []
    assert (mirror.source / "file").read_text() == "two"
    mirror.service.restore_all(NAME, snapshot=None, yes=True)
    assert len(list(store.glob("*"))) == 1
