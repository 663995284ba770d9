"""Times of schedules against the calendar by brute force."""

from __future__ import annotations

import itertools
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirrord.core.errors import UsageError
from mirrord.daemon.timers import MirrorTrigger
from mirrord.schedules.schedule import Schedule, missed, parse_schedule
from tests.schedules.brute import NS, STARTS, ZONES, cron_times, in_span, minutes, ns

NOW = 1_790_000_000 * NS
starts = st.sampled_from(STARTS)
zones = st.sampled_from(ZONES)


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    part = st.one_of(
        number.map(str),
        st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}"),
    )
    return st.one_of(
        st.just("*"),
        st.integers(2, 20).map(lambda step: f"*/{step}"),
        st.lists(part, min_size=1, max_size=3).map(",".join),
    )


expressions = st.tuples(
    fields(0, 59),
    st.one_of(fields(0, 23), fields(0, 4)),
    st.one_of(st.just("*"), fields(1, 31)),
    st.one_of(st.just("*"), fields(1, 12)),
    st.one_of(st.just("*"), fields(0, 7)),
).map(" ".join)


def parsed(rules: str | list[str], **more: object) -> Schedule:
    try:
        return parse_schedule(rules, **more)  # type: ignore[arg-type]
    except UsageError:
        assume(False)
        raise


def runs(schedule: Schedule, start: datetime, days: float, seed: str = "s") -> list[int]:
    found: list[int] = []
    at, end = ns(start) - 1, ns(start + timedelta(days=days))
    while (following := schedule.next_after(at, seed=seed)) and following.at_ns < end:
        found.append(following.at_ns)
        at = following.at_ns
    return found


@given(expressions, zones, starts)
@settings(max_examples=150, deadline=None)
def test_cron_lines_fire_as_debian_says(expression: str, zone: str, start: datetime) -> None:
    schedule = parsed(expression, zone=zone)
    assert runs(schedule, start, 2.5) == cron_times(expression, zone, start, 2.5)


@given(expressions, zones, starts, st.integers(0, 3600))
@settings(max_examples=60, deadline=None)
def test_the_next_time_does_not_depend_on_where_one_asks(
    expression: str, zone: str, start: datetime, minute: int
) -> None:
    schedule = parsed(expression, zone=zone)
    at = ns(start) + minute * 60 * NS + 17
    following = schedule.next_after(at, seed="s")
    later = [n for n in cron_times(expression, zone, start, 2.5) if n > at]
    if later:
        assert following is not None and following.at_ns == later[0]


WINDOWS = (
    ("Mon-Fri 22:00-06:00", {0, 1, 2, 3, 4}, 1320, 360),
    ("Sat,Sun", {5, 6}, 0, 1440),
    ("01:30-03:15", set(range(7)), 90, 195),
)


