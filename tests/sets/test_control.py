"""The relationship records of a mirror with several members: each volume has its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.errors import Fenced, Refused
from mirrord.core.relationship import Relationship
from mirrord.drivers.contract import Driver
from tests.crash.faults import attempt, labels
from tests.support.world import NAME, SetWorld

#: What puts a record in place of the one before.
WRITTEN = {"block": "BLOCK:RELATE:RECORD:RENAME", "btrfs": "BTRFS:RELATE:RECORD:RENAME"}


@pytest.fixture
def ready(world: SetWorld) -> SetWorld:
    """Broken off, with records of the second epoch."""
    world.initialized(keep_source=3, keep_destination=4)
    world.service.break_off(NAME)
    world.lab.change(world.lab.source(), 0)
    return world


def volumes(world: SetWorld) -> list[Driver]:
    return [*world.driver("source").drivers, *world.driver("destination").drivers]


def records(world: SetWorld) -> list[Relationship | None]:
    return [record for one in volumes(world) for record in one.relationships().values()]


def test_each_volume_has_the_record_with_all_of_them(ready: SetWorld) -> None:
    found = records(ready)
    assert len(found) == 6 and len(set(found)) == 1
    [record] = set(found)
    assert record is not None and record.epoch == 2
    assert [len(site.endpoints) for site in record.sites] == [3, 3]


def test_a_crash_between_the_records_of_two_volumes_is_mended(ready: SetWorld) -> None:
    label = WRITTEN[ready.lab.kind]
    seen = labels(lambda: ready.service.resync(NAME, yes=True))
    assert seen.count(label) == 6, "one of each volume"
    for number in range(1, 7):
        ready.service.break_off(NAME)
        ready.lab.change(ready.lab.source(), number)
        attempt(ready, lambda: ready.service.resync(NAME, yes=True), (label, number), "crash")
        ready.service.update(NAME)
        assert len(set(records(ready))) == 1
        assert ready.in_step()


def test_a_member_that_was_put_back_is_brought_up(ready: SetWorld) -> None:
    older = records(ready)[0]
    assert older is not None
    ready.service.resync(NAME, yes=True)
    for volume in volumes(ready):
        volume.unrelate(older.mirror_id)
        volume.relate(older, 0)
        ready.service.close()
        for file in ready.paths.state.iterdir():
            file.unlink()
        ready.again().update(NAME)
        assert {one.epoch for one in records(ready) if one is not None} == {3}
    assert ready.in_step()


def test_another_host_is_refused_until_it_takes_all_volumes_over(
    ready: SetWorld, tmp_path: Path
) -> None:
    other = SetWorld(ready.lab, tmp_path / "other")
    other.paths.make()
    file = ready.paths.mirrors / f"{NAME}.toml"
    (other.paths.mirrors / file.name).write_text(file.read_text())
    with pytest.raises(Fenced, match="another host"):
        other.service.resync(NAME, yes=True)
    other.service.takeover(NAME, yes=True)
    assert {one.epoch for one in records(ready) if one is not None} == {3}
    with pytest.raises(Fenced, match="another host"):
        ready.service.resync(NAME, yes=True)
    other.service.resync(NAME, yes=True)
    other.close()


def test_a_mirror_is_adopted_by_any_of_its_volumes(ready: SetWorld, tmp_path: Path) -> None:
    pairs = [(row["source"], row["destination"]) for row in ready.status()["members"]]
    for number, endpoint in enumerate((pairs[2][1], pairs[1][0])):
        other = SetWorld(ready.lab, tmp_path / f"other{number}")
        other.service.adopt(endpoint, yes=True)
        [found] = other.service.status()
        assert [(row.source, row.destination) for row in found.reading.members] == pairs
        other.service.resync(NAME, yes=True)
        other.service.break_off(NAME)
        other.close()


def tables(text: str) -> tuple[str, list[str]]:
    """What is before the [[member]] tables of a definition, and these."""
    first, *members = text.split("[[member]]\n")
    return first, [one.rstrip() + "\n" for one in members]


def written(first: str, members: list[str]) -> str:
    return first + "\n".join("[[member]]\n" + one for one in members)


def test_members_that_are_reordered_added_or_removed_are_refused(world: SetWorld) -> None:
    """Each verb, before anything is touched; put back as they were, all goes on."""
    world.initialized()
    file = world.paths.mirrors / f"{NAME}.toml"
    before = file.read_text()
    first, (data, log, spare) = tables(before)
    more = re.sub(r"(\w+:[^\"]+)\"", r'\1.more"', data.replace('"data"', '"more"'))
    shown = world.driver("destination").facts().shown
    for members in ([log, data, spare], [spare, data, log], [data, log], [data, log, spare, more]):
        file.write_text(written(first, members))
        world.lab.change(world.lab.source(), len(members))
        works: tuple[Callable[[], object], ...] = (
            lambda: world.service.update(NAME),
            lambda: world.service.break_off(NAME),
            lambda: world.service.restore_all(NAME, snapshot=None, yes=True),
        )
        for work in works:
            with pytest.raises(Refused, match="are not those it was created with"):
                work()
    file.write_text(before)
    assert world.driver("destination").facts().shown == shown
    assert world.service.update(NAME).status == "done"
    assert world.in_step()


def test_a_member_that_has_moved_is_followed(world: SetWorld) -> None:
    world.initialized()
    file = world.paths.mirrors / f"{NAME}.toml"
    place = Path(world.lab.pairs()[1].destination.location)
    place.rename(place.with_name("elsewhere"))
    file.write_text(file.read_text().replace(f'{place}"', f'{place.with_name("elsewhere")}"'))
    world.lab.change(world.lab.source(), 1)
    assert world.service.update(NAME).status == "done"
    assert all(
        any("elsewhere" in endpoint for site in record.sites for endpoint in site.endpoints)
        for record in records(world)
        if record is not None
    )
