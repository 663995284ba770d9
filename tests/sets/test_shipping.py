"""Members are shipped side by side, each from its own checkpoint, within one rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import Aborted, TransferFailed
from mirrord.core.model import ReceiveRequest
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.receive import BlockReceiver
from mirrord.drivers.contract import Capability
from mirrord.drivers.streams import Receiver
from mirrord.engine.crew import Crew
from mirrord.engine.members import Members
from tests.contract.sets import three
from tests.crash.faults import attempt, labels
from tests.integration.test_checkpoints import Until
from tests.support.service import PATIENCE_S, until
from tests.support.snapshots import delete_by_force
from tests.support.world import NAME, SetWorld

#: Commits a set at a member.
SHOW = "BLOCK:COMMIT:ROOT:RENAME"


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[SetWorld]:
    """A mirror of three block volumes that is initialized, with a change to be transferred."""
    with three("lab_block", tmp_path) as lab:
        made = SetWorld(lab, tmp_path / "home")
        made.initialized()
        made.lab.change(made.lab.source(), 1)
        yield made
        made.clean_up()


class Opened:
    """Which places receive, and which of them fail: after how many bytes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.places: list[str] = []
        self.fails: dict[str, int] = {}
        self.waits_for: Callable[[], bool] | None = None
        #: The others stop after so many bytes until one has failed; which have stopped.
        self.stops_at: int | None = None
        self.stopped: set[str] = set()
        failed = threading.Event()
        receive, write = BlockDriver.receive, BlockReceiver.write
        places: dict[int, str] = {}
        moved: dict[int, int] = {}

        def opened(driver: BlockDriver, request: ReceiveRequest) -> Receiver:
            self.places.append(driver.location)
            made = receive(driver, request)
            places[id(made)] = driver.location
            moved[id(made)] = 0
            return made

        def written(receiver: BlockReceiver, chunk: bytes | memoryview) -> None:
            place = places[id(receiver)]
            moved[id(receiver)] += len(chunk)
            if place in self.fails and moved[id(receiver)] > self.fails[place]:
                if self.waits_for is not None:
                    until(self.waits_for, what="for the others")
                failed.set()
                raise TransferFailed("injected", where=place)
            write(receiver, chunk)
            if self.stops_at is not None and moved[id(receiver)] > self.stops_at:
                self.stopped.add(place)
                assert failed.wait(PATIENCE_S)

        patch.setattr(BlockDriver, "receive", opened)
        patch.setattr(BlockReceiver, "write", written)


def _complete(end: Members) -> int:
    return sum(one.complete for driver in end.drivers for one in driver.stagings())


