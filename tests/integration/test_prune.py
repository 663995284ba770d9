"""Retention at both ends, and room made before a transfer."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.catalogue.store import Catalogue, Confirmed
from mirrord.core.errors import NoSpace, Refused
from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.states import State
from mirrord.engine import prune
from mirrord.engine.mirror import Mirror
from mirrord.system import clock
from mirrord.system.paths import Paths
from tests.support import btrfs
from tests.support.definitions import set_keep
from tests.support.labs import open_lab
from tests.support.snapshots import delete_by_force
from tests.support.verbs import Service
from tests.support.world import NAME, World

HOUR_S = 3600.0


class Calendar:
    """A clock whose wall time a test sets; all else is real."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def now_ns(self) -> int:
        return time.time_ns() + round(self.offset_s * 1e9)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        return self.monotonic_s()

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def calendar() -> Calendar:
    made = Calendar()
    clock.use(made)
    return made


@pytest.fixture
def block(tmp_path: Path, calendar: Calendar) -> Iterator[World]:
    """Of block volumes: btrfs has the kernel's own time of each snapshot, which no test sets."""
    with open_lab("lab_block", tmp_path) as lab:
        made = World(lab, tmp_path / "home")
        yield made
        made.close()


def names(world: World, end: str) -> list[str]:
    rows = world.service.snapshots(NAME).snapshots
    return [row.name for row in rows if getattr(row, end)]


def hourly(world: World, calendar: Calendar, count: int, seed: int = 0) -> None:
    for number in range(count):
        calendar.offset_s += HOUR_S
        world.lab.change(world.lab.source(), seed + number)
        world.service.update(NAME)


def test_rules_hold_at_both_ends_and_never_take_the_base(block: World, calendar: Calendar) -> None:
    world = block
    world.initialized(keep_source="newest 1, 3 hourly", keep_destination="newest 2, 5 hourly")
    hourly(world, calendar, 8)
    assert len(names(world, "source")) == 3
    # A block destination may have to give up more: what the source reuses.
    assert 3 <= len(names(world, "destination")) <= 5
    assert world.status()["healthy"] and world.in_step()


def test_a_dry_run_shows_what_goes_and_why_the_rest_stays(world: World) -> None:
    world.initialized(keep_source=20, keep_destination=20)
    for seed in range(5):
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
    file = world.paths.mirrors / f"{NAME}.toml"
    set_keep(file, "primary", '"2 hourly"')
    before = names(world, "source")
    shown = world.service.prune(NAME, dry_run=True, accept=False)
    assert shown.status == "planned" and names(world, "source") == before
    source = shown.data["ends"]["source"]
    assert len(source["gone"]) + len(source["kept"]) == len(before)
    assert all(each["why"] for each in (*source["gone"], *source["kept"]))
    assert any("base of the next update" in why for each in source["kept"] for why in each["why"])
    assert "would be deleted" in shown.text


def test_history_is_in_the_order_of_what_happened_after_the_clock_was_set_back(
    block: World, calendar: Calendar
) -> None:
    world = block.initialized()
    catalogue = Catalogue(world.paths.catalogue)
    mirror_id = world.service.status(NAME)[0].reading.id
    calendar.offset_s += 24 * HOUR_S
    hourly(world, calendar, 1)
    catalogue.add_event(mirror_id, "info", "before")
    calendar.offset_s = -2 * HOUR_S
    catalogue.add_attempt(mirror_id, verb="update", cause="retry", number=1, code="x", error="why")
    hourly(world, calendar, 1, seed=1)
    catalogue.add_event(mirror_id, "info", "after")
    catalogue.close()
    done = world.cli("history", NAME)
    found = re.findall("initialize|update .*incremental|before|attempt|after", done.stdout)
    assert [word.split()[0] for word in found][-6:] == [
        "initialize", "update", "before", "attempt", "update", "after"
    ], done.stdout  # fmt: skip
    last = world.service.history(NAME, limit=9)
    assert last.transfers[0].recorded > last.attempts[0].recorded > last.events[1].recorded > 0


def test_a_clock_that_leaps_ahead_takes_nothing(block: World, calendar: Calendar) -> None:
    world = block
    world.initialized(keep_source="newest 2, 24 hourly", keep_destination="newest 2, 24 hourly")
    hourly(world, calendar, 4)
    before = set(names(world, "destination"))
    calendar.offset_s += 400 * 24 * HOUR_S
    world.lab.change(world.lab.source(), 50)
    world.service.update(NAME)
    assert before <= set(names(world, "destination"))
    calendar.offset_s -= 400 * 24 * HOUR_S
    world.lab.change(world.lab.source(), 51)
    world.service.update(NAME)
    assert before <= set(names(world, "destination"))
    assert world.in_step()
    world.forget_catalogue()
    world.lab.change(world.lab.source(), 52)
    world.service.update(NAME)
    assert before <= set(names(world, "destination")), "nobody has accepted these times"


def test_a_prune_of_more_than_the_share_is_refused_until_it_is_accepted(world: World) -> None:
    world.initialized(keep_source=9, keep_destination=9)
    for seed in range(8):
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
    file = world.paths.mirrors / f"{NAME}.toml"
    set_keep(file, "primary", "1")
    refused = world.service.prune(NAME, dry_run=False, accept=False)
    assert refused.status == "refused" and "prune_share" in refused.text
    assert len(names(world, "source")) == 9
    assert world.service.prune(NAME, dry_run=False, accept=True).status == "done"
    assert len(names(world, "source")) == 1
    world.lab.change(world.lab.source(), 99)
    assert world.service.update(NAME).status == "done"
    assert world.in_step()


