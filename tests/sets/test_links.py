"""Members on another host, and sets that go on to a third place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import Busy
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.registry import open_driver
from mirrord.engine.members import Members
from tests.contract.sets import NAMES, SetLab, three
from tests.crash.faults import attempt, labels
from tests.support.places import beside
from tests.support.sshd import Sshd
from tests.support.world import NAME, RemoteWorld, SetWorld


class RemoteSetWorld(RemoteWorld):
    """Three block volumes whose destinations are on another host."""

    lab: SetLab

    def __init__(self, lab: SetLab, home: Path, sshd: Sshd) -> None:
        super().__init__(lab, home, sshd, "destination")

    def create(self, **options: object) -> object:  # type: ignore[override]
        members = tuple(
            f"{one.source}={one.destination._replace(host='there')}" for one in self.lab.pairs()
        )
        return self.service.create(NAME, members=members, **options)  # type: ignore[arg-type]


@pytest.fixture
def far(tmp_path: Path, host: Sshd) -> Iterator[RemoteSetWorld]:
    with three("lab_block", tmp_path) as lab:
        made = RemoteSetWorld(lab, tmp_path / "home", host)
        yield made
        made.clean_up()


def test_members_on_another_host_are_updated_broken_off_and_resynced(far: RemoteSetWorld) -> None:
    far.initialized()
    assert far.in_step()
    for seed in range(2):
        far.lab.change(far.lab.source(), seed)
        assert far.service.update(NAME).status == "done"
        assert far.in_step()
    assert far.status()["healthy"]
    far.service.break_off(NAME)
    far.lab.change(far.lab.destination(), 5)
    far.service.resync(NAME, yes=True)
    assert far.in_step()
    far.lab.change(far.lab.source(), 6)
    assert far.again().reverse(NAME, yes=True).status == "done"
    assert far.in_step()


def test_a_crash_in_a_commit_over_a_link_is_finished_by_the_next_update(
    far: RemoteSetWorld,
) -> None:
    far.initialized()
    far.lab.change(far.lab.source(), 1)
    seen = labels(lambda: far.service.update(NAME))
    label = next(one for one in reversed(seen) if "CATALOGUE" in one)
    far.lab.change(far.lab.source(), 2)
    attempt(far, lambda: far.service.update(NAME), (label, 1), "crash")
    far.service.update(NAME)
    assert far.in_step() and far.status()["healthy"]


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[SetWorld]:
    with initialized("lab_block", tmp_path) as made:
        yield made


@contextmanager
def initialized(kind: str, tmp_path: Path) -> Iterator[SetWorld]:
    with three(kind, tmp_path) as lab:
        made = SetWorld(lab, tmp_path / "home")
        made.initialized()
        yield made
        made.clean_up()


@pytest.mark.parametrize("kind", ["lab_block", "lab_btrfs"])
def test_sets_go_on_to_a_third_place(kind: str, tmp_path: Path) -> None:
    with initialized(kind, tmp_path) as world:
        pairs = [
            (str(one.destination), beside(lab.destination(), f"far-{name}"))
            for lab, one, name in zip(world.lab.labs, world.lab.pairs(), NAMES, strict=True)
        ]
        world.service.create("far", members=tuple("=".join(pair) for pair in pairs))
        world.service.initialize("far")
        last = Members([open_driver(parse_endpoint(place)) for _, place in pairs], NAMES)
        assert world.lab.content(last) == world.source_content()
        for seed in range(4):
            world.lab.change(world.lab.source(), seed)
            world.service.update(NAME)
            assert world.service.update("far").data["transfers"] == 1
            assert world.lab.content(last) == world.source_content()
        assert last.facts().shown == world.lab.destination().facts().shown
        assert world.service.update("far").status == "unchanged"


def test_two_mirrors_of_the_same_volumes_lock_them_in_one_order(
    blocks: SetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = blocks.lab.source(), blocks.lab.source()
    turned = Members(other.drivers[::-1], NAMES[::-1])
    order, lock = list[str](), BlockDriver._exclusive

    def noted(driver: BlockDriver, purpose: str) -> AbstractContextManager[bool]:
        order.append(driver.location)
        return lock(driver, purpose)

    monkeypatch.setattr(BlockDriver, "_exclusive", noted)
    with turned.lock("turned"):
        assert turned.locked and order == sorted(order) and len(order) == 3
        with pytest.raises(Busy, match="turned"), one.lock("one"):
            pass
    with one.lock("one"):
        assert one.locked and all(driver.locked for driver in one.drivers)


def test_two_mirrors_of_the_same_volumes_share_nothing_of_their_sets(
    blocks: SetWorld, tmp_path: Path
) -> None:
    ends = tuple(
        f"{one.source}=block:{tmp_path}/second-{name}"
        for one, name in zip(blocks.lab.pairs(), NAMES, strict=True)
    )
    blocks.service.create("second", members=ends, keep_source=1)
    blocks.service.initialize("second")
    for seed in range(4):
        blocks.lab.change(blocks.lab.source(), seed)
        blocks.service.update(NAME)
    blocks.service.update("second")
    blocks.service.update(NAME)
    assert blocks.in_step()
    counted = [
        len({re.sub(r"\.\d+$", "", one.name) for one in driver.snapshots()})
        for driver in blocks.lab.source().drivers
    ]
    assert len(set(counted)) == 1
    blocks.service.delete("second", yes=True, keep_snapshots=False)
    names = {one.name.split(".")[1] for one in blocks.lab.source().snapshots()}
    assert len(names) == 1, "only those of the first mirror are left"
