"""Retention against a model written apart, and what must hold whatever clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.core.errors import UsageError
from mirrord.schedules.retention import (
    FLOOR,
    UNITS,
    Item,
    Keep,
    Verdict,
    clock_doubt,
    parse_keep,
    plan_retention,
)

NS = 10**9
START = int(datetime(2026, 10, 20, tzinfo=UTC).timestamp())
DAY = 86400

#: Snapshots in sequence; times mostly go on, but clocks leap both ways.
histories = st.lists(
    st.one_of(st.integers(1, 200_000), st.integers(-(10**7), 10**7)), max_size=40
).map(
    lambda steps: [
        Item(f"g{n}", f"s{n}", n, (START + sum(steps[: n + 1])) * NS) for n in range(len(steps))
    ]
)
keeps = st.builds(
    lambda newest, rules: Keep(newest, tuple((rules[u], u) for u in UNITS if u in rules)),
    st.integers(1, 6),
    st.dictionaries(st.sampled_from(UNITS), st.integers(1, 8), max_size=4),
)
zones = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"])


def key(unit: str, item: Item, zone: str) -> object:
    shown = datetime.fromtimestamp(item.taken_ns // NS, UTC).astimezone(ZoneInfo(zone))
    return {
        "minutely": shown.timetuple()[:5],
        "hourly": shown.timetuple()[:4],
        "daily": shown.date(),
        "weekly": shown.date() - timedelta(days=shown.weekday()),
        "monthly": (shown.year, shown.month),
        "yearly": shown.year,
    }[unit]


def kept_by(items: list[Item], keep: Keep, zone: str, protected: set[str]) -> set[str]:
    kept = {item.guid for item in items[-keep.newest :]} | protected
    for count, unit in keep.rules:
        last: dict[object, int] = {}
        for item in items:
            last[key(unit, item, zone)] = item.order
        for order in sorted(last.values())[-count:]:
            kept.add(f"g{order}")
    return kept & {item.guid for item in items}


def kept(verdicts: list[Verdict]) -> set[str]:
    return {verdict.item.guid for verdict in verdicts if verdict.kept}


@given(histories, keeps, zones, st.sets(st.integers(0, 40)), st.randoms())
@settings(deadline=None)
def test_the_plan_is_that_of_the_model(
    items: list[Item], keep: Keep, zone: str, numbers: set[int], random: object
) -> None:
    protected = {f"g{n}": "base of the next update" for n in numbers}
    shuffled = list(items)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    verdicts = plan_retention(shuffled, keep, zone=zone, protected=protected)
    assert [verdict.item for verdict in verdicts] == items
    assert kept(verdicts) == kept_by(items, keep, zone, set(protected))
    for verdict in verdicts:
        assert (verdict.why == ("no rule keeps it",)) is not verdict.kept
        assert (verdict.item.guid in protected) == ("base of the next update" in verdict.why)


@given(histories, keeps, zones)
@settings(deadline=None)
def test_planning_retention_twice_deletes_nothing_more(
    items: list[Item], keep: Keep, zone: str
) -> None:
    first = plan_retention(items, keep, zone=zone, protected={})
    left = [verdict.item for verdict in first if verdict.kept]
    assert len(left) >= min(keep.newest, len(items))
    assert all(v.kept for v in plan_retention(left, keep, zone=zone, protected={}))


@given(histories, keeps, zones, st.sampled_from([400 * DAY, -400 * DAY, 10**5 * DAY // 3, 60]))
@settings(deadline=None)
def test_a_clock_that_leaps_drops_at_most_one_for_each_rule(
    items: list[Item], keep: Keep, zone: str, leap_s: int
) -> None:
    before = kept(plan_retention(items, keep, zone=zone, protected={}))
    at_ns = (items[-1].taken_ns if items else START * NS) + leap_s * NS
    odd = Item("odd", "odd", 1000, at_ns)
    after = kept(plan_retention([*items, odd], keep, zone=zone, protected={}))
    assert "odd" in after
    assert len(before - after) <= 1 + len(keep.rules)


def test_a_leap_with_one_calendar_rule_drops_one_more() -> None:
    items = [Item(f"g{n}", f"s{n}", n, (START + n * DAY) * NS) for n in range(30)]
    keep = parse_keep("newest 1, 7 daily")
    before = kept(plan_retention(items, keep, zone="UTC", protected={}))
    odd = Item("odd", "odd", 30, items[-1].taken_ns + 400 * DAY * NS)
    after = kept(plan_retention([*items, odd], keep, zone="UTC", protected={}))
    assert before - after == {"g23"}


def test_each_snapshot_says_why_it_stays() -> None:
    items = [Item(f"g{n}", f"s{n}", n, (START + n * DAY // 2) * NS) for n in range(6)]
    verdicts = plan_retention(
        items, parse_keep("2 daily"), zone="UTC", protected={"g0": "base of the next update"}
    )
    assert [verdict.why for verdict in verdicts] == [
        ("base of the next update",),
        ("no rule keeps it",),
        ("no rule keeps it",),
        ("daily 2 of 2: 2026-10-21",),
        ("newest 2 of 2",),
        ("newest 1 of 2", "daily 1 of 2: 2026-10-22"),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10, "newest 10"),
        (1, "newest 1"),
        ("newest 10, 7 daily", "newest 10, 7 daily"),
        ("keep 24 hourly, 7 daily", f"newest {FLOOR}, 24 hourly, 7 daily"),
        ("12 monthly, 8 Weekly", f"newest {FLOOR}, 8 weekly, 12 monthly"),
        ("10", "newest 10"),
    ],
)
def test_rules_are_read_and_written(value: str | int, text: str) -> None:
    assert str(parse_keep(value)) == text
    assert parse_keep(text) == parse_keep(value)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("", "empty"),
        ("7 daily,", "empty"),
        (0, "not from 1"),
        (True, "not from 1"),
        ("0 daily", "not from 1"),
        ("7 dayly", "not a unit"),
        ("7 daily, 8 daily", "twice"),
        ("newest 3, newest 4", "twice"),
        ("daily", "not a rule"),
        ("newest 3 daily", "not a rule"),
    ],
)
def test_what_is_no_rule_is_refused(value: str | int, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_keep(value)
    assert part in str(caught.value) and caught.value.hint


def plan(times: list[int], keep: str | int) -> list[Verdict]:
    items = [Item(f"g{n}", f"s{n}", n, (START + t) * NS) for n, t in enumerate(times)]
    return plan_retention(items, parse_keep(keep), zone="UTC", protected={})


def test_the_clock_is_in_doubt_only_when_something_would_be_deleted() -> None:
    now_ns = (START + 100) * NS
    assert clock_doubt(plan([900, 0, 5], 5), now_ns=now_ns) is None
    assert clock_doubt(plan([0, 1, 2, 3], 1), now_ns=now_ns) is None


def test_a_clock_that_went_back_or_ahead_is_doubted() -> None:
    now_ns = (START + 100) * NS
    back = clock_doubt(plan([0, 90, 20, 30], 3), now_ns=now_ns) or ""
    assert "1 min 10 s before it" in back and "check the clock" in back
    assert clock_doubt(plan([0, 70, 20, 30], 3), now_ns=now_ns) is None
    assert clock_doubt(plan([0, 90, 20, 30], 3), now_ns=now_ns, accepted_order=2) is None
    ahead = clock_doubt(plan([0, 10, 20, 200], 3), now_ns=now_ns) or ""
    assert "1 min 40 s in the future" in ahead
    assert clock_doubt(plan([0, 10, 20, 200], 3), now_ns=now_ns, accepted_order=3) is None