def test_order_is_the_lists_own_whatever_numbers_the_two_ends_count_in(block: World) -> None:
    """What was just sent has its number from the source, where less may have happened."""
    world = block.initialized(keep_destination="newest 1, 3 minutely")
    minute_ns = 60 * 10**9
    first_ns = clock.now_ns() - 10 * minute_ns
    made = [
        Snapshot(f"g{n}", f"s{n}", SnapshotKind.REFERENCE, 5000 + n, first_ns + n * minute_ns)
        for n in range(5)
    ]
    sent = Snapshot("g9", "s9", SnapshotKind.REFERENCE, 7, first_ns + 9 * minute_ns)

    def look(mirror: Mirror) -> prune.End:
        mirror.catalogue.adopt(
            mirror.id, State.MIRRORED, [*made, sent], sequence=9, confirmed=Confirmed("", 0)
        )
        return prune.look(mirror, "destination", [*made, sent], protected={"g9": "base"})

    end = world.service.look(NAME, look)
    assert end.doubts == []
    assert [snapshot.guid for snapshot in end.kept] == ["g3", "g4", "g9"]


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[tuple[Service, Path, Path]]:
    """A source, and a destination on a file system of 600 MiB."""
    with btrfs.filesystem() as here, btrfs.filesystem(size_mib=600) as there:
        source = btrfs.make_subvolume(here / "home")
        home = tmp_path / "home"
        service = Service(Paths(home / "etc", home / "state", home / "run"))
        yield service, source, there
        service.close()


def test_room_is_made_by_pruning_before_the_transfer(tight: tuple[Service, Path, Path]) -> None:
    service, source, there = tight
    service.create(NAME, f"btrfs:{source}", f"btrfs:{there}/copy", keep_destination=2)
    service.initialize(NAME)
    for _ in range(2):
        (source / "large").write_bytes(os.urandom(150 << 20))
        service.update(NAME)
    # 300 MiB are held, by two snapshots of which one may go; 250 more do not fit beside them.
    file = service.paths.mirrors / f"{NAME}.toml"
    set_keep(file, "secondary", "1")
    (source / "large").write_bytes(os.urandom(250 << 20))
    assert service.update(NAME).status == "done"
    events = [event.text for event in service.history(NAME, limit=9).events]
    assert any(text.startswith("pruned 1 snapshot first") for text in events)


def test_what_cannot_fit_is_refused_early_with_figures(tight: tuple[Service, Path, Path]) -> None:
    service, source, there = tight
    service.create(NAME, f"btrfs:{source}", f"btrfs:{there}/copy")
    service.initialize(NAME)
    (source / "large").write_bytes(os.urandom(700 << 20))
    subprocess.run(["sync", "-f", there], check=True)  # of this one alone
    with pytest.raises(NoSpace) as caught:
        service.update(NAME)
    assert "needs 7" in caught.value.why and "is free" in caught.value.why
    assert service.history(NAME, limit=1).transfers[0].stream_bytes == 0


def test_nothing_is_pruned_by_hand_while_an_end_is_not_there(block: World) -> None:
    world = block
    world.initialized(keep_source=9, keep_destination=9)
    for seed in range(3):
        world.lab.change(world.lab.source(), seed)
        world.service.update(NAME)
    source = world.lab.source()
    for snapshot in source.snapshots()[1:]:
        delete_by_force(source, snapshot.guid)
    file = world.paths.mirrors / f"{NAME}.toml"
    set_keep(file, "secondary", "1")
    place = Path(str(source).removeprefix("block:"))
    away = place.rename(place.with_name("not-mounted"))
    before = [snapshot.guid for snapshot in world.lab.destination().snapshots()]
    with pytest.raises(Refused, match="while an end is missing"):
        world.service.prune(NAME, dry_run=False, accept=True)
    assert [snapshot.guid for snapshot in world.lab.destination().snapshots()] == before
    away.rename(place)
    # The oldest is the only one that both ends have: it stays although only one is to be kept.
    world.service.prune(NAME, dry_run=False, accept=True)
    world.service.resync(NAME, yes=True)
    assert world.in_step()


def test_a_lost_catalogue_makes_nobody_prune_what_another_mirror_took(block: World) -> None:
    world = block
    world.initialized(keep_destination=2)
    world.service.break_off(NAME)
    destination = world.lab.destination()
    third = Path(str(destination).removeprefix("block:")).with_name("third")
    world.service.create("other", str(destination), f"block:{third}", keep_source=9)
    world.service.initialize("other")
    for seed in range(4):
        world.lab.change(destination, seed)
        world.service.update("other")
    before = [snapshot.guid for snapshot in destination.snapshots()]
    world.service.close()
    for file in world.paths.state.glob("catalogue*"):
        file.unlink()
    assert world.status()["state"] == "broken-off"
    world.service.prune(NAME, dry_run=False, accept=True)
    assert [snapshot.guid for snapshot in destination.snapshots()] == before


def test_a_refusal_is_not_forgotten_by_a_run_that_finds_nothing_new(
    block: World, calendar: Calendar
) -> None:
    world = block
    world.initialized(keep_source="newest 2", keep_destination="newest 2")
    hourly(world, calendar, 2)
    calendar.offset_s -= 100 * HOUR_S
    world.lab.change(world.lab.source(), 50)
    assert "before it" in world.service.update(NAME).data["prune_refused"]
    assert "before it" in world.service.update(NAME).data["prune_refused"]
    world.service.prune(NAME, dry_run=False, accept=True)
    assert world.service.update(NAME).data["prune_refused"] == ""
