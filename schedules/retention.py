"""Retention: which snapshots to keep, by count and by calendar, and when to ask first.

The plan does not depend on the current time. A rule keeps the last snapshot of each of the newest N
calendar periods that have snapshots; what is newest is decided by the sequence, never by a clock. A
clock that jumps ahead therefore adds one period, and does not expire the history.

Periods are those of the wall clock: a repeated hour (clocks set back) counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from mirrord.core.errors import UsageError
from mirrord.core.names import did_you_mean
from mirrord.core.units import format_duration
from mirrord.schedules.zones import NS, wall

#: How many of the newest are kept at least when there are only calendar rules.
FLOOR = 2
COUNT_MAX = 10_000
#: Smaller clock differences are ignored.
SKEW_NS = 60 * NS


def _week(shown: datetime) -> str:
    year, week, _ = shown.isocalendar()
    return f"{year}-W{week:02}"


#: The label of the period that contains a wall time; units from the shortest to the longest.
_PERIODS: Mapping[str, Callable[[datetime], str]] = {
    "minutely": lambda shown: f"{shown:%Y-%m-%d %H:%M}",
    "hourly": lambda shown: f"{shown:%Y-%m-%d %H}:00",
    "daily": lambda shown: f"{shown:%Y-%m-%d}",
    "weekly": _week,
    "monthly": lambda shown: f"{shown:%Y-%m}",
    "yearly": lambda shown: f"{shown:%Y}",
}
UNITS = tuple(_PERIODS)
_HINT = "Write for example 'newest 10', or '24 hourly, 7 daily, 8 weekly, 12 monthly'."


@dataclass(frozen=True, slots=True)
class Keep:
    """The number of newest ones, and (count, unit) for each calendar rule, shortest unit first."""

    newest: int
    rules: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return ", ".join(
            [f"newest {self.newest}", *(f"{count} {unit}" for count, unit in self.rules)]
        )


class Item(NamedTuple):
    """A snapshot. order: its position in the sequence, which alone decides what is newer."""

    guid: str
    name: str
    order: int
    taken_ns: int


class Verdict(NamedTuple):
    """Whether a snapshot is kept, and all reasons for that; else that no rule keeps it."""

    item: Item
    kept: bool
    why: tuple[str, ...]


def parse_keep(value: str | int) -> Keep:
    """The rules of `24 hourly, 7 daily`, `newest 10, 7 daily` or a number; `UsageError`."""
    if isinstance(value, int):
        return Keep(_count(value, str(value)))
    text = re.sub(r"^\s*keep\s+", "", value, flags=re.IGNORECASE)
    newest: int | None = None
    rules: dict[str, int] = {}
    for part in (part.strip().lower() for part in text.split(",")):
        match = re.fullmatch(r"(?:newest\s+)?([0-9]{1,9})(?:\s+([a-z]+))?", part)
        if match is None or (match[2] and part.startswith("newest")):
            raise _invalid_rule(value, f"'{part}' is not a rule" if part else "a rule is empty")
        count, unit = _count(int(match[1]), value), match[2] or "newest"
        if unit != "newest" and unit not in UNITS:
            hint = did_you_mean(unit, UNITS, f"Units are {', '.join(UNITS)}.")
            raise _invalid_rule(value, f"'{unit}' is not a unit", hint)
        if unit in rules or (unit == "newest" and newest is not None):
            raise _invalid_rule(value, f"'{unit}' is given twice", "Write each unit once.")
        if unit == "newest":
            newest = count
        else:
            rules[unit] = count
    ordered = tuple((rules[unit], unit) for unit in UNITS if unit in rules)
    return Keep(FLOOR if newest is None else newest, ordered)


def plan_retention(
    items: Sequence[Item], keep: Keep, *, zone: str, protected: Mapping[str, str]
) -> list[Verdict]:
    """What to keep and what to delete, oldest first.

    protected: guid to the reason why that snapshot is kept regardless of the rules.
    """
    newest_first = sorted(items, key=lambda item: item.order, reverse=True)
    reasons: list[list[str]] = [[] for _ in newest_first]
    for place in range(min(keep.newest, len(newest_first))):
        reasons[place].append(f"newest {place + 1} of {keep.newest}")
    for count, unit in keep.rules:
        seen: set[str] = set()
        for item, why in zip(newest_first, reasons, strict=True):
            label = _PERIODS[unit](wall(zone, item.taken_ns))
            if label not in seen:
                seen.add(label)
                why.append(f"{unit} {len(seen)} of {count}: {label}")
                if len(seen) == count:
                    break
    for item, why in zip(newest_first, reasons, strict=True):
        if item.guid in protected:
            why.append(protected[item.guid])
    verdicts = [
        Verdict(item, bool(why), tuple(why) or ("no rule keeps it",))
        for item, why in zip(newest_first, reasons, strict=True)
    ]
    return verdicts[::-1]


def clock_doubt(
    verdicts: Sequence[Verdict], *, now_ns: int, accepted_order: int = -1
) -> str | None:
    """Why the times of the snapshots cannot be trusted; None also when nothing would be deleted.

    accepted_order: times of snapshots up to this place in the sequence were accepted.
    """
    if all(verdict.kept for verdict in verdicts):
        return None
    unseen = (v.item for v in verdicts if v.item.order > accepted_order)
    items = sorted(unseen, key=lambda item: item.order)
    latest: Item | None = None
    what = ""
    for item in items:
        if latest is not None and latest.taken_ns - item.taken_ns > SKEW_NS:
            back = format_duration((latest.taken_ns - item.taken_ns) / NS)
            what = f"{item.name} comes after {latest.name} and was taken {back} before it"
            break
        if latest is None or item.taken_ns > latest.taken_ns:
            latest = item
    if not what and items and items[-1].taken_ns - now_ns > SKEW_NS:
        ahead = format_duration((items[-1].taken_ns - now_ns) / NS)
        what = f"the newest snapshot, {items[-1].name}, is {ahead} in the future"
    return f"{what}: check the clock, then run 'mirrord prune NAME --accept'" if what else None


def _count(count: int, text: str) -> int:
    if isinstance(count, bool) or not 1 <= count <= COUNT_MAX:
        raise _invalid_rule(text, f"{count} is not from 1 to {COUNT_MAX}")
    return count


def _invalid_rule(text: str, why: str, hint: str = _HINT) -> UsageError:
    return UsageError(f"'{text}' is not a retention rule", why=why, hint=hint)
