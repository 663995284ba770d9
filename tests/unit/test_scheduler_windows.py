"""Runs that windows and blackouts hold back, also when their turn in the queue comes late."""

from __future__ import annotations

import pytest

from mirrord.core.model import Caps
from tests.unit.scheduling import CUT, Room
from tests.unit.ticking import every


def test_what_was_missed_waits_for_the_end_of_a_blackout(room: Room) -> None:
    """It is 22:13 on a Tuesday when these tests begin."""
    room.define(every("0 12 * * *", blackouts=("22:00-23:00",)), age_s=24 * 3600)
    assert room.causes() == []
    room.timers.pass_s(46 * 60)
    assert room.causes() == []
    room.timers.pass_s(60)
    assert room.causes() == ["missed"]


@pytest.mark.parametrize(
    ("rule", "cause"),
    [("30 22 * * *", "missed"), ("every 1h", "schedule"), ("lag 2h", "lag")],
)
def test_a_run_whose_turn_comes_in_a_blackout_waits_for_its_end(
    room: Room, rule: str, cause: str
) -> None:
    """It is 22:13. The run is due before the blackout begins, and another one is on its way."""
    room.scheduler.queue.caps = Caps(1, 9, 9)
    room.define(None, name="b")
    room.scheduler.due("b", "asked", "")
    room.define(every(rule, blackouts=("23:15-04:00",)))
    room.timers.pass_s(55 * 60)
    assert list(room.scheduler.queue.waiting) == ["a"]
    room.timers.pass_s(3600)
    room.end(name="b")
    assert room.causes() == ["asked"] and not room.scheduler.queue.waiting
    room.timers.pass_s(4 * 3600)
    assert room.causes() == [cause]


def test_a_retry_whose_turn_comes_in_a_blackout_waits_for_its_end(room: Room) -> None:
    watched = room.define(every("30 22 * * *", blackouts=("23:15-04:00",)))
    room.timers.pass_s(55 * 60)
    room.end(error=CUT)
    room.scheduler.queue.caps = Caps(1, 9, 9)
    room.define(None, name="b")
    room.scheduler.due("b", "asked", "")
    room.timers.pass_s(3600)
    room.end(name="b")
    assert room.causes() == ["schedule", "asked"] and watched.retry_pending
    room.timers.pass_s(4 * 3600)
    assert [(job.cause, job.number) for job in room.started] == [("retry", 2)]


def test_a_run_that_failed_into_a_blackout_is_retried_once_after_it(room: Room) -> None:
    room.define(every("every 10m", blackouts=("23:15-04:00",)))
    room.timers.pass_s(3600)
    assert "a" in room.scheduler.queue.waiting
    room.timers.pass_s(600)
    room.end(error=CUT)
    assert room.causes() == ["schedule"]
    room.timers.pass_s(5 * 3600)
    assert room.causes() == ["retry"]
