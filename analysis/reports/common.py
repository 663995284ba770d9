"""Shared by the reports: axes of intervals and of time, formatting of rates and shares."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from mirrord.analysis.grids import NS
from mirrord.analysis.numbers import Longs, Updates, Workload
from mirrord.analysis.reports.plots import Axis
from mirrord.core.units import format_duration

_TICKS = (
    (1, "1 s"), (5, "5 s"), (15, "15 s"), (60, "1 min"), (300, "5 min"), (900, "15 min"),
    (1800, "30 min"), (3600, "1 h"), (21600, "6 h"), (43200, "12 h"), (86400, "24 h"),
    (7 * 86400, "1 week"), (30 * 86400, "30 d"),
)  # fmt: skip
_DECADES = (1, 5, 15, 60, 300, 900, 3600, 21600, 86400, 7 * 86400, 30 * 86400)
_NICE = (
    1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200,
    86400, 7 * 86400,
)  # fmt: skip
#: For values within this factor powers of ten alone would be too few ticks.
_CLOSE = 150
#: Letters of a trace's name in file names.
_SLUG_MAX = 48
MBIT = 1e6 / 8
MIB = 1 << 20
GIB = 1 << 30


def interval_words(seconds: float) -> str:
    """`15 min`, `1 h`, `24 h`."""
    known = dict(_TICKS).get(int(seconds)) if seconds == int(seconds) else None
    return known or format_duration(seconds)


def name_of(updates: Updates) -> str:
    """The interval in words, or the schedule as given."""
    return updates.label if updates.seconds is None else interval_words(updates.seconds)


def interval_axis(seconds: Sequence[float]) -> Axis:
    """The update interval in minutes, logarithmic, with ticks such as `15 min`."""
    low, high = min(seconds, default=60), max(seconds, default=86400)
    ticks = [(value / 60, words) for value, words in _TICKS if low <= value <= high]
    if not ticks:
        ticks = [(each / 60, format_duration(each)) for each in seconds[:8]]
    return Axis("update interval", "log", tuple(ticks), low=low / 60 / 1.25, high=high / 60 * 1.25)


def log_axis(title: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis for these values, with more ticks where they are close together."""
    low, high = min(values, default=1.0), max(values, default=10.0)
    close = high <= _CLOSE * low
    # (At least two ticks: 1, 2 and 5 are within a factor of 2.5.)
    low, high = low / 1.7, high * 1.7
    if not close:
        return Axis(title, "log", low=low, high=high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    shown = tuple((tick, f"{tick:,.10g}") for tick in ticks if low <= tick <= high)
    return Axis(title, "log", shown, low=low, high=high)


def age_axis(title: str, seconds: Sequence[float]) -> Axis:
    """A logarithmic axis of durations in minutes, with ticks such as `15 min`."""
    low, high = min(seconds, default=60) / 1.3, max(seconds, default=86400) * 1.3
    known = dict(_TICKS)
    ticks = [(value / 60, known[value]) for value in _DECADES if low <= value <= high]
    return Axis(title, "log", tuple(ticks), low=low / 60, high=high / 60)


def nice_seconds(least_s: float) -> float:
    """The next longer round duration."""
    return next((each for each in _NICE if each >= least_s), least_s)


class Traced(Protocol):
    """What a time axis is made for."""

    @property
    def epoch_ns(self) -> int | None:
        """Unix time of the trace's zero, None without a date."""

    @property
    def first_ns(self) -> int:
        """When the first record was, trace time."""

    @property
    def span_s(self) -> float:
        """From the first record to the last."""


class TimeAxis:
    """Times of a trace: by the clock, or since its start when it has no date."""

    def __init__(self, workload: Traced, zone: str) -> None:
        self._workload = workload
        self._unit_s, self._unit = 1.0, "s"
        if workload.epoch_ns is None:
            for unit_s, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
                if workload.span_s >= 3 * unit_s:
                    self._unit_s, self._unit = unit_s, unit
                    break
            self.axis = Axis(f"since the start of the trace ({self._unit})")
        else:
            self._zone = ZoneInfo(zone)
            self.axis = Axis(f"time ({zone})", "time")

    def places(self, at_ns: Longs) -> list[str] | list[float]:
        """The places of these times on the axis."""
        if self._workload.epoch_ns is None:
            return [(int(at) - self._workload.first_ns) / NS / self._unit_s for at in at_ns]
        return [self._clock(int(at)).isoformat(timespec="milliseconds") for at in at_ns]

    def words(self, at_ns: int) -> str:
        """`Mon 2007-02-26 09:00:00`, or `2 h 5 min after the start`."""
        if self._workload.epoch_ns is None:
            since_s = (at_ns - self._workload.first_ns) / NS
            return f"{format_duration(since_s)} after the start" if since_s else "at the start"
        return f"{self._clock(at_ns):%a %Y-%m-%d %H:%M:%S}"

    def _clock(self, at_ns: int) -> datetime:
        unix_ns = at_ns + (self._workload.epoch_ns or 0)
        moment = datetime.fromtimestamp(unix_ns // NS, UTC).astimezone(self._zone)
        return moment.replace(tzinfo=None) + timedelta(microseconds=unix_ns % NS // 1000)


def rate_words(bytes_per_s: float) -> str:
    """`12.5 Mbit/s`: rates of links are in bits, powers of 1000."""
    bits = bytes_per_s * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if bits < 999.5:
            return f"{bits:.3g} {unit}"
        bits /= 1000
    return f"{bits:.3g} Gbit/s"


def need_words(bytes_per_s: float) -> str:
    """A link that is needed, rounded up: given as `--link`, it is enough."""
    bits = max(bytes_per_s * 8, 1.0)
    digit = 10.0 ** (math.floor(math.log10(bits)) - 2)
    return rate_words(math.ceil(bits / digit - 1e-9) * digit / 8)


def share_words(percent: float) -> str:
    """`60 %`, with one decimal where it is small."""
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


def by_seconds(workload: Workload) -> dict[float, Updates]:
    """The fixed intervals for which the trace is long enough, by their seconds, in order."""
    fixed = [each for each in workload.shown() if each.seconds is not None]
    return {each.seconds or 0.0: each for each in sorted(fixed, key=lambda one: one.seconds or 0)}


def warnings(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """The warnings of all traces, with their names."""
    return tuple(f"{each.name}: {text}" for each in workloads for text in each.warnings)


def distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered where they repeat, so that traces can be distinguished."""
    made: list[str] = []
    taken: set[str] = set()
    for name in names:
        numbered = (name if count == 1 else f"{name} ({count})" for count in itertools.count(1))
        # Files and links are named by the slug, which some different names share.
        made.append(next(each for each in numbered if slug(each) not in taken))
        taken.add(slug(made[-1]))
    return made


def listed(names: Sequence[str]) -> str:
    """`'a', 'b' and 'c'`."""
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def never_runs(workload: Workload) -> str:
    """A sentence on the given schedules that do not run within the trace, or ""."""
    names = [each.label for each in workload.updates if not runs(each)]
    if not names:
        return ""
    verb = "does" if len(names) == 1 else "do"
    return f" The trace is too short for {listed(names)}, which {verb} not run within it."


def too_long(workload: Workload) -> list[str]:
    """The intervals and schedules for which the trace is too short."""
    return [e.label for e in workload.updates if not (workload.covers(e) and runs(e))]


def runs(updates: Updates) -> bool:
    """Whether an update begins before the trace ends (its last part always counts as one)."""
    return updates.seconds is not None or len(updates) > 1


def slug(name: str) -> str:
    """A name for files: lower-case letters, digits and hyphens; a truncated or empty one gets a few
    digits of its hash, so that two long names remain distinct.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if len(plain) <= _SLUG_MAX and plain:
        return plain
    digits = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return f"{plain[:_SLUG_MAX].strip('-') or 'trace'}-{digits}"
