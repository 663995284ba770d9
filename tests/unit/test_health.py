"""Findings, alarms, and the watch over the clock."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mirrord.core.model import Definition, Endpoint, Promise
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.scheduler.clockwatch import ClockWatch, WallTimes
from mirrord.scheduler.health import Alarms, assess
from mirrord.scheduler.watched import Standing, Watched
from mirrord.system import clock


def watched(
    lag_s: float | None = None,
    *,
    mirrored: bool = True,
    quiesced: bool = False,
    quiet_s: float | None = None,
    promise: Promise | None = None,
    **fields: Any,
) -> Watched:
    """What the scheduler knows of a mirror now."""
    end = Endpoint("block", "/srv/a")
    made = Watched(
        Definition("a", "1a2b3c4d", end, end, promise=promise or Promise()), None, **fields
    )
    made.standing = Standing(mirrored, quiesced, 0 if lag_s is None else 1)
    made.confirmed_boot_s = clock.boottime_s() - (lag_s or 0)
    made.moved_s = None if quiet_s is None else clock.monotonic_s() - quiet_s
    return made


def found(one: Watched, expected_s: float | None = None) -> list[tuple[str, str]]:
    return [(finding.kind, finding.level) for finding in assess(one, expected_s)]


def test_nothing_is_wrong_with_a_mirror_in_step() -> None:
    assert found(watched()) == found(watched(3600), 3600) == []


@pytest.mark.parametrize(
    ("lag_s", "levels"),
    [(149, []), (150, ["warning"]), (249, ["warning"]), (250, ["error"])],
)
def test_lag_is_judged_by_the_promise_else_by_the_schedule(lag_s: float, levels: list[str]) -> None:
    for expected_s, promise in ((100, None), (7, Promise(100)), (None, Promise(100))):
        late = found(watched(lag_s, promise=promise), expected_s)
        assert [level for _, level in late] == levels
    assert found(watched(lag_s)) == [], "nobody promised anything"
    assert found(watched(lag_s, promise=Promise(100), mirrored=False)) == []
    assert found(watched(promise=Promise(100))) == [], "it never was in step"


def test_a_quiesced_mirror_falls_behind_and_the_text_says_why() -> None:
    [finding] = assess(watched(300, promise=Promise(100), quiesced=True), None)
    assert "quiesced" in finding.text and "300 %" in finding.text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"error": "cut", "number": 2}, ("failure", "warning")),
        ({"error": "cut", "number": 2, "gives_up": True}, ("failure", "error")),
        ({"quiet_s": 30}, ("stall", "error")),
        ({"base_risk": "gone"}, ("base", "error")),
        ({"prune_refused": "too many"}, ("prune", "warning")),
        ({"target": "too small"}, ("target", "warning")),
        *(
            ({"faults": (Finding(AlarmKind(kind), Level.ERROR, "found"),)}, (kind, "error"))
            for kind in ("verb", "destination", "source", "interrupted")
        ),
        # Of its own runs the scheduler knows more than the records.
        (
            {
                "error": "cut",
                "gives_up": True,
                "faults": (Finding(AlarmKind.FAILURE, Level.WARNING, "cut"),),
            },
            ("failure", "error"),
        ),
    ],
)
def test_each_kind_is_raised_at_its_level(
    fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert found(watched(**fields)) == [expected]
    assert expected[0] in tuple(AlarmKind)


def test_a_transfer_that_moves_does_not_stall() -> None:
    assert found(watched(quiet_s=20)) == []


def test_an_alarm_is_told_once_and_again_when_its_level_changes_and_cleared_once() -> None:
    alarms = Alarms()
    warning, error = (
        Finding(AlarmKind.LAG, Level.WARNING, "1"),
        Finding(AlarmKind.LAG, Level.ERROR, "2"),
    )
    assert [change.raised for change in alarms.update([warning])] == [True]
    assert alarms.update([warning._replace(text="a little more")]) == []
    assert alarms.update([error])[0] == (error, True)
    assert alarms.update([warning])[0] == (warning, True)
    assert alarms.update([]) == [(warning, False)]
    assert alarms.update([]) == []


def test_alarms_that_were_up_before_are_cleared_when_all_is_well() -> None:
    old = Finding(AlarmKind.FAILURE, Level.ERROR, "cut")
    assert Alarms([old]).update([]) == [(old, False)]
    assert Alarms([old]).update([old]) == []


class Clocks:
    """A watch that is shown both clocks once a second."""

    def __init__(self) -> None:
        self.boot_s, self.ahead_s = 1000.0, 1e9
        self.watch = ClockWatch(self.wall_ns(), self.boot_s, tolerance_s=5.0)

    def wall_ns(self) -> int:
        return round((self.boot_s + self.ahead_s) * 1e9)

    def tick(self, ahead_by_s: float = 0.0) -> tuple[str, bool] | None:
        self.boot_s += 1
        self.ahead_s += ahead_by_s
        jump = self.watch.judge(self.watch.look(self.wall_ns(), self.boot_s))
        return None if jump is None else (jump.text, jump.over)


def test_the_clock_goes_forward_and_back_to_where_it_was() -> None:
    clocks = Clocks()
    assert clocks.tick() is None
    text, over = clocks.tick(3600) or ("", True)
    assert "forward" in text and not over
    assert clocks.tick() is None
    text, over = clocks.tick(-3599) or ("", False)
    assert "back" in text and over, "within the tolerance of where it was"
    assert clocks.watch.away_s == 0


def test_a_clock_that_goes_back_alone_is_not_right_again() -> None:
    clocks = Clocks()
    text, over = clocks.tick(-60) or ("", True)
    assert "back" in text and not over
    text, over = clocks.tick(30) or ("", True)
    assert not over


def test_slewing_is_no_jump() -> None:
    clocks = Clocks()
    assert [clocks.tick(0.0005) for _ in range(100)] == [None] * 100


def test_suspending_the_machine_is_no_jump_but_is_noticed() -> None:
    watch = ClockWatch(10**18, 50.0, tolerance_s=5.0)
    assert watch.slept(50.0, 10.0) == 0
    assert watch.slept(51.0, 11.0) == 0
    assert watch.slept(3652.0, 12.0) == 3600
    assert watch.judge(watch.look(10**18 + 3602 * 10**9, 3652.0)) is None


def test_wall_times_are_found_on_the_clock_that_does_not_jump() -> None:
    wall = WallTimes(10_000 * 10**9, 0.0)
    wall.look(10_100 * 10**9, 100.0)
    assert wall.boot_s(10_060 * 10**9) == pytest.approx(60)
    assert wall.boot_s(9_000 * 10**9) == pytest.approx(-1000), "before there was a service"
    wall.look(13_700 * 10**9, 100.0)  # forward by an hour
    wall.look(13_800 * 10**9, 200.0)
    assert wall.boot_s(10_060 * 10**9) == pytest.approx(60)
    assert wall.boot_s(13_750 * 10**9) == pytest.approx(150)
    assert wall.boot_s(12_000 * 10**9) == pytest.approx(100), "the step passed it"
    assert wall.boot_s(15_000 * 10**9) == pytest.approx(200), "no time is in the future"


def test_of_a_wall_time_that_came_twice_the_hint_says_which_is_meant() -> None:
    wall = WallTimes(10_000 * 10**9, 0.0)
    wall.look(10_100 * 10**9, 100.0)
    wall.look(10_001 * 10**9, 101.0)  # back by 100 s
    wall.look(10_050 * 10**9, 150.0)
    assert wall.boot_s(10_020 * 10**9) == pytest.approx(20), "rather too great a lag"
    assert wall.boot_s(10_020 * 10**9, since_s=110.0) == pytest.approx(120)
    assert wall.boot_s(10_020 * 10**9, since_s=140.0) == pytest.approx(20)
    assert wall.boot_s(10_080 * 10**9, since_s=110.0) == pytest.approx(80), "not yet for the second"


def test_many_steps_are_forgotten_but_never_the_time_before() -> None:
    wall = WallTimes(10_000 * 10**9, 0.0)
    for number in range(1, 200):
        wall.look((10_000 + 11 * number) * 10**9, float(number))
    assert math.isfinite(wall.boot_s(1))
    assert wall.boot_s((10_000 + 11 * 199) * 10**9) == pytest.approx(199)
