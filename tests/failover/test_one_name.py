"""Two hosts have a mirror of one name at one volume: neither takes the other's for its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import Busy, MirrordError, Refused, UsageError
from mirrord.core.names import sequence_of
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.contract import Driver
from mirrord.drivers.registry import open_driver
from mirrord.system.paths import Paths
from tests.support import btrfs
from tests.support.verbs import Service

NAME = "home"


class Hosts(NamedTuple):
    """Two hosts, each with a mirror of `source`; the places of the copies are given to `create`."""

    kind: str
    folder: Path
    one: Service
    two: Service

    def end(self, name: str) -> str:
        return f"{self.kind}:{self.folder / name}"

    def driver(self, name: str) -> Driver:
        return open_driver(parse_endpoint(self.end(name)))

    def write(self, text: str, name: str = "source") -> None:
        if self.kind == "block":
            with Volume.open(str(self.folder / name), writable=True) as volume:
                volume.write(0, text.encode().ljust(8, b"\0"))
        else:
            (self.folder / name / "file").write_text(text)

    def read(self, name: str) -> str:
        if self.kind == "block":
            with Volume.open(str(self.folder / name)) as volume:
                return bytes(volume.read(0, 8)).rstrip(b"\0").decode()
        view = Path(self.driver(name).facts().view)
        return (view / "file").read_text()

    def names(self, name: str, mirror_id: str) -> list[str]:
        """The snapshots of a mirror at a volume."""
        listed = self.driver(name).snapshots()
        return [one.name for one in listed if sequence_of(one.name, mirror_id)]


@pytest.fixture(params=["block", "btrfs"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    homes = [tmp_path / name for name in ("one", "two")]
    services = [Service(Paths(one / "etc", one / "state", one / "run")) for one in homes]
    if request.param == "btrfs":
        with btrfs.filesystem() as folder:
            btrfs.make_subvolume(folder / "source")
            yield Hosts("btrfs", folder, *services)
    else:
        Volume.create(tmp_path / "source", 8 << 20).close()
        yield Hosts("block", tmp_path, *services)
    for service in services:
        service.close()


def both(hosts: Hosts) -> Hosts:
    """Both mirrors are up to date, and each has taken snapshots of its own."""
    hosts.write("first")
    hosts.one.create(NAME, hosts.end("source"), hosts.end("a"))
    hosts.two.create(NAME, hosts.end("source"), hosts.end("b"))
    for text in ("second", "third", "fourth"):
        for service in (hosts.one, hosts.two):
            service.update(NAME) if service.status()[0].state != "uninitialized" else (
                service.initialize(NAME)
            )
            hosts.write(text + "x" * (service is hosts.two))
    return hosts


def test_what_one_does_with_its_mirror_leaves_the_other_alone(hosts: Hosts) -> None:
    both(hosts)
    one, two = (service.definitions.load(NAME).id for service in (hosts.one, hosts.two))
    before = hosts.names("source", two)
    assert before and hosts.names("source", one)
    hosts.one.prune(NAME, dry_run=False, accept=True)
    hosts.one.break_off(NAME)
    hosts.write("mine", "a")
    hosts.one.resync(NAME, yes=True)
    hosts.one.reverse(NAME, yes=True)
    hosts.one.reverse(NAME, yes=True)
    hosts.one.delete(NAME, yes=True, keep_snapshots=False)
    # The one with which the source began shows that the other mirror's base is its ancestor.
    assert len(hosts.names("source", one)) <= 1
    assert hosts.names("source", two) == before
    hosts.write("last")
    result = hosts.two.update(NAME)
    assert result.status == "done" and hosts.read("b") == "last"
    assert hosts.two.history(NAME, limit=1).transfers[0].base


def test_the_mirrors_are_told_apart(hosts: Hosts) -> None:
    both(hosts)
    ids = [service.definitions.load(NAME).id for service in (hosts.one, hosts.two)]
    with hosts.driver("source").lock(f"mirrord {NAME}"), pytest.raises(Busy) as busy:
        hosts.two.change_source(NAME, hosts.end("source"))
    assert "in use by process" in str(busy.value)
    third = Service(Paths(*(hosts.folder / "three" / part for part in ("etc", "state", "run"))))
    with pytest.raises(UsageError, match="several mirrors") as several:
        third.adopt(hosts.end("source"), yes=True)
    assert all(f"{NAME} ({one})" in str(several.value) for one in ids)
    with pytest.raises(UsageError, match="several mirrors") as several:
        third.adopt(hosts.end("source"), mirror=NAME, yes=True)
    assert "--mirror ID" in several.value.hint
    third.adopt(hosts.end("source"), mirror=ids[1], yes=True)
    with pytest.raises(Refused, match="already exists") as taken:
        third.adopt(hosts.end("source"), mirror=ids[0], yes=True)
    assert "--name" in taken.value.hint and "delete" not in taken.value.hint
    third.adopt(hosts.end("source"), mirror=ids[0], name="other", yes=True)
    third.update(NAME)
    third.update("other")
    for service in (hosts.one, hosts.two):
        with pytest.raises(MirrordError, match="another host controls the mirror"):
            service.update(NAME)
    third.close()


@pytest.mark.parametrize("lost", [False, True], ids=["", "catalogue lost"])
def test_a_destination_of_another_mirror_is_left_alone(hosts: Hosts, *, lost: bool) -> None:
    """Whatever its owner has done with it, and what this host still knows."""
    hosts.write("first")
    hosts.two.create(NAME, hosts.end("source"), hosts.end("a"))
    hosts.one.create(NAME, hosts.end("source"), hosts.end("a"))
    hosts.one.initialize(NAME)
    for state in ("mirrored", "broken-off"):
        if state == "broken-off":
            hosts.one.break_off(NAME)
            hosts.write("mine", "a")
        if lost:
            hosts.two.close()
            for path in hosts.two.paths.state.glob("catalogue.sqlite*"):
                path.unlink()
        shown, records = hosts.read("a"), hosts.driver("a").relationships()
        snapshots = hosts.driver("a").snapshots()
        for verb in (
            hosts.two.initialize,
            hosts.two.update,
            hosts.two.break_off,
            lambda name: hosts.two.resync(name, yes=True),
            lambda name: hosts.two.reverse(name, yes=True),
            lambda name: hosts.two.restore_all(name, snapshot=None, yes=True),
        ):
            with pytest.raises(MirrordError):
                verb(NAME)
            assert hosts.driver("a").snapshots() == snapshots and hosts.read("a") == shown
            assert hosts.driver("a").relationships() == records
    hosts.two.delete(NAME, yes=True, keep_snapshots=False)
    assert hosts.driver("a").relationships() == records and hosts.read("a") == shown
    hosts.one.resync(NAME, yes=True)
    assert hosts.read("a") == "first"
