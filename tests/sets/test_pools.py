"""Members that are beside each other: their snapshots are taken together."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import Fenced, NotFound, ProtocolError, Refused, Untrusted
from mirrord.core.model import Endpoint
from mirrord.core.relationship import Fence, Intent
from mirrord.drivers.block.owner import Volume as BlockVolume
from mirrord.drivers.contract import Pool
from mirrord.drivers.registry import open_driver
from mirrord.engine.members import Members
from mirrord.link.driver import RemoteDriver
from mirrord.system.paths import Paths
from tests.contract.flows import MIRROR
from tests.contract.lab_set_zfs import ZfsSetLab
from tests.contract.sets import SetLab, three
from tests.contract.test_relationship import FIRST
from tests.crash.faults import labels
from tests.support.agents import Agents, agents
from tests.support.labs import MACHINE_SETS, open_lab
from tests.support.records import raised
from tests.support.service import PATIENCE_S
from tests.support.verbs import Service
from tests.zfsvm.guest import Guest


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SetLab]:
    with three("lab_btrfs", tmp_path) as made:
        yield made


def pools(end: Members) -> list[Pool]:
    found: list[Pool] = [one for one in end.drivers if isinstance(one, Pool)]
    assert len(found) == 3
    return found


def names(end: Members) -> list[list[str]]:
    return [[one.name for one in driver.snapshots()] for driver in end.drivers]


def test_all_is_made_ready_before_the_first_snapshot(lab: SetLab) -> None:
    seen = labels(lambda: lab.source().take_snapshot("one"))
    taken = [number for number, label in enumerate(seen) if label == "BTRFS:SNAPSHOT:TAKE"]
    assert len(taken) == 3 and taken[-1] - taken[0] == 2
    assert taken[-1] == len(seen) - 1


def test_what_an_earlier_try_took_is_taken_for_it(lab: SetLab) -> None:
    early = lab.source().drivers[1].take_snapshot("one")
    first, *others = pools(lab.source())
    taken = first.take_together("one", others)
    assert taken[1].guid == early.guid
    assert [one.name for one in taken] == ["one"] * 3
    assert [one.guid for one in first.take_together("one", others)] == [one.guid for one in taken]
    assert names(lab.source()) == [["one"]] * 3


def test_the_snapshots_hold_what_was_there(lab: SetLab) -> None:
    end = lab.source()
    before = lab.content(end)
    taken = end.take_snapshot("one")
    lab.change(end, 1)
    assert lab.snapshot_content(end, taken.guid) == before != lab.content(end)


def test_history_says_how_far_apart_the_snapshots_are(lab: SetLab, tmp_path: Path) -> None:
    home = tmp_path / "home"
    service = Service(Paths(home / "etc", home / "state", home / "run"))
    members = tuple(f"{one.source}={one.destination}" for one in lab.pairs())
    service.create("set", members=members)
    service.initialize("set")
    [row] = service.history("set", limit=5).transfers
    times = [
        made_ns(Path(one.path)) for driver in lab.source().drivers for one in driver.snapshots()
    ]
    assert len(times) == 3
    assert row.spread_ms == (max(times) - min(times)) // 1_000_000


def made_ns(subvolume: Path) -> int:
    """As the kernel says (BTRFS_IOC_GET_SUBVOL_INFO)."""
    found = bytearray(504)
    descriptor = os.open(subvolume, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, 0x81F8943C, found)
    finally:
        os.close(descriptor)
    seconds, nanoseconds = struct.unpack_from("=QI", found, 392)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


@pytest.mark.parametrize("late", range(3))
def test_a_member_of_a_later_epoch_keeps_all_from_being_taken(lab: SetLab, late: int) -> None:
    end = lab.source()
    end.drivers[late].relate(raised(FIRST, Intent.MIRRORED), 0)
    end.fence = Fence(MIRROR, 1)
    with pytest.raises(Fenced):
        end.take_snapshot("one")
    assert names(lab.source()) == [[]] * 3


# Over a link


def remote(lab: SetLab, others: Agents) -> Members:
    ends = [Endpoint("btrfs", driver.location, "there") for driver in lab.source().drivers]
    return Members([RemoteDriver.of(one, others) for one in ends], ["data", "log", "spare"])


def test_one_call_takes_the_snapshots_of_all(lab: SetLab, tmp_path: Path) -> None:
    with agents(tmp_path / "there") as others:
        end = remote(lab, others)
        first, *more = pools(end)
        assert all(first.is_beside(one) for one in more)
        asked = []
        session = others.session()
        call = session.call

        def counted(method: str, *words: object, **named: object) -> object:
            asked.append(method)
            return call(method, *words, **named)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch, end.lock("me"):
            patch.setattr(session, "call", counted)
            taken = end.take_snapshot("one")
        assert asked.count("take_together") == 1 and "take_snapshot" not in asked
        parts = taken.guid.split("+")
        listed = [driver.snapshots() for driver in lab.source().drivers]
        assert [[one.guid for one in snapshots] for snapshots in listed] == [[p] for p in parts]


def test_what_another_connection_leads_to_is_not_beside(lab: SetLab, tmp_path: Path) -> None:
    with agents(tmp_path / "one") as others, agents(tmp_path / "two") as more:
        one, other = pools(remote(lab, others))[0], pools(remote(lab, more))[1]
        assert not one.is_beside(other) and not one.is_beside(lab.source().drivers[1])
        assert not pools(lab.source())[0].is_beside(one)


def test_a_peer_needs_the_right_to_each_volume(lab: SetLab, tmp_path: Path) -> None:
    *own, foreign = lab.source().drivers
    allow = [word for one in own for word in ("--allow", f"send={one.location}")]
    allow += ["--allow", f"receive={foreign.location}"]
    with agents(tmp_path / "there", *allow) as others:
        first, *more = pools(remote(lab, others))
        with pytest.raises(Untrusted, match="take snapshots"):
            first.take_together("one", more)
        assert names(lab.source()) == [[]] * 3
        assert len(first.take_together("one", more[:1])) == 2


def test_a_peer_cannot_name_what_is_not_open_or_another_kind(lab: SetLab, tmp_path: Path) -> None:
    BlockVolume.create(tmp_path / "block", 1 << 20).close()
    with agents(tmp_path / "there") as others:
        session = others.session()

        def opened(kind: str, location: str) -> int:
            found = session.call("open", kind, location, timeout_s=PATIENCE_S)
            return int(found[0])

        one, other = (opened("btrfs", driver.location) for driver in lab.source().drivers[:2])
        block = opened("block", str(tmp_path / "block"))
        for number, wanted, error in (
            (one, [one], ProtocolError),
            (one, [other, other], ProtocolError),
            (one, [99], NotFound),
            (one, [other, block], Refused),
            (block, [one], Refused),
            (block, [], Refused),
        ):
            with pytest.raises(error):
                session.call("take_together", number, "one", wanted, timeout_s=PATIENCE_S)
        assert names(lab.source()) == [[]] * 3
    with BlockVolume.open(tmp_path / "block") as volume:
        assert volume.snapshots() == []


def test_members_on_two_kinds_of_volume_are_taken_one_after_another(
    lab: SetLab, tmp_path: Path
) -> None:
    BlockVolume.create(tmp_path / "block", 1 << 20).close()
    block = open_driver(parse_endpoint(f"block:{tmp_path / 'block'}"))
    btrfs = lab.source().drivers
    end = Members([btrfs[0], block, btrfs[1]], ["data", "raw", "log"])
    taken = end.take_snapshot("one")
    assert [[one.guid for one in driver.snapshots()] for driver in end.drivers] == [
        [part] for part in taken.guid.split("+")
    ]
    assert not isinstance(block, Pool)


# OpenZFS, in the virtual machine

_WRITES = """
i=0
while [ -e {flag} ]; do
    i=$((i+1))
    for place in {places}; do mv /$place/number.$((i-1)) /$place/number.$i; done