def test_members_that_have_all_of_it_are_not_sent_again(
    blocks: SetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, end = Opened(monkeypatch), blocks.lab.destination()
    second = end.drivers[1].location
    opened.fails[second] = 0
    opened.waits_for = lambda: _complete(end) == 2
    before = blocks.view_content()
    with pytest.raises(TransferFailed, match="injected"):
        blocks.service.update(NAME)
    assert sorted(opened.places) == sorted(one.location for one in end.drivers)
    assert blocks.view_content() == before and _complete(blocks.lab.destination()) == 2
    opened.places.clear()
    opened.fails.clear()
    done = blocks.again().update(NAME)
    assert opened.places == [second] and done.data["stream_bytes"] > 0
    assert blocks.in_step()


def test_a_member_that_has_committed_its_snapshot_is_not_sent_it_again(
    blocks: SetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the others lost its staging meanwhile: only that one is shipped again."""
    opened = Opened(monkeypatch)
    attempt(blocks, lambda: blocks.service.update(NAME), (SHOW, 2), "crash")
    first, second, _third = blocks.lab.destination().drivers
    assert first.stagings() == [] and _complete(blocks.lab.destination()) == 2
    [lost] = second.stagings()
    second.discard(lost.transfer_id)
    opened.places.clear()
    blocks.service.update(NAME)
    assert opened.places == [second.location]
    assert blocks.in_step()


def test_one_members_failure_ends_the_others_which_keep_their_checkpoints(
    blocks: SetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, end = Opened(monkeypatch), blocks.lab.destination()
    blocks.service.throttle(NAME, "3MiB/s")
    opened.fails[end.drivers[0].location] = 0
    opened.stops_at = 1_200_000  # (a checkpoint is kept of each whole MiB)
    opened.waits_for = lambda: len(opened.stopped) == len(end.drivers) - 1
    before = set(threading.enumerate())
    with pytest.raises(TransferFailed, match="injected"):
        blocks.service.update(NAME)
    assert not [one for one in threading.enumerate() if one.name.startswith("member")]
    until(lambda: set(threading.enumerate()) <= before, what="the transfers' threads to end")
    kept = [driver.stagings() for driver in blocks.lab.destination().drivers[1:]]
    assert all(one and one[0].checkpoint and not one[0].complete for one in kept), kept
    opened.fails.clear()
    opened.stops_at = None
    blocks.again().throttle(NAME, "unlimited")
    done = blocks.service.update(NAME)
    assert done.data["resumed_bytes"] > 0
    assert blocks.in_step()


def test_a_rate_holds_for_all_members_together(blocks: SetWorld) -> None:
    blocks.service.throttle(NAME, "2MiB/s")
    began_s = time.monotonic()
    done = blocks.again().update(NAME)
    duration_s = time.monotonic() - began_s
    assert done.data["stream_bytes"] / duration_s < 1.1 * (2 << 20)
    assert done.data["throttled_s"] > 0
    assert blocks.in_step()


def test_an_abort_ends_all_of_them(blocks: SetWorld) -> None:
    blocks.service.throttle(NAME, "3MiB/s")
    abort = blocks.paths.run / f"{NAME}.abort"
    with (
        blocks.service.watched_by(Until(4_500_000, lambda: abort.write_text("a test"))),
        pytest.raises(Aborted),
    ):
        blocks.service.update(NAME)
    assert blocks.status()["checkpoint_bytes"] > 0
    blocks.again().abort(NAME, hard=True)
    assert blocks.lab.destination().stagings() == []
    blocks.service.throttle(NAME, "unlimited")
    blocks.service.update(NAME)
    assert blocks.in_step()


def test_members_that_are_ahead_go_back_when_the_others_cannot_follow(
    blocks: SetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a kind that shows what it commits (ZFS): the first member shows a set, and the stagings of
    the others are lost with the source.
    """
    capabilities = BlockDriver.capabilities & ~Capability.SHOW_LATER
    monkeypatch.setattr(BlockDriver, "capabilities", capabilities)
    before = blocks.view_content()
    seen = labels(lambda: blocks.service.update(NAME))
    assert seen.count(SHOW) == 3
    for member in (2, 3):
        blocks.lab.change(blocks.lab.source(), member)
        before = blocks.view_content()
        attempt(blocks, lambda: blocks.service.update(NAME), (SHOW, member), "crash")
        assert blocks.view_content() != before, "one member shows the new set"
        name = blocks.lab.source().snapshots()[-1].name
        for driver in blocks.lab.destination().drivers:
            for one in driver.stagings():
                driver.discard(one.transfer_id)
        delete_by_force(blocks.lab.source(), blocks.lab.source().snapshots()[-1].guid)
        blocks.service.recover(NAME)
        assert blocks.view_content() == before
        left = [
            one.name
            for end in (blocks.lab.source(), blocks.lab.destination())
            for driver in end.drivers
            for one in driver.snapshots()
        ]
        assert name not in left, "nothing of that set is left"
        blocks.service.update(NAME)
        assert blocks.in_step() and blocks.status()["healthy"]


# The crew


def test_the_first_failure_is_raised_and_the_rest_is_told() -> None:
    crew, told = Crew(2), list[str]()

    def waiting() -> bool:
        crew.check()
        return False

    def fails() -> None:
        raise TransferFailed("first")

    def waits() -> None:
        try:
            until(waiting, what="the end")
        except Aborted:
            told.append("aborted")
            raise

    with pytest.raises(TransferFailed, match="first"):
        crew.run([waits, fails, waits])
    assert told == ["aborted"], "what had not begun does not begin"


def test_what_a_piece_of_work_asks_for_is_done_by_who_waits() -> None:
    crew, threads = Crew(3), set[int]()

    def work() -> int:
        crew.outside(lambda: threads.add(threading.get_ident()))
        with pytest.raises(ValueError, match="here"):
            crew.outside(_fails)
        return 1

    assert crew.run([work, work, work]) == [1, 1, 1]
    assert threads == {threading.get_ident()}


def _fails() -> None:
    raise ValueError("here")
