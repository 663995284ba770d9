"""Calendars by brute force: written apart from what they judge, slow and plain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

NS = 10**9
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")
#: Days around which clocks change somewhere, and a 29 February.
STARTS = (
    datetime(2026, 3, 28, tzinfo=UTC),
    datetime(2026, 10, 24, tzinfo=UTC),
    datetime(2026, 3, 7, tzinfo=UTC),
    datetime(2026, 10, 31, tzinfo=UTC),
    datetime(2026, 4, 4, tzinfo=UTC),
    datetime(2026, 10, 3, tzinfo=UTC),
    datetime(2028, 2, 28, tzinfo=UTC),
    datetime(2026, 12, 30, tzinfo=UTC),
)


def ns(moment: datetime) -> int:
    return int(moment.timestamp()) * NS


def minutes(start: datetime, days: float) -> list[datetime]:
    return [start + timedelta(minutes=n) for n in range(int(days * 1440))]


def in_field(text: str, value: int, low: int, high: int) -> bool:
    for part in text.split(","):
        part, _, step = part.partition("/")
        first, _, last = part.partition("-")
        if part == "*":
            bounds = low, high
        else:
            bounds = int(first), int(last) if last else high if step else int(first)
        if bounds[0] <= value <= bounds[1] and (value - bounds[0]) % int(step or 1) == 0:
            return True
    return False


def matches(expression: str, shown: datetime) -> bool:
    """Whether wall time `shown` is one of the expression."""
    minute, hour, day, month, weekday = expression.split()
    in_day = in_field(day, shown.day, 1, 31)
    number = shown.isoweekday()
    in_weekday = in_field(weekday, number, 0, 7) or (number == 7 and in_field(weekday, 0, 0, 7))
    both = day.startswith("*") or weekday.startswith("*")
    return (
        in_field(minute, shown.minute, 0, 59)
        and in_field(hour, shown.hour, 0, 23)
        and in_field(month, shown.month, 1, 12)
        and ((in_day and in_weekday) if both else (in_day or in_weekday))
    )


def cron_times(expression: str, zone: str, start: datetime, days: float) -> list[int]:
    """When Debian's cron runs the line, minute by minute of real time."""
    minute, hour = expression.split()[:2]
    fixed = not minute.startswith("*") and not hour.startswith("*")
    found: list[int] = []
    # Two days before: what clocks showed already.
    moments = minutes(start - timedelta(days=2), days + 2)
    done: set[datetime] = set()
    before: datetime | None = None
    for moment in moments:
        shown = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
        due = matches(expression, shown)
        if fixed:
            due = due and shown not in done
            leapt = shown if before is None else before + timedelta(minutes=1)
            while leapt < shown:  # skipped wall times run at once
                due = due or matches(expression, leapt)
                leapt += timedelta(minutes=1)
            done.add(shown)
        before = shown
        if due and moment >= start:
            found.append(ns(moment))
    return found


def in_span(days: set[int], start: int, end: int, moment: datetime, zone: str) -> bool:
    """Membership of a weekly span, as the words say it; minutes of the day."""
    shown = moment.astimezone(ZoneInfo(zone))
    minute = shown.hour * 60 + shown.minute
    if end > start:
        return shown.weekday() in days and start <= minute < end
    if minute >= start:
        return shown.weekday() in days
    return minute < end and (shown.weekday() - 1) % 7 in days
