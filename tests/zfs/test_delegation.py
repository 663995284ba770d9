"""A mirror's life as a user who is not root, with exactly the permissions that the guide lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.core.errors import PermissionMissing
from mirrord.core.model import Endpoint
from mirrord.drivers.contract import Driver
from mirrord.drivers.zfs.commands.permissions import DESTINATION, FAILOVER, SOURCE
from mirrord.drivers.zfs.dataset.delegation import allow_command
from mirrord.link.driver import RemoteDriver
from tests.contract.flows import MIRROR, mirror, stage
from tests.zfsvm.agents import guest_agents
from tests.zfsvm.guest import Guest

USER = "tester"
GUIDE = Path(__file__).parents[2] / "docs/operator-guide.md"


class Ends(NamedTuple):
    guest: Guest
    home: str
    backup: str
    source: Driver
    destination: Driver

    def as_user(self, *words: str) -> str:
        return self.guest.fails("setpriv", "--reuid=1000", "--clear-groups", *words)

    def allow(self, role: str, *, without: str = "") -> None:
        place = self.home if role == "source" else self.backup
        words = allow_command(place, role, USER).split()
        words[4] = ",".join(each for each in words[4].split(",") if each != without)
        self.guest.run(*words)


@pytest.fixture
def ends(zfs_guest: Guest) -> Iterator[Ends]:
    with zfs_guest.datasets() as name, guest_agents(zfs_guest, user=USER) as others:
        home, backup = f"here/{name}/home", f"there/{name}/backup"
        zfs_guest.run("zfs", "create", home)
        zfs_guest.user("fill", f"/{home}", 0)

        def driver(location: str) -> Driver:
            return RemoteDriver.of(Endpoint("zfs", location, "there"), others)

        yield Ends(zfs_guest, home, backup, driver(home), driver(backup))


def test_a_user_mirrors_with_the_listed_permissions_and_nothing_else(ends: Ends) -> None:
    ends.allow("source")
    ends.allow("destination")
    ends.destination.prepare(MIRROR)
    first = mirror(ends.source, ends.destination, None, "one")
    ends.guest.user("change", f"/{ends.home}", 1)
    assert ends.source.changed_since(first.guid)
    second = mirror(ends.source, ends.destination, first, "two")
    assert [each.guid for each in ends.destination.snapshots()] == [first.guid, second.guid]
    assert ends.source.delta(first.guid, second.guid, states=True, files=True).changes
    ends.source.delete_snapshot(first.guid)
    ends.destination.delete_snapshot(first.guid)
    assert [each.guid for each in ends.destination.snapshots()] == [second.guid]
    said = ends.guest.run("zfs", "get", "-Hp", "-o", "value", "readonly,mounted", ends.backup)
    assert said.split() == ["on", "no"], "on Linux only root mounts"
    facts = ends.destination.facts()
    assert facts.view == "" and any("not mounted" in note for note in facts.notes)
    ends.guest.run("zfs", "mount", ends.backup)
    assert ends.guest.user("digest", f"/{ends.backup}") == ends.guest.user(
        "digest", f"/{ends.home}"
    )


@pytest.mark.nightly
def test_a_transfer_that_broke_off_can_be_dropped_by_the_user(ends: Ends) -> None:
    ends.allow("source")
    ends.allow("destination")
    ends.destination.prepare(MIRROR)
    snapshot = ends.source.take_snapshot("one")
    assert stage(ends.source, ends.destination, None, snapshot, "t1").complete
    ends.destination.discard("t1")
    assert ends.destination.stagings() == []
    mirror(ends.source, ends.destination, None, "two")


@pytest.mark.nightly
@pytest.mark.parametrize("without", ["snapshot", "userprop", "hold", "send"])
def test_what_the_source_lacks_is_named(ends: Ends, without: str) -> None:
    ends.allow("source", without=without)
    ends.allow("destination")
    ends.destination.prepare(MIRROR)
    with pytest.raises(PermissionMissing) as caught:
        mirror(ends.source, ends.destination, None, "one")
    assert f"'{without}'" in caught.value.what and USER in caught.value.what
    assert f"zfs allow -u {USER} " in caught.value.hint and without in caught.value.hint


@pytest.mark.nightly
@pytest.mark.parametrize("without", ["receive", "create", "mount", "userprop", "readonly"])
def test_what_the_destination_lacks_is_named(ends: Ends, without: str) -> None:
    ends.allow("source")
    ends.allow("destination", without=without)
    with pytest.raises(PermissionMissing) as caught:
        ends.destination.prepare(MIRROR)
        mirror(ends.source, ends.destination, None, "one")
    assert f"'{without}'" in caught.value.what and USER in caught.value.what


def test_the_guide_lists_exactly_these() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for listed in (SOURCE, DESTINATION, FAILOVER):
        assert ",".join(listed) in text
