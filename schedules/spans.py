"""Weekly spans of wall time: windows, blackouts and the hours of a rate.

A span refers to the wall clock at each instant: a repeated hour (clocks set back) is inside twice,
a skipped hour never occurs. The given day is the one on which the span starts: `Fri 22:00-06:00`
ends on Saturday morning.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from mirrord.core.errors import UsageError
from mirrord.schedules.zones import DAY_S, NS, stretch_at

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MIN = 1440
WEEK_MIN = 7 * DAY_MIN
ALL_DAYS = frozenset(range(7))

_FULL = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS = {name: n for n, day in enumerate(_FULL) for name in (day, day[:3])}
_HOURS = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")
_HINT = "Write for example 'Mon-Fri 08:00-18:00', '22:00-06:00' or 'Sat,Sun'."

#: Half-open stretches of the week in minutes since Monday 00:00: sorted, disjoint.
Week = tuple[tuple[int, int], ...]


class Span(NamedTuple):
    """Each week on `days` (0 is Monday), from one minute of the day to another.

    When `end_min` is not after `start_min`, the span ends on the next day.
    """

    days: frozenset[int]
    start_min: int
    end_min: int

    def __str__(self) -> str:
        start, end = self.start_min, self.end_min or DAY_MIN
        if (start, end) == (0, DAY_MIN):
            return _days_text(self.days)
        hours = f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
        return hours if self.days == ALL_DAYS else f"{_days_text(self.days)} {hours}"


def parse_span(text: str) -> Span:
    """The span of `Mon-Fri 08:00-18:00`: days, hours or both, in any order. `UsageError`."""
    words = re.sub(r"\s*([-,])\s*", r"\1", text.strip()).split()
    if not 1 <= len(words) <= 2:
        raise _invalid_span(text, "" if words else "it is empty")
    hours = [word for word in words if ":" in word]
    days = [word for word in words if ":" not in word]
    if len(hours) > 1 or len(days) > 1:
        raise _invalid_span(text, "days and hours can be given once each")
    start, end = _parse_hours(hours[0], text) if hours else (0, DAY_MIN)
    return Span(_parse_days(days[0], text) if days else ALL_DAYS, start, end)


def covers(span: Span, at_ns: int, zone: str) -> bool:
    """Whether the clocks in `zone` show a time inside the span."""
    return is_in(week_of((span,)), at_ns, zone)


def next_edge(spans: Sequence[Span], at_ns: int, zone: str) -> int | None:
    """The first instant after `at_ns` at which one of the spans begins or ends; None: never."""
    found: list[int] = []
    for span in spans:
        week = week_of((span,))
        other = invert(week) if is_in(week, at_ns, zone) else week
        if other:
            found.append(first_in(other, at_ns, zone))
    return min(found, default=None)


def overlap(spans: Sequence[Span]) -> tuple[Span, Span] | None:
    """The first two spans that overlap; None when there are none."""
    for number, second in enumerate(spans):
        for first in spans[:number]:
            if intersect(week_of((first,)), week_of((second,))):
                return first, second
    return None


@lru_cache(maxsize=4096)
def week_of(spans: tuple[Span, ...]) -> Week:
    """The minutes of the week that at least one of the spans covers."""
    pieces: list[tuple[int, int]] = []
    for span in spans:
        length = (span.end_min - span.start_min - 1) % DAY_MIN + 1
        for day in span.days:
            start = day * DAY_MIN + span.start_min
            pieces.append((start, min(start + length, WEEK_MIN)))
            pieces.append((0, start + length - WEEK_MIN))
    return _merge(pieces)


@lru_cache(maxsize=4096)
def invert(week: Week) -> Week:
    """The other minutes of the week."""
    edges = [0, *(edge for piece in week for edge in piece), WEEK_MIN]
    return _merge(zip(edges[::2], edges[1::2], strict=True))


def intersect(one: Week, other: Week) -> Week:
    """The minutes of the week in both."""
    return _merge((max(a, c), min(b, d)) for a, b in one for c, d in other)


def is_in(week: Week, at_ns: int, zone: str) -> bool:
    """Whether the clocks in `zone` show a time inside `week`."""
    at_s = at_ns // NS
    minute = _week_second(at_s + stretch_at(zone, at_s).offset_s) // 60
    place = bisect_right(week, (minute, WEEK_MIN + 1)) - 1
    return place >= 0 and minute < week[place][1]


def first_in(week: Week, at_ns: int, zone: str) -> int:
    """The first instant not before `at_ns` that is inside `week`, which must not be empty."""
    while not is_in(week, at_ns, zone):
        at_s = at_ns // NS
        stretch = stretch_at(zone, at_s)
        second = _week_second(at_s + stretch.offset_s)
        place = bisect_right(week, (second // 60, WEEK_MIN + 1))
        start = week[place][0] if place < len(week) else week[0][0] + WEEK_MIN
        # The offset changes at the end of the stretch: continue from there.
        at_ns = min(at_s - second + start * 60, stretch.end_s) * NS
    return at_ns


def _merge(pieces: Iterable[tuple[int, int]]) -> Week:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(pieces):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _week_second(shown_s: int) -> int:
    """Seconds since Monday 00:00 of a wall time; 1970 began on a Thursday."""
    return (shown_s + 3 * DAY_S) % (7 * DAY_S)


def _parse_hours(word: str, text: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(word)
    if match is None:
        raise _invalid_span(text, f"'{word}' is not a time range")
    start, end = _minute(match[1], match[2], text), _minute(match[3], match[4], text)
    if start == DAY_MIN:
        raise _invalid_span(text, "a span cannot start at 24:00; use 00:00 of the next day")
    return start, end or DAY_MIN


def _minute(hour: str, minute: str, text: str) -> int:
    found = int(hour) * 60 + int(minute)
    if int(minute) > 59 or found > DAY_MIN:
        raise _invalid_span(text, f"{hour}:{minute} is not a time of day")
    return found


def _parse_days(word: str, text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in word.split(","):
        ends = [_NUMBERS.get(name.lower()) for name in part.split("-")]
        first, last = ends[0], ends[-1]
        if len(ends) > 2 or first is None or last is None:
            raise _invalid_span(text, f"'{part}' is not a day or a range of days")
        days.update((first + n) % 7 for n in range((last - first) % 7 + 1))
    return frozenset(days)


def _days_text(days: frozenset[int]) -> str:
    runs: list[list[int]] = []
    for day in sorted(days):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return ",".join(
        f"{DAYS[run[0]]}-{DAYS[run[-1]]}" if len(run) > 2 else ",".join(DAYS[d] for d in run)
        for run in runs
    )


def _invalid_span(text: str, why: str) -> UsageError:
    return UsageError(f"'{text}' is not a weekly span", why=why, hint=_HINT)
