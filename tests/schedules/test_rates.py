"""Rates: their language, and the rate at each minute against the calendar."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.core.errors import UsageError
from mirrord.schedules.rates import parse_rates
from tests.schedules.brute import STARTS, ZONES, in_span, minutes, ns

MIB = 1 << 20
WEEKDAYS = {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("20MiB/s", "20 MiB/s"),
        ("unlimited", "unlimited"),
        ("else 1GiB/s", "1 GiB/s"),
        ("100Mbit/s", "100 Mbit/s"),
        ("1.5 gbit/s", "1.5 Gbit/s"),
        ("1500K/s", "1500 KiB/s"),
        ("1025B/s", "1025 B/s"),
        (
            "20 MiB/s 08:00-18:00 Mon-Fri, 5MiB/s Sat,Sun 00:00-24:00, else unlimited",
            "20 MiB/s Mon-Fri 08:00-18:00, 5 MiB/s Sat,Sun, else unlimited",
        ),
        ("8MB/s Mon, Wed, Fri, 9MB/s", "8 MiB/s Mon,Wed,Fri, else 9 MiB/s"),
        ("unlimited 22:00-06:00", "unlimited 22:00-06:00, else unlimited"),
    ],
)
def test_rates_are_read_and_written(text: str, canonical: str) -> None:
    rates = parse_rates(text)
    assert str(rates) == canonical
    assert parse_rates(canonical) == rates


@pytest.mark.parametrize(
    ("text", "part", "hint"),
    [
        ("", "empty", "20MiB/s"),
        ("0", "never end", "mirrord quiesce NAME"),
        ("0MiB/s", "never end", "mirrord quiesce NAME"),
        ("1023B/s", "less than 1 KiB/s", "1KiB/s"),
        ("20MiB", "not a rate", "20MiB/s"),
        ("fast", "does not begin with a rate", "20MiB/s"),
        ("Mon-Fri 20MiB/s", "does not begin with a rate", "20MiB/s"),
        ("20MiB/s Mon, 5MiB/s Mon 08:00-09:00", "'Mon' and 'Mon 08:00-09:00' overlap", "else"),
        ("20MiB/s, 5MiB/s Mon", "names no hours and is not the last", "Only the last"),
        ("else 20MiB/s, 5MiB/s Mon", "is not the last", "Only the last"),
        ("5MiB/s Mon, else 20MiB/s Tue", "names hours", "all other hours"),
        ("5MiB/s 08:00-25:00", "25:00", "Mon-Fri"),
        ("5MiB/s Mon,", "empty", "20MiB/s"),
        ("else", "does not begin with a rate", "20MiB/s"),
        ("5 parsecs/s", "not a rate", "20MiB/s"),
    ],
)
def test_what_is_no_rate_is_refused(text: str, part: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rates(text)
    assert part in str(caught.value) and hint in caught.value.hint


def test_a_rate_in_an_unknown_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="time zone"):
        parse_rates("20MiB/s", zone="Mars/Olympus")


@pytest.mark.parametrize("zone", ZONES)
@given(st.sampled_from(STARTS))
@settings(max_examples=8, deadline=None)
def test_the_rate_is_that_of_each_minute(zone: str, start: datetime) -> None:
    rates = parse_rates(
        "20MiB/s 08:00-18:00 Mon-Fri, 5MiB/s Sat,Sun 00:00-24:00, 5MiB/s 22:00-02:30 Mon-Thu,"
        "else unlimited",
        zone=zone,
    )
    walk = minutes(start, 4)
    expected: list[float | None] = []
    for moment in walk:
        if in_span(WEEKDAYS, 480, 1080, moment, zone):
            expected.append(20 * MIB)
        elif in_span({5, 6}, 0, 1440, moment, zone):
            expected.append(5 * MIB)
        else:
            late = in_span({0, 1, 2, 3}, 1320, 150, moment, zone)
            expected.append(5 * MIB if late else None)
    assert [rates.at(ns(moment)) for moment in walk] == expected
    changes = [
        ns(moment)
        for moment, now, before in zip(walk[1:], expected[1:], expected, strict=False)
        if now != before
    ]
    found, at = [], ns(start)
    while (edge := rates.next_change(at)) is not None and edge <= ns(walk[-1]):
        found.append(edge)
        at = edge
    assert found == changes


def test_a_constant_rate_never_changes() -> None:
    for text in ("20MiB/s", "5MiB/s Mon, else 5MiB/s", "5MiB/s Mon-Sun, else 9MiB/s"):
        assert parse_rates(text).constant and parse_rates(text).next_change(0) is None
    assert not parse_rates("5MiB/s Mon").constant


@given(st.integers(1024, 1 << 45))
@settings(deadline=None)
def test_each_rate_is_written_exactly(rate: int) -> None:
    written = str(parse_rates(f"{rate}B/s"))
    assert parse_rates(written).at(0) == rate