@given(expressions, zones, starts, st.sampled_from(WINDOWS), st.booleans())
@settings(max_examples=60, deadline=None)
def test_cron_times_outside_of_windows_are_dropped(
    expression: str,
    zone: str,
    start: datetime,
    window: tuple[str, set[int], int, int],
    closed: bool,
) -> None:
    text, days, first, last = window
    named = {"blackouts": [text]} if closed else {"windows": [text]}
    schedule = parsed(expression, zone=zone, **named)
    expected = [
        n
        for n in cron_times(expression, zone, start, 2.5)
        if in_span(days, first, last, datetime.fromtimestamp(n // NS, UTC), zone) is not closed
    ]
    assert runs(schedule, start, 2.5) == expected


@given(
    st.sampled_from([7, 60, 900, 5400, 86400]),
    zones,
    starts,
    st.sampled_from(WINDOWS),
    st.text(max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_intervals_run_on_their_grid_and_once_when_a_window_opens(
    period: int, zone: str, start: datetime, window: tuple[str, set[int], int, int], seed: str
) -> None:
    text, days, first, last = window
    period = max(period, 900)
    free = parse_schedule(f"every {period}s")
    held = parse_schedule(f"every {period}s", zone=zone, windows=[text])
    grid = runs(free, start - timedelta(days=8), 11, seed)
    assert {b - a for a, b in itertools.pairwise(grid)} <= {period * NS}
    expected: list[int] = []
    due = iter(grid)
    upcoming = next(due, None)
    pending = False
    for moment in minutes(start - timedelta(days=8), 11):
        inside = in_span(days, first, last, moment, zone)
        if inside and pending:
            expected.append(ns(moment))
            pending = False
        while upcoming is not None and upcoming < ns(moment) + 60 * NS:
            if inside:
                expected.append(upcoming)
            else:
                pending = True
            upcoming = next(due, None)
    expected = sorted(n for n in set(expected) if n >= ns(start))
    assert runs(held, start, 3, seed) == expected
    assert all(held.allowed(n) for n in expected)


@given(
    st.sampled_from(["every 60s", "*/2 * * * *", "7,9,20 * * * *"]),
    zones,
    starts,
    st.text(max_size=8),
    st.integers(1, 60),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_each_nominal_time_has_one_run_within_the_jitter(
    rule: str, zone: str, start: datetime, seed: str, jitter: int, windowed: bool
) -> None:
    windows = ["06:00-09:30"] if windowed else []
    plain = runs(parsed(rule, zone=zone, windows=windows), start, 0.5, seed)
    schedule = parsed(rule, zone=zone, windows=windows, jitter=f"{jitter}s")
    moved = runs(schedule, start, 0.5, seed)
    assert all(a < b for a, b in itertools.pairwise(moved))
    assert all(schedule.allowed(n) for n in moved)
    every = moved
    nominal = iter(plain)
    first = next(nominal, None)
    if moved and first is not None and moved[0] < first:
        moved = moved[1:]  # its nominal time is before the start
    for at in moved:
        assert first is not None and 0 <= at - first < jitter * NS
        first = next(nominal, None)
    for at in moved[:50]:
        for before in (1, NS, jitter * NS // 2):
            again = schedule.next_after(at - before, seed=seed)
            assert again is not None and again.at_ns == min(n for n in every if n > at - before)


def test_mirrors_are_spread_over_the_period() -> None:
    schedule = parse_schedule("every 60s")
    seconds = [0] * 60
    for number in range(600):
        following = schedule.next_after(NOW, seed=f"mirror{number}")
        assert following is not None
        seconds[(following.at_ns - NOW) // NS] += 1
    assert max(seconds) < 25 and seconds.count(0) < 3


def test_several_rules_mean_whichever_comes_first() -> None:
    both = parse_schedule(["every 1h", "*/25 * * * *"])
    alone = [parse_schedule(rule) for rule in both.rules]
    start = datetime(2026, 5, 1, tzinfo=UTC)
    expected = sorted({n for one in alone for n in runs(one, start, 1)})
    assert runs(both, start, 1) == expected


def test_why_is_said_for_people() -> None:
    first = parse_schedule("*/15 * * * *", zone="Europe/Berlin").next_after(NOW, seed="a")
    assert first is not None and first.why == "cron '*/15 * * * *' in Europe/Berlin"
    window = ["Mon-Fri 22:00-06:00"]
    noon = ns(datetime(2026, 11, 18, 12, tzinfo=UTC))
    held = parse_schedule("every 15m", windows=window).next_after(noon, seed="a")
    assert held is not None
    assert held.why == "every 15 min; held until the window Mon-Fri 22:00-06:00 opens"
    closed = parse_schedule("every 15m", blackouts=["08:00-18:00"]).next_after(noon, seed="a")
    assert closed is not None and "held until the blackout 08:00-18:00 ends" in closed.why
    moved = parse_schedule("@hourly", jitter="10m").next_after(NOW, seed="a")
    assert moved is not None and moved.why.endswith("of jitter")


def test_times_and_periods() -> None:
    assert len(parse_schedule("every 5s").times(NOW, 7, seed="a")) == 7
    assert parse_schedule("every 90s").period_s == 90
    assert parse_schedule("0 3 * * *").period_s == 86400
    assert parse_schedule("0 * * * *", windows=["Mon-Fri 08:00-18:00"]).period_s == 63 * 3600
    assert parse_schedule("* 8-17 * * 1-5").period_s == (62 * 60 + 1) * 60
    assert parse_schedule("every 15m", windows=["Mon-Fri 08:00-18:00"]).period_s == 62.25 * 3600
    assert parse_schedule(["0 9 * * *", "0 21 * * *"]).period_s == 43200


def test_a_lag_target_names_no_times() -> None:
    schedule = parse_schedule("lag 5m", windows=["22:00-06:00"])
    assert schedule.lag_s == schedule.period_s == 300
    assert schedule.next_after(NOW, seed="a") is None and schedule.times(NOW, 3, seed="a") == []
    assert missed(schedule, 0, NOW, seed="a") is None
    noon = ns(datetime(2026, 11, 18, 12, tzinfo=UTC))
    assert not schedule.allowed(noon)
    assert schedule.next_allowed(noon) == noon + 10 * 3600 * NS


def test_what_was_missed_is_made_up_for_once() -> None:
    schedule = parse_schedule("every 60s")
    first = schedule.next_after(NOW, seed="a")
    assert first is not None
    assert missed(schedule, NOW, first.at_ns - 1, seed="a") is None
    one = missed(schedule, NOW, first.at_ns, seed="a")
    assert one is not None and one.at_ns == first.at_ns and "1 run was missed" in one.why
    many = missed(schedule, NOW, NOW + 10**6 * NS, seed="a")
    assert many is not None and "more than 100 runs were missed" in many.why
    night = parse_schedule("every 1h", windows=["22:00-06:00"])
    noon = ns(datetime(2026, 11, 18, 12, tzinfo=UTC))
    later = missed(night, noon - 86400 * NS, noon, seed="a")
    assert later is not None and later.at_ns == noon + 10 * 3600 * NS and "held" in later.why


@pytest.mark.parametrize(
    ("rules", "more", "part", "hint"),
    [
        ("", {}, "empty", "every 15m"),
        ([], {}, "no rule", "every 15m"),
        ("every 0s", {}, "out of range", "1 s to 366 d"),
        ("every 400d", {}, "out of range", "1 s to 366 d"),
        ("every day", {}, "not a duration", "90s"),
        ("every", {}, "not a duration", "90s"),
        ("lag 0s", {}, "out of range", "1 s"),
        (["lag 5m", "every 1h"], {}, "cannot be combined", "decides when"),
        ("0 0 31 2 *", {}, "never fires", "last day"),
        ("0 0 30,31 2 *", {}, "never fires", "last day"),
        ("61 * * * *", {}, "invalid minute: '61'", "0 to 59"),
        ("0 24 * * *", {}, "invalid hour", "0 to 23"),
        ("0 0 0 * *", {}, "invalid day of the month", "1 to 31"),
        ("0 0 * FOO *", {}, "invalid month", "JAN"),
        ("0 0 * * 8", {}, "invalid day of the week", "Sunday"),
        ("* * * *", {}, "five fields", "*/15"),
        ("* * * * * *", {}, "five fields", "every 30s"),
        ("@dayly", {}, "not a schedule", "@daily"),
        ("@daily", {"zone": "Europe/Berlni"}, "not a time zone", "Europe/Berlin"),
        ("@daily", {"windows": ["Mon", "Mon 08:00-09:00"]}, "overlap", "do not overlap"),
        ("@daily", {"windows": ["Mon"], "blackouts": ["Sun-Tue"]}, "leave no time", "longer"),
        ("every 5m", {"jitter": "6m"}, "longer than the shortest period", "5 min"),
        ("0,5 * * * *", {"jitter": "6m"}, "longer than the shortest period", "5 min"),
        ("lag 5m", {"jitter": "1m"}, "cannot be combined with a jitter", "Remove the jitter"),
        ("0 12 * * *", {"windows": ["22:00-06:00"]}, "never fires inside", "windows"),
        ("every 5m", {"windows": ["Mon 25:00-26:00"]}, "25:00", "Mon-Fri"),
    ],
)
def test_contradictory_settings_are_refused(
    rules: str | list[str], more: dict[str, object], part: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_schedule(rules, **more)  # type: ignore[arg-type]
    assert part in str(caught.value) and hint in caught.value.hint
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="0123456789*/,-L#W @MONevrylag.smhd", max_size=24))
@settings(max_examples=400, deadline=None)
def test_nonsense_is_a_usage_error_and_nothing_else(text: str) -> None:
    try:
        parse_schedule(text)
    except UsageError as error:
        assert error.hint or error.why


def test_a_trigger_goes_on_where_it_was_and_can_be_pickled() -> None:
    trigger = MirrorTrigger(parse_schedule("every 7s", jitter="3s"), "a")
    again = pickle.loads(pickle.dumps(trigger))
    now = datetime.fromtimestamp(NOW // NS, UTC)
    before: datetime | None = None
    for following in trigger.schedule.times(NOW, 50, seed="a"):
        fires = again.get_next_fire_time(before, now)
        assert fires is not None and fires.tzinfo is UTC
        late = fires - datetime.fromtimestamp(0, UTC)
        assert 0 <= late // timedelta(microseconds=1) * 1000 - following.at_ns < 1000
        before = now = fires
    assert MirrorTrigger(parse_schedule("lag 5m"), "a").get_next_fire_time(None, now) is None
    back = trigger.get_next_fire_time(now + timedelta(days=400), now)
    assert back is not None and back - now < timedelta(seconds=11)


@pytest.mark.parametrize("expression", ["30 2 * * *", "0,50 1-3 * * *", "*/20 2 * * *"])
def test_within_an_hour_that_comes_twice_the_next_time_is_later(expression: str) -> None:
    schedule = parse_schedule(expression, zone="Europe/Berlin")
    start = datetime(2026, 10, 24, 22, tzinfo=UTC)
    times = cron_times(expression, "Europe/Berlin", start, 2)
    for moment in minutes(start, 0.3):
        following = schedule.next_after(ns(moment) + 5, seed="s")
        assert following is not None
        assert following.at_ns == next(n for n in times if n > ns(moment) + 5)


def test_a_change_by_half_an_hour_loses_no_run() -> None:
    """cronsim by itself leaves out 2:45, which clocks do show, and 3:00 and 3:15."""
    start = datetime(2026, 10, 3, 14, tzinfo=UTC)
    hourly = parse_schedule("45 * * * *", zone="Australia/Lord_Howe")
    assert runs(hourly, start, 0.2) == cron_times("45 * * * *", hourly.zone, start, 0.2)
    third = parse_schedule("*/15 3 * * *", zone="Australia/Lord_Howe")
    assert len(runs(third, start, 0.5)) == 4