done
"""


def test_datasets_of_one_pool_are_of_one_moment(zfs_guest: Guest, tmp_path: Path) -> None:
    """A file is renamed in one after another, so none is ever ahead of the one before it."""
    with open_lab(MACHINE_SETS[0], tmp_path) as lab:
        assert isinstance(lab, ZfsSetLab)
        end = lab.source()
        places = [driver.location for driver in end.drivers]
        flag = f"/tmp/{places[0].replace('/', '-')}"
        script = _WRITES.format(flag=flag, places=" ".join(places))
        zfs_guest.run("touch", flag, *(f"/{place}/number.0" for place in places))
        zfs_guest.run("sh", "-c", f"({script}) >/dev/null 2>&1 &")
        try:
            for name in ("one", "two", "three"):
                zfs_guest.run("sleep", "0.3")
                end.take_snapshot(name)
        finally:
            zfs_guest.run("rm", flag)
        for name in ("one", "two", "three"):
            full = [f"{place}@{name}" for place in places]
            moments = zfs_guest.run("zfs", "get", "-Hpo", "value", "createtxg", *full).split()
            assert len(moments) == 3 and len(set(moments)) == 1
            first, second, third = (
                _number(zfs_guest, f"/{place}/.zfs/snapshot/{name}") for place in places
            )
            assert first >= second >= third >= first - 1 > 0
        assert end.spread_ms(sets_of(end)[-1]) == 0


def _number(guest: Guest, folder: str) -> int:
    [found] = (word for word in guest.run("ls", folder).split() if word.startswith("number."))
    return int(found.removeprefix("number."))


def sets_of(end: Members) -> list[str]:
    return [one.guid for one in end.snapshots()]


def test_datasets_of_which_one_has_its_snapshot_or_lies_in_another_pool(
    zfs_guest: Guest, tmp_path: Path
) -> None:
    with open_lab(MACHINE_SETS[0], tmp_path) as lab:
        assert isinstance(lab, ZfsSetLab)
        own = lab.source().drivers
        other = f"{lab.destination().drivers[0].location.rpartition('/')[0]}/more"
        zfs_guest.run("zfs", "create", other)
        end = Members([*own, lab.driver(other)], ["a", "b", "c", "d"])
        early = own[1].take_snapshot("one")
        taken = end.take_snapshot("one")
        parts = taken.guid.split("+")
        assert parts[1] == early.guid
        full = [f"{driver.location}@one" for driver in end.drivers]
        assert zfs_guest.run("zfs", "get", "-Hpo", "value", "guid", *full).split() == parts
        held = zfs_guest.run("zfs", "get", "-Hpo", "value", "userrefs", full[0], full[3])
        assert held.split() == ["1", "1"]
        assert end.take_snapshot("one").guid == taken.guid
