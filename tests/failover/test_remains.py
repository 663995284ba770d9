"""What an interrupted verb has left: it is named, and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.core.model import Role
from tests.failover.test_interrupted import crash_at
from tests.support.world import NAME, World


@pytest.mark.parametrize("verb", ["abort", "resume-operation"])
def test_a_command_that_has_finished_a_reverse_says_so(world: World, verb: str) -> None:
    """It turned the sites: the mirror was opened again, and nothing was left to do."""
    world.initialized()
    before = world.status()["source"]
    world.lab.change(world.lab.source(), 65)
    crash_at(world, "CATALOGUE:OPERATION:PROMOTED", lambda: world.service.reverse(NAME, yes=True))
    if verb == "abort":
        done = world.service.abort(NAME, hard=False)
    else:
        done = world.service.resume_operation(NAME, yes=True)
    assert done.status == "done" and "The interrupted reverse of 'home' was finished" in done.text
    assert world.again().status(NAME)[0].reading.source != before


def test_a_source_that_only_its_volume_shows_as_half_restored_is_a_problem(world: World) -> None:
    """The catalogue was lost, or another host has taken over: no operation says so."""
    world.initialized(keep_source=5, keep_destination=5)
    first = world.lab.destination().snapshots()[0].name
    world.lab.change(world.lab.source(), 80)
    world.service.update(NAME)

    def restore() -> object:
        return world.service.restore_all(NAME, snapshot=first, yes=True)

    crash_at(world, "CATALOGUE:OPERATION:PREPARED", restore)
    assert not any("is read-only" in one for one in world.status()["problems"]), "it is explained"
    world.forget_catalogue()
    assert world.lab.source().facts().role is Role.MIRROR
    [problem] = world.status()["problems"]
    assert "is read-only" in problem and f"'mirrord restore {NAME} --all'" in problem
    restore()
    assert world.status()["problems"] == []


@pytest.mark.parametrize("what", ["RELATE:RECORD", "COMMIT:ROOT:COPY"])
def test_no_temporary_file_of_a_deleted_mirror_stays(world: World, what: str) -> None:
    """Killed as its first relationship record, or the copy of a root record, was written."""
    ends = world.lab.source(), world.lab.destination()
    if ends[0].kind != "block" and what != "RELATE:RECORD":
        return
    folders = [Path(one.location).parent for one in ends]
    world.create()
    label = f"{ends[0].kind.upper()}:{what}:RENAME"
    crash_at(world, label, lambda: world.service.initialize(NAME))
    assert any(one for folder in folders for one in folder.rglob(".*.new"))
    if what != "RELATE:RECORD":
        world.service.break_off(NAME)
    world.service.delete(NAME, yes=True, keep_snapshots=False)
    assert [one for folder in folders for one in folder.rglob(".*.new")] == []
