"""The scheduler, its queue and its retries, with clocks and timers moved by hand."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Aborted, Busy, MirrordError, Refused, TransferFailed
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.scheduler.watched import Standing
from mirrord.system import clock
from tests.unit.scheduling import CUT, Room, reading
from tests.unit.ticking import every


def test_a_schedule_is_followed_and_times_that_come_during_a_run_make_one(room: Room) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    assert room.causes() == ["schedule"]
    room.timers.pass_s(5 * 3600)
    assert room.causes() == []
    room.end()
    assert room.causes() == ["schedule"]
    room.end()
    assert room.causes() == []


def test_a_retry_is_not_overtaken_by_scheduled_times(room: Room) -> None:
    room.define(every("every 1s"))
    room.timers.pass_s(1)
    assert room.causes() == ["schedule"]
    room.end(error=CUT)
    room.timers.pass_s(3)
    assert room.causes() == []
    room.timers.pass_s(3.5)
    assert [(each.cause, each.number) for each in room.started] == [("retry", 2)]
    room.end()
    room.timers.pass_s(1)
    assert room.causes()[-1] == "schedule"


def test_a_retry_gives_up_and_the_schedule_goes_on(room: Room) -> None:
    watched = room.define(every("every 1h"), retries=2)
    room.timers.pass_s(3600)
    for _ in range(3):
        room.end(error=CUT)
        room.timers.pass_s(60)
    assert room.causes() == ["schedule", "retry", "retry"]
    assert watched.gives_up and not watched.retry_pending
    room.timers.pass_s(3600)
    assert [(each.cause, each.number) for each in room.started] == [("schedule", 1)]


def test_a_retry_that_came_while_it_was_quiesced_does_not_block_it_for_ever(room: Room) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.end(error=CUT)
    room.define(every("every 1h"), quiesced=True)
    room.timers.pass_s(60)
    assert room.causes() == ["schedule"]
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    assert room.causes() == ["schedule"]


def test_a_first_transfer_that_failed_leaves_no_retry_behind(room: Room) -> None:
    room.define(every("every 1h"), mirrored=False)
    for error in (CUT, None):
        room.scheduler.due("a", "asked", "", verb="initialize")
        room.end(error=error)
        room.timers.pass_s(1000)
    assert room.causes() == ["asked", "asked"]
    room.timers.pass_s(3600)
    assert room.causes() == ["schedule"]


def test_a_run_that_was_asked_for_takes_the_place_of_the_retry(room: Room) -> None:
    room.define(None)
    room.scheduler.due("a", "asked", "")
    room.end(error=CUT)
    room.scheduler.due("a", "asked", "")
    room.end()
    room.timers.pass_s(1000)
    assert room.causes() == ["asked", "asked"]


@pytest.mark.parametrize("error", [Aborted("by a person"), Busy("in use"), Refused("not now")])
def test_what_a_person_ended_or_misdirected_is_no_failure(room: Room, error: MirrordError) -> None:
    watched = room.define(None)
    room.scheduler.due("a", "asked", "")
    room.end(error=error)
    room.timers.pass_s(1000)
    assert not watched.error and room.causes() == ["asked"] and not room.told


def test_who_was_quiesced_as_it_started_did_not_fail(room: Room) -> None:
    watched = room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.define(every("every 1h"), quiesced=True)
    room.end(error=Refused("it is quiesced"))
    assert not watched.error and not room.told


def test_nothing_begins_while_a_command_goes_first_and_what_waited_is_dropped(room: Room) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(2 * 3600)
    dropped = room.scheduler.hold("a")
    assert dropped is not None and dropped.cause == "schedule"
    room.end(error=Busy("a break goes first"))
    room.timers.pass_s(3 * 3600)
    assert room.causes() == ["schedule"]
    assert {change.finding.kind for _, change in room.told} <= {"lag"}
    room.scheduler.release("a", again=False)
    assert room.causes() == []
    room.timers.pass_s(3600)
    assert room.causes() == ["schedule"]


def test_what_a_command_held_back_is_due_when_that_command_fails(room: Room) -> None:
    watched = room.define(every("every 10h"))
    room.timers.pass_s(10 * 3600)
    room.end(error=TransferFailed("cut"))
    assert watched.retry_pending and room.causes() == ["schedule"]
    assert room.scheduler.hold("a") is None
    room.timers.pass_s(3600)
    assert room.causes() == []
    room.scheduler.release("a", again=True)
    assert room.causes() == ["retry"]


def test_a_mirror_that_is_broken_off_has_no_failed_run_any_more(room: Room) -> None:
    watched = room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.end(error=TransferFailed("cut"))
    assert watched.retry_pending and watched.error
    room.scheduler.found("a", reading(Standing(False, False, watched.standing.confirmed_ns)))
    assert not watched.error and not watched.retry_pending
    room.timers.pass_s(3600)
    assert room.causes() == ["schedule"]


def test_an_interrupted_operation_lets_no_run_begin_until_it_is_decided(room: Room) -> None:
    watched = room.define(every("every 1h"))
    fault = Finding(AlarmKind.INTERRUPTED, Level.ERROR, "waits for a decision")
    room.scheduler.found("a", reading(watched.standing, fault))
    room.timers.pass_s(3 * 3600)
    assert room.causes() == []
    assert [(c.finding.kind, c.raised) for _, c in room.told] == [("interrupted", True)]
    room.scheduler.found("a", reading(watched.standing))
    room.timers.pass_s(3600)
    assert room.causes() == ["schedule"]


def test_an_owner_who_prunes_by_hand_ends_the_alarm_about_it(room: Room) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.end(prune_refused="too many")
    room.scheduler.pruned("a")
    assert [(c.finding.kind, c.raised) for _, c in room.told] == [("prune", True), ("prune", False)]


def test_quiesced_does_nothing_and_lets_nothing_wait(room: Room) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(2 * 3600)
    assert "a" in room.scheduler.queue.waiting
    room.define(every("every 1h"), quiesced=True)
    room.end()
    room.timers.pass_s(5 * 3600)
    assert room.causes() == ["schedule"]


def test_times_missed_while_no_service_ran_are_made_up_for_once(room: Room) -> None:
    room.define(every("every 1h"), age_s=9 * 3600)
    assert room.causes() == ["missed"]
    room.end()
    assert room.causes() == []
    room.restarted().define(
        room.define(every("every 1h")).definition,
        every("every 1h"),
        Standing(True, False, clock.now_ns()),
    )
    assert room.causes() == []


def test_a_lag_target_is_planned_again_after_each_run(room: Room) -> None:
    room.define(every("lag 10m"))
    room.timers.pass_s(150)
    assert room.causes() == ["lag"]
    room.end(took_s=60, size=1000)
    next_ns = room.timers.next_ns("a")
    assert next_ns is not None
    assert 60 <= (next_ns - clock.now_ns()) / 1e9 < 540 - 60
    room.timers.pass_s(600)
    assert room.causes() == ["lag"]
    room.end(took_s=400, size=1000)
    room.timers.pass_s(2)
    assert room.causes() == ["lag"], "a run takes 400 s of 600: back to back"
    assert room.scheduler.mirrors["a"].target


def test_a_lag_target_is_not_late_for_what_a_blackout_held_back(room: Room) -> None:
    """Found by a fleet: each such mirror raised an alarm in each of its blackouts."""
    room.define(every("lag 10m", blackouts=("22:20-23:00",)))
    room.timers.pass_s(150)
    room.end()
    room.timers.pass_s(2700)
    room.scheduler.check("a")
    assert room.scheduler.mirrors["a"].lag_s() == 2700 and not room.told
    room.timers.pass_s(3600)
    room.scheduler.check("a")
    assert [(c.finding.kind, c.finding.level) for _, c in room.told] == [("lag", "warning")]


def test_another_schedule_takes_the_doubts_about_the_old_along(room: Room) -> None:
    watched = room.define(every("lag 10s"))
    for _ in range(3):
        room.timers.pass_s(10)
        room.end(took_s=100, size=1)
    assert [f.kind for f in watched.alarms.up.values()].count(AlarmKind.TARGET) == 1
    room.define(every("every 1h"))
    room.scheduler.check("a")
    assert "target" not in watched.alarms.up


def test_a_clock_set_back_during_a_run_puts_off_no_lag_target_and_hides_no_lag(room: Room) -> None:
    watched = room.define(every("lag 10m"))
    room.timers.pass_s(150)
    confirmed_ns = clock.now_ns()
    room.hand.passed_s += 20
    room.hand.stepped_s -= 7200
    room.timers.retime()
    room.hand.passed_s += 20
    room.end(confirmed_ns=confirmed_ns)
    assert watched.lag_s() == pytest.approx(40, abs=2.5)
    room.timers.pass_s(1)
    room.causes()
    room.end()
    room.timers.pass_s(600)
    assert room.causes() == ["lag"]


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_step_after_the_run_changes_no_lag(room: Room, step_s: float) -> None:
    watched = room.define(every("every 1h"))
    room.hand.passed_s += 100
    room.hand.stepped_s += step_s
    room.scheduler.stands("a", watched.standing._replace(quiesced=True))
    assert watched.lag_s() == pytest.approx(100, abs=2.5)


def test_a_clock_that_brings_a_retry_into_a_blackout_does_not_make_it_run(room: Room) -> None:
    room.define(every("every 1h", blackouts=("10:00-12:00",)))
    room.timers.pass_s(3600)
    room.end(error=CUT)
    room.causes()
    room.hand.stepped_s += 11.5 * 3600  # 10:4x
    room.timers.retime()
    room.timers.pass_s(10)
    assert room.causes() == []
    room.timers.pass_s(3600 * 1.5)
    assert room.causes()[0] == "retry"


def test_removed_while_it_runs(room: Room) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(2 * 3600)
    room.scheduler.remove("a")
    assert not room.timers.set and not room.scheduler.queue.waiting
    room.end()
    assert not room.scheduler.queue.running
    assert room.causes() == ["schedule"]


def test_another_mirror_of_the_same_name_inherits_nothing(room: Room) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.end(error=CUT)
    room.causes()
    watched = room.define(None, ident="j")
    room.timers.pass_s(3600)
    assert not watched.error and room.causes() == []


def test_another_mirror_of_the_same_name_is_not_in_step_by_the_run_of_the_first(room: Room) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    watched = room.define(every("every 1h"), ident="j", mirrored=False)
    room.end()
    assert not room.scheduler.queue.running
    assert watched.lag_s() is None and not watched.standing.mirrored


@pytest.mark.parametrize("ident", ["", "j"])
def test_alarms_of_a_mirror_that_is_no_more_are_over(room: Room, ident: str) -> None:
    room.define(every("every 1h"))
    room.timers.pass_s(3600)
    room.end(error=CUT)
    if ident:
        room.define(None, ident=ident)
    else:
        room.scheduler.remove("a")
    assert [(c.finding.kind, c.raised) for _, c in room.told] == [
        ("failure", True),
        ("failure", False),
    ]


def test_an_alarm_about_the_last_run_survives_a_restart_until_the_next_run(room: Room) -> None:
    room.define(None)
    left = [Finding(AlarmKind(kind), Level.ERROR, "so") for kind in ("failure", "prune", "stall")]
    room.scheduler.inherit("a", left)
    room.scheduler.check("a")
    assert [(c.finding.kind, c.raised) for _, c in room.told] == [("stall", False)]
    room.scheduler.pruned("a")
    room.scheduler.due("a", "asked", "")
    room.end()
    assert [c.finding.kind for _, c in room.told] == ["stall", "prune", "failure"]


def test_a_success_clears_the_alarm_of_the_failed_command_before_it(room: Room) -> None:
    watched = room.define(every("every 1h"))
    failed = Finding(AlarmKind.FAILURE, Level.WARNING, "the last update failed: no")
    room.scheduler.found("a", reading(watched.standing, failed))
    room.scheduler.check("a")
    room.timers.pass_s(3600)
    room.end()
    assert [(name, change.finding, change.raised) for name, change in room.told] == [
        ("a", failed, True),
        ("a", failed, False),
    ]


def test_who_stops_starts_nothing(room: Room) -> None:
    room.define(every("every 1h"))
    room.scheduler.stopping = True
    room.timers.pass_s(3600)
    assert not room.scheduler.due("a", "asked", "") and room.causes() == []


def test_alarms_are_reported_when_raised_and_when_cleared(room: Room) -> None:
    room.define(every("every 1h"), retries=1)
    room.timers.pass_s(3600)
    room.end(error=CUT)
    room.timers.pass_s(60)
    room.end(error=CUT)
    room.timers.pass_s(3600)
    room.end()
    told = [(c.finding.kind, c.finding.level, c.raised) for _, c in room.told]
    assert [each for each in told if each[0] == "failure"] == [
        ("failure", "warning", True),
        ("failure", "error", True),
        ("failure", "error", False),
    ]
