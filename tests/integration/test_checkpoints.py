"""Interrupted transfers: their checkpoints in the life of a mirror. The ends are here, but said to
be on another host, so that a transfer may break off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.control.statustext import details
from mirrord.core.errors import Aborted, TransferFailed
from mirrord.core.model import ReceiveRequest
from mirrord.core.results import Silent
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.btrfs import layout, spool
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.btrfs.known import Known
from mirrord.drivers.btrfs.receive import BtrfsReceiver
from mirrord.system.waiting import Waiting
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs
from tests.support.definitions import add_lines
from tests.support.world import NAME, World

pytestmark = [pytest.mark.in_process, pytest.mark.large]

MIB = 1 << 20


@pytest.fixture(autouse=True)
def far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in (BlockDriver, BtrfsDriver):
        monkeypatch.setattr(driver, "remote", True)


class Until(Silent):
    """Does something when so many bytes have moved."""

    def __init__(self, stream_bytes: int, act: Callable[[], object]) -> None:
        self._left, self._act = stream_bytes, act

    def moved(self, stream_bytes: int) -> None:
        if self._left > 0 >= self._left - stream_bytes:
            self._act()
        self._left -= stream_bytes


def interrupted(world: World, after_bytes: int = 20 * MIB) -> World:
    """A mirror whose update was aborted in mid-transfer."""
    world.initialized()
    world.lab.change_much(world.lab.source(), 1)
    abort = world.paths.run / f"{NAME}.abort"
    with (
        world.service.watched_by(Until(after_bytes, lambda: abort.write_text("a test"))),
        pytest.raises(Aborted),
    ):
        world.service.update(NAME)
    return world


def test_an_interrupted_update_goes_on_and_status_says_so(world: World) -> None:
    interrupted(world)
    row = world.again().status(NAME)[0]
    assert 19 * MIB <= row.reading.checkpoint.size_bytes < 30 * MIB
    assert 40 * MIB <= (row.reading.checkpoint.of_bytes or 0) < 60 * MIB
    assert row.checkpoint_age_s is not None and 0 <= row.checkpoint_age_s < 60
    [line] = [line for line in details(row) if "checkpoint" in line]
    assert " MiB of 4" in line and line.endswith(" ago: the next transfer resumes from there")
    assert any("left a checkpoint" in text for text in world.service.explain(NAME).data["findings"])
    done = world.service.update(NAME)
    assert done.data["resumed_bytes"] == row.reading.checkpoint.size_bytes
    assert done.data["stream_bytes"] < 30 * MIB
    assert world.in_step()
    assert world.status()["checkpoint_bytes"] == 0
    assert world.status()["checkpoint_age_s"] is None


def test_abort_keeps_the_checkpoint_and_hard_drops_it(world: World) -> None:
    interrupted(world)
    assert "resumes from there" in world.again().abort(NAME, hard=False).text
    assert world.status()["checkpoint_bytes"] > 0
    assert "was discarded" in world.again().abort(NAME, hard=True).text
    assert world.status()["checkpoint_bytes"] == 0
    assert world.lab.destination().stagings() == []
    assert world.service.update(NAME).data["resumed_bytes"] == 0
    assert world.in_step()


def test_an_old_checkpoint_is_discarded_and_the_history_says_so(world: World) -> None:
    interrupted(world)
    file = Path(world.paths.mirrors / f"{NAME}.toml")
    add_lines(file, "checkpoint_days = 1")
    world.again().abort(NAME, hard=False)
    assert world.status()["checkpoint_bytes"] > 0, "a day has not passed"
    file.write_text(file.read_text().replace("checkpoint_days = 1", "checkpoint_days = 0"))
    done = world.again().update(NAME)
    assert done.data["resumed_bytes"] == 0 and world.in_step()
    events = [event.text for event in world.service.history(NAME, limit=20).events]
    assert any("was older than 0 days: discarded" in text for text in events)


def _spool_of(world: World) -> Path:
    view = Path(world.lab.destination().facts().view)
    [path] = (view.parent / ".mirrord" / view.name / "spool").iterdir()
    return path


def test_what_does_not_fit_the_stream_is_given_up_within_the_same_update(world: World) -> None:
    """The spool holds another stream than the source makes."""
    interrupted(world)
    if world.lab.kind != "btrfs":
        return  # a block says where it belongs, and is verified where it is
    path = _spool_of(world)
    place = layout.resolve(world.lab.destination().location, Known())
    found = spool.look(place, path)
    assert found is not None
    wanted = ReceiveRequest(path.name, "", found.base, found.snapshot, resumable=True)
    path.unlink()
    forged = spool.Spool(path, wanted, place, "here", writing=True)
    for _ in range(10):
        forged.append(b"something else" * 75_000, Waiting())
    forged.close(keep=True)
    done = world.again().update(NAME)
    assert done.status == "done" and world.in_step()
    assert world.lab.destination().stagings() == []
    events = [event.text for event in world.service.history(NAME, limit=20).events]
    assert any("cannot be used" in text for text in events)


def test_a_damaged_checkpoint_is_used_up_to_the_damage_within_the_same_update(
    world: World,
) -> None:
    interrupted(world)
    if world.lab.kind != "btrfs":
        return
    with _spool_of(world).open("r+b") as file:
        file.seek(5 * MIB)
        file.write(b"damage")
    done = world.again().update(NAME)
    assert done.status == "done" and world.in_step()
    assert 3 * MIB < done.data["resumed_bytes"] < 6 * MIB


def test_a_failing_program_at_the_destination_costs_only_what_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.lab.kind != "btrfs":
        return
    world.initialized()
    world.lab.change_much(world.lab.source(), 1)
    opened: list[BtrfsReceiver] = []
    begin = BtrfsReceiver._begin

    def began(receiver: BtrfsReceiver) -> None:
        begin(receiver)
        opened.append(receiver)

    monkeypatch.setattr(BtrfsReceiver, "_begin", began)

    def kill() -> None:
        child = opened[0]._child
        assert child is not None
        child.kill()

    with (
        world.service.watched_by(Until(20 * MIB, kill)),
        pytest.raises(TransferFailed, match="signal 9"),
    ):
        world.service.update(NAME)
    assert world.service.update(NAME).data["resumed_bytes"] >= 19 * MIB
    assert world.in_step()


def test_what_follows_a_checkpoint_that_was_left_needs_no_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end came to this host: what was kept is used all the same."""
    interrupted(world)
    for driver in (BlockDriver, BtrfsDriver):
        monkeypatch.setattr(driver, "remote", False)
    assert world.again().update(NAME).data["resumed_bytes"] >= 19 * MIB
    assert world.in_step()


def test_a_destination_without_room_for_the_spool_is_transferred_to_all_the_same(
    tmp_path: Path,
) -> None:
    with btrfs.filesystem(size_mib=1024) as here, btrfs.filesystem(size_mib=512) as there:
        world = World(BtrfsLab(here, there), tmp_path / "home").initialized()
        (here / "home" / "large").write_bytes(os.urandom(250 * MIB))
        assert world.service.update(NAME).status == "done"
        assert world.in_step()
        events = [event.text for event in world.service.history(NAME, limit=20).events]
        assert any("has no space for a checkpoint of" in text for text in events)
        world.close()
