"""Interrupted transfers: their checkpoints in the life of a mirror. The ends are here; half of the
tests say that they are on another host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.control.statustext import details
from mirrord.core.errors import Aborted, NoSpace, TransferFailed
from mirrord.core.model import Staging
from mirrord.core.results import Silent
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.btrfs.native_receive import NativeReceiver
from mirrord.engine import transfer
from mirrord.system import steps
from mirrord.system.native import StreamDigest
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs
from tests.support.definitions import add_lines
from tests.support.world import NAME, World

pytestmark = [pytest.mark.in_process, pytest.mark.large]

MIB = 1 << 20
SLOT_BYTES = 32 << 10


@pytest.fixture(autouse=True, params=["local", "remote"])
def distance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in (BlockDriver, BtrfsDriver):
        monkeypatch.setattr(driver, "remote", request.param == "remote")


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
    return abort_update(world, after_bytes)


def abort_update(world: World, after_bytes: int) -> World:
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


def test_an_interrupted_initialize_goes_on(world: World) -> None:
    world.create()
    world.lab.change_much(world.lab.source(), 1)
    abort = world.paths.run / f"{NAME}.abort"
    with (
        world.service.watched_by(Until(20 * MIB, lambda: abort.write_text("a test"))),
        pytest.raises(Aborted),
    ):
        world.service.initialize(NAME)
    done = world.again().initialize(NAME)
    assert done.status == "done" and world.in_step()
    assert done.data["resumed_bytes"] >= 19 * MIB


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


def _record_of(world: World) -> Path:
    view = Path(world.lab.destination().facts().view)
    [path] = (view.parent / ".mirrord" / view.name / "checkpoints").iterdir()
    return path / "record"


def test_what_does_not_fit_the_stream_is_given_up_within_the_same_update(world: World) -> None:
    """The checkpoint is of another stream than the source makes."""
    interrupted(world)
    if world.lab.kind != "btrfs":
        return  # a block says where it belongs, and is verified where it is
    record = _record_of(world)
    data = bytearray(record.read_bytes())
    for at in range(0, len(data), SLOT_BYTES):
        data[at + 32] ^= 1  # of the digest of what was received
        digest, end = StreamDigest(), at + SLOT_BYTES - 32
        digest.update(bytes(data[at:end]))
        data[end : end + 32] = bytes.fromhex(digest.hexdigest())
    record.write_bytes(bytes(data))
    assert world.again().status(NAME)[0].reading.checkpoint.size_bytes >= 19 * MIB
    done = world.service.update(NAME)
    assert done.status == "done" and world.in_step()
    assert done.data["resumed_bytes"] == 0
    assert world.lab.destination().stagings() == []
    events = [event.text for event in world.service.history(NAME, limit=20).events]
    assert any("cannot be used" in text for text in events)


def test_a_checkpoint_that_appears_after_the_question_is_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of a killed process took it later than is waited for."""
    interrupted(world)
    if world.lab.kind != "btrfs":
        return
    once, ask, seen = transfer._carry_once, BtrfsDriver.stagings, []

    def too_early(end: BtrfsDriver) -> list[Staging]:
        return [one._replace(checkpoint=None, received_bytes=0) for one in ask(end)]

    def carry(*words: Any) -> transfer.Outcome:
        seen.append(words)
        with monkeypatch.context() as first:
            if len(seen) == 1:
                first.setattr(BtrfsDriver, "stagings", too_early)
            return once(*words)

    monkeypatch.setattr(transfer, "_carry_once", carry)
    done = world.again().update(NAME)
    assert done.status == "done" and world.in_step()
    assert done.data["resumed_bytes"] >= 19 * MIB and len(seen) == 2
    told = [event.text for event in world.service.history(NAME, limit=20).events]
    assert not any("cannot be used" in text for text in told), told
    [text] = [text for text in told if "resumed from the newest checkpoint" in text]
    assert f"at {done.data['resumed_bytes']} bytes of the stream, not 0" in text


