"""`break --test`: a failover is tried on a writable copy, and the mirror goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirrord.core.errors import Refused
from mirrord.core.model import Role
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs
from tests.support.world import NAME, World


def test_a_try_leaves_the_mirror_as_it_is(world: World) -> None:
    world.initialized()
    made = world.service.begin_test(NAME)
    assert made.status == "done" and made.data["location"] == world.status()["copy"]
    assert world.service.begin_test(NAME).status == "already_there"
    world.lab.change(world.lab.source(), 5)
    assert world.service.update(NAME).status == "done"
    assert world.in_step()
    status = world.status()
    assert status["state"] == "mirrored" and status["healthy"] and status["copy"]
    ended = world.service.end_test(NAME)
    assert ended.status == "done" and str(made.data["location"]) in ended.text
    assert world.service.end_test(NAME).status == "already_gone"
    assert world.status()["copy"] == ""


def test_a_destination_that_is_writable_gets_no_copy(world: World) -> None:
    world.initialized()
    world.service.break_off(NAME)
    with pytest.raises(Refused, match="already writable") as caught:
        world.service.begin_test(NAME)
    assert "mirrord resync" in caught.value.hint
    assert world.service.resync(NAME, yes=True).status == "done"


@pytest.mark.in_process
def test_the_command_line_makes_and_removes_a_copy(world: World) -> None:
    world.create()
    early = world.cli("break", NAME, "--test")
    assert early.returncode == 1 and "never initialized" in early.stderr
    world.service.initialize(NAME)
    place = f"{world.lab.destination().location}-tried"
    made = world.cli("break", NAME, "--test", "--at", place)
    assert made.returncode == 0 and f"{place} is a writable copy" in made.stdout
    assert place in world.cli("status", NAME).stdout
    other = world.cli("break", NAME, "--test", "--at", f"{place}-2")
    assert other.returncode == 1 and "--end-test" in other.stderr
    for words in (("--at", place), ("--test", "--end-test"), ("--test", "--at", "not/absolute")):
        assert world.cli("break", NAME, *words).returncode == 2, words
    ended = world.cli("break", NAME, "--end-test", "--json")
    assert json.loads(ended.stdout)["status"] == "done"
    assert type(world.lab.destination())(place).facts().role is Role.ABSENT


def test_a_copy_that_another_mirror_has_as_its_source_is_not_removed(tmp_path: Path) -> None:
    with btrfs.folders() as (here, there):
        world = World(BtrfsLab(here, there), tmp_path / "home").initialized()
        copy = Path(str(world.service.begin_test(NAME).data["location"]))
        world.service.create("further", f"btrfs:{copy}", f"btrfs:{here / 'further'}")
        world.service.initialize("further")
        (copy / "work").write_text("of today")
        with pytest.raises(Refused, match="source of another mirror"):
            world.service.end_test(NAME)
        assert (copy / "work").read_text() == "of today"
        world.service.delete("further", yes=True, keep_snapshots=False)
        assert world.service.end_test(NAME).status == "done" and not copy.exists()
        world.close()
