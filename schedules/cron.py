"""Cron expressions: five fields, parsed by cronsim, applied to the wall clock as in Debian.

cronsim parses the fields and finds the next wall time that matches. Which instants have that wall
time is decided here, because cronsim itself misses runs where clocks change by half an hour (Lord
Howe) or at midnight. The rules are those of Debian's cron:

- A line with a fixed minute and a fixed hour (neither field begins with a star) runs once for each
  wall time: at the first one when clocks are set back; at the moment of the change when clocks
  skip it.
- Any other line runs whenever clocks show a matching time: twice in a repeated hour, not at all in
  a skipped one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from cronsim import CronSim, CronSimError

from mirrord.core.errors import UsageError
from mirrord.core.names import did_you_mean
from mirrord.schedules.zones import first_instant, naive, naive_s, stretch_at, wall_s

#: Shorthands for common expressions.
SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
#: cronsim's names of the fields, and the values of each.
_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L (the last day) or LW (the last weekday)",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 (0 and 7 are Sunday) or SUN to SAT, MON#1 (the first), 5L (the last)",
}
_LENGTH_MAX = 200
_ANY_DAY = naive(1_704_412_800)  # Friday 2024-01-05


class Cron(NamedTuple):
    """A validated cron expression. text: as given."""

    text: str
    expression: str
    #: Debian treats lines with a fixed time of the day specially when clocks change.
    fixed: bool


def parse_cron(text: str) -> Cron:
    """The expression in `text`; `UsageError` names the invalid field."""
    text = text.strip()
    if text.startswith("@"):
        if text.lower() not in SHORT:
            hint = did_you_mean(text.lower(), SHORT, f"Known: {', '.join(SHORT)}.")
            raise UsageError(f"'{text}' is not a schedule", hint=hint)
        expression = SHORT[text.lower()]
    else:
        expression = " ".join(text.split())
    fields = expression.split(" ")
    if len(fields) != len(_FIELDS) or len(text) > _LENGTH_MAX:
        raise _wrong_count(text, len(fields))
    try:
        fires = next(CronSim(expression, _ANY_DAY), None) is not None
    except CronSimError as error:
        if not _is_day_of_short_month(str(error), fields):
            raise _wrong_field(text, fields, str(error)) from None
        fires = False
    if not fires:
        raise UsageError(
            f"the cron expression '{text}' never fires",
            why="no such day occurs in the months that it names",
            hint="Change the day or the month; L as the day means the last day of a month.",
        )
    fixed = not fields[0].startswith("*") and not fields[1].startswith("*")
    return Cron(text, expression, fixed)


def next_fire_s(cron: Cron, zone: str, after_s: int) -> int | None:
    """The first instant after `after_s` at which it fires; None: not within 50 years."""
    # It fires on full minutes, so all instants within a minute share one (cached) answer.
    found = _next_fire_s(cron, zone, after_s - after_s % 60)
    if found is not None and found <= after_s:  # offsets of odd seconds, before 1972
        found = _next_fire_s(cron, zone, after_s)
    return found


@lru_cache(maxsize=1 << 16)
def _next_fire_s(cron: Cron, zone: str, after_s: int) -> int | None:
    if cron.fixed:
        for shown in CronSim(cron.expression, naive(wall_s(zone, after_s))):
            at_s = first_instant(zone, naive_s(shown))
            if at_s > after_s:  # skip the second occurrence of that wall time
                return at_s
        return None
    while True:
        # Within a stretch of constant offset, wall time is a sum; the start is inclusive.
        stretch = stretch_at(zone, after_s + 1)
        found = next(CronSim(cron.expression, naive(after_s + stretch.offset_s)), None)
        if found is None:
            return None
        at_s = naive_s(found) - stretch.offset_s
        if at_s < stretch.end_s:
            return at_s
        after_s = stretch.end_s - 1


def _is_day_of_short_month(message: str, fields: list[str]) -> bool:
    """Whether cronsim rejected a day only because the given months have no such day."""
    if "day-of-month" not in message:
        return False
    try:
        CronSim(f"0 0 {fields[2]} * *", _ANY_DAY)
    except CronSimError:
        return False
    return True


def _wrong_count(text: str, count: int) -> UsageError:
    if count > len(_FIELDS):
        hint = "Write five fields; for less than a minute write for example 'every 30s'."
    else:
        hint = "Write for example '*/15 * * * *', '@daily', 'every 15m' or 'lag 5m'."
    short = text if len(text) <= _LENGTH_MAX else text[:40] + "..."
    return UsageError(
        f"'{short}' is not a schedule",
        why="a cron expression has five fields: minute, hour, day of the month, month, "
        "day of the week",
        hint=hint,
    )


def _wrong_field(text: str, fields: list[str], message: str) -> UsageError:
    for place, (name, allowed) in enumerate(_FIELDS.items()):
        if message.endswith(f" {name}"):
            plain = name.replace("-of-", " of the ")
            return UsageError(
                f"the cron expression '{text}' has an invalid {plain}: '{fields[place]}'",
                hint=f"The {plain} is {allowed}, a list such as 1,3, a range such as 1-5, "
                "or steps such as */2.",
            )
    return UsageError(f"'{text}' is not a cron expression", why=message.lower())
