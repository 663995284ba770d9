"""What a command that was asked for does to the runs of its mirror, and what it does not."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Busy, Refused
from mirrord.core.model import Caps
from mirrord.core.results import UpdateNumbers
from mirrord.scheduler.jobs import Outcome
from tests.unit.scheduling import CUT, Room
from tests.unit.ticking import every

PLANNED = Outcome("confirmation-required", 0.0, None)
DONE = Outcome("done", 0.0, None)


@pytest.mark.parametrize(
    ("verb", "outcome"), [("reverse", PLANNED), ("restore_all", PLANNED), ("restore_all", DONE)]
)
def test_a_command_without_an_update_ends_neither_retry_nor_alarm(
    room: Room, verb: str, outcome: Outcome
) -> None:
    watched = room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.end(error=CUT)
    watched.prune_refused = "too many"
    room.scheduler.due("a", "asked", "", verb=verb)
    room.scheduler.finished("a", outcome)
    assert watched.error and watched.retry_pending and watched.prune_refused
    assert all(change.raised for _, change in room.told)
    room.timers.pass_s(60)
    assert [(job.cause, job.number) for job in room.started[2:]] == [("retry", 2)]


@pytest.mark.parametrize("update", [None, UpdateNumbers(1)])
def test_a_command_that_ends_with_an_update_does_what_the_retry_was_to_do(
    room: Room, update: UpdateNumbers | None
) -> None:
    watched = room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.end(error=CUT)
    room.scheduler.due("a", "asked", "", verb="reverse")
    room.scheduler.finished("a", Outcome("done", 0.0, update))
    assert not watched.error and not watched.retry_pending
    assert "failure" not in watched.alarms.up
    room.timers.pass_s(60)
    assert room.causes() == ["schedule", "asked"]


def test_a_plan_that_is_shown_while_a_lag_target_is_due_does_not_end_its_timer(room: Room) -> None:
    room.define(every("lag 10m"))
    room.scheduler.queue.caps = Caps(1, 9, 9)
    room.define(None, name="b")
    room.scheduler.due("b", "asked", "")
    room.scheduler.due("a", "asked", "", verb="reverse")
    room.timers.pass_s(150)
    room.end(name="b")
    room.scheduler.finished("a", PLANNED)
    room.timers.pass_s(1)
    assert room.causes() == ["asked", "asked", "lag"]


@pytest.mark.parametrize(
    ("outcome", "causes"),
    [
        (PLANNED, ["schedule"]),
        (Outcome("", 0.0, None, Busy("in use")), ["schedule"]),
        (Outcome("", 0.0, None, Refused("there are writers")), ["schedule"]),
        (Outcome("done", 0.0, UpdateNumbers(1)), []),
        (Outcome("", 0.0, None, CUT), []),
    ],
)
def test_a_run_whose_place_a_command_took_is_due_unless_that_has_transferred(
    room: Room, outcome: Outcome, causes: list[str]
) -> None:
    room.scheduler.queue.caps = Caps(1, 9, 9)
    room.define(None, name="b")
    room.scheduler.due("b", "asked", "")
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.scheduler.ask("a", "reverse")
    room.end(name="b")
    assert room.causes() == ["asked", "asked"]
    room.scheduler.finished("a", outcome)
    assert room.causes() == causes


def test_what_a_cancelled_command_replaced_is_due_when_the_one_that_cancelled_it_fails(
    room: Room,
) -> None:
    room.scheduler.queue.caps = Caps(1, 9, 9)
    room.define(None, name="b")
    room.scheduler.due("b", "asked", "")
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.scheduler.ask("a", "reverse")
    dropped = room.scheduler.hold("a")
    assert dropped is not None and dropped.cause == "asked"
    room.end(name="b")
    room.scheduler.release("a", again=True)
    assert room.causes() == ["asked", "schedule"]