def test_a_damaged_checkpoint_leaves_the_one_before_it(world: World) -> None:
    interrupted(world)
    if world.lab.kind != "btrfs":
        return
    first = world.status()["checkpoint_bytes"]
    abort_update(world, 5 * MIB)
    assert world.status()["checkpoint_bytes"] > first
    record = _record_of(world)
    data = bytearray(record.read_bytes())
    sequences = [int.from_bytes(data[at + 8 : at + 16], "little") for at in (0, SLOT_BYTES)]
    data[sequences.index(max(sequences)) * SLOT_BYTES + 5000] ^= 1
    record.write_bytes(bytes(data))
    done = world.again().update(NAME)
    assert done.status == "done" and world.in_step()
    assert done.data["resumed_bytes"] == first


def test_a_failing_program_at_the_destination_costs_what_followed_the_last_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.lab.kind != "btrfs":
        return
    interrupted(world)
    opened: list[NativeReceiver] = []
    begin = NativeReceiver._begin

    def began(receiver: NativeReceiver) -> None:
        begin(receiver)
        opened.append(receiver)

    monkeypatch.setattr(NativeReceiver, "_begin", began)

    def kill() -> None:
        child = opened[0]._child
        assert child is not None
        child.kill()

    with (
        world.service.watched_by(Until(5 * MIB, kill)),
        pytest.raises(TransferFailed, match="signal 9"),
    ):
        world.service.update(NAME)
    assert world.service.update(NAME).data["resumed_bytes"] >= 19 * MIB
    assert world.in_step()


def test_a_small_update_pays_for_no_checkpoint(world: World) -> None:
    """Nor does it leave one: it is sent again."""
    world.initialized()
    world.lab.change(world.lab.source(), 1)
    seen: list[str] = []
    steps.observe(seen.append)
    assert world.service.update(NAME).status == "done"
    assert seen and not [label for label in seen if "CHECKPOINT" in label]


def test_without_mirrord_receive_an_update_starts_over(world: World) -> None:
    """In mirrord.toml: receiver = "btrfs-progs". What `mirrord-receive` left is given up."""
    interrupted(world)
    if world.lab.kind != "btrfs":
        return
    world.paths.host.write_text('[btrfs]\nreceiver = "btrfs-progs"\n')
    world.again()
    abort_update(world, 5 * MIB)
    events = [event.text for event in world.service.history(NAME, limit=20).events]
    assert any("'btrfs receive' cannot resume" in text for text in events)
    assert world.status()["checkpoint_bytes"] == 0
    abort_update(world, 5 * MIB)
    assert world.status()["checkpoint_bytes"] == 0
    done = world.service.update(NAME)
    assert done.data["resumed_bytes"] == 0 and world.in_step()


def test_what_follows_a_checkpoint_that_was_left_needs_no_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end came to this host: what was kept is used all the same."""
    interrupted(world)
    for driver in (BlockDriver, BtrfsDriver):
        monkeypatch.setattr(driver, "remote", False)
    assert world.again().update(NAME).data["resumed_bytes"] >= 19 * MIB
    assert world.in_step()


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[World]:
    """A change that fills more than half of its destination."""
    with btrfs.filesystem(size_mib=1024) as here, btrfs.filesystem(size_mib=512) as there:
        world = World(BtrfsLab(here, there), tmp_path / "home").initialized()
        (here / "home" / "large").write_bytes(os.urandom(250 * MIB))
        yield world
        world.close()


def test_a_checkpoint_needs_no_space_of_its_own(tight: World) -> None:
    abort_update(tight, 200 * MIB)
    assert tight.status()["checkpoint_bytes"] >= 199 * MIB
    done = tight.service.update(NAME)
    assert done.data["resumed_bytes"] >= 199 * MIB and tight.in_step()


def test_what_was_applied_before_the_destination_was_full_is_used(tight: World) -> None:
    abort_update(tight, 100 * MIB)
    filler = Path(tight.lab.destination().location).parent / "filler"

    def fill() -> None:
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(os.urandom(4 * MIB))
                os.fsync(file.fileno())

    with tight.service.watched_by(Until(20 * MIB, fill)), pytest.raises(NoSpace):
        tight.service.update(NAME)
    with pytest.raises(NoSpace, match="too small"):
        tight.again().update(NAME)  # before a byte moves
    filler.unlink()
    done = tight.service.update(NAME)
    assert done.data["resumed_bytes"] >= 99 * MIB and tight.in_step()
