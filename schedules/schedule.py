"""When a mirror runs: cron lines, intervals, lag targets, windows, blackouts and jitter.

Clock changes (DST): cron lines follow Debian's cron, see `mirrord.schedules.cron`; windows and
blackouts follow the wall clock, see `mirrord.schedules.spans`; intervals are real time and are not
affected. When a window or blackout forbids a nominal time, that of a cron line is dropped; that of
an interval is made up for once, when the window opens.

Jitter belongs to the nominal time: each has exactly one run, and the runs keep their order. It is
shortened where it would move a run out of its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

from mirrord.core.errors import UsageError
from mirrord.core.units import format_duration, parse_duration
from mirrord.schedules.cron import Cron, next_fire_s, parse_cron
from mirrord.schedules.spans import (
    WEEK_MIN,
    Span,
    Week,
    covers,
    first_in,
    intersect,
    invert,
    is_in,
    overlap,
    parse_span,
    week_of,
)
from mirrord.schedules.zones import DAY_S, NS, check_zone

_YEAR_NS = 366 * DAY_S * NS
_PERIOD_MAX_S = 366 * DAY_S
#: Friday 2024-01-05 UTC: usual gaps are measured from here, so that a weekend comes soon.
_REFERENCE_NS = 1_704_412_800 * NS
_MUST_FIRE_NS = 5 * _YEAR_NS
_HORIZON_NS = 30 * _YEAR_NS
#: No system clock reaches a later instant (63 bits of nanoseconds).
_LAST_NS = 1 << 63
_COUNT_MAX = 100


class Next(NamedTuple):
    """A future run: when, and the reason as text."""

    at_ns: int
    why: str


class _Every(NamedTuple):
    text: str
    period_ns: int


class _Nominal(NamedTuple):
    """A time given by the rules, before jitter. held: a delayed one of an interval."""

    at_ns: int
    rule: _Every | Cron
    held: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rules, the earliest of which applies, limited by windows and blackouts.

    lag_s: the target when the rule is a lag target. Such a schedule has no times:
    `mirrord.schedules.lag` plans the runs, and `next_allowed` tells when they are permitted.
    """

    rules: tuple[str, ...]
    zone: str
    jitter_s: float
    windows: tuple[Span, ...]
    blackouts: tuple[Span, ...]
    lag_s: float | None = None
    _parsed: tuple[_Every | Cron, ...] = field(default=(), repr=False)
    _open: Week = field(default=((0, WEEK_MIN),), repr=False)

    def next_after(self, after_ns: int, *, seed: str) -> Next | None:
        """The first run strictly after `after_ns`; None: there is none (or a lag target).

        seed: the mirror's id. It determines the phase of intervals and the jitter, reproducibly.
        """
        if after_ns > _LAST_NS:
            return None
        jitter_ns = round(self.jitter_s * NS)
        best: tuple[int, _Nominal] | None = None
        # A nominal time at least jitter_ns before `after_ns` also has its run before that.
        for nominal in self._nominal_times(after_ns - jitter_ns, seed, self._parsed):
            if best is not None and nominal.at_ns >= best[0]:
                break
            at_ns = nominal.at_ns + self._jitter_ns(nominal.at_ns, seed, jitter_ns)
            if at_ns > after_ns and (best is None or at_ns < best[0]):
                best = at_ns, nominal
                if not jitter_ns:
                    break
        return None if best is None else Next(best[0], self._why(best[0], best[1]))

    def times(self, after_ns: int, count: int, *, seed: str) -> list[Next]:
        """The first `count` runs after `after_ns`, or fewer when there are no more."""
        found: list[Next] = []
        while len(found) < count:
            following = self.next_after(found[-1].at_ns if found else after_ns, seed=seed)
            if following is None:
                break
            found.append(following)
        return found

    @property
    def period_s(self) -> float:
        """The longest usual gap between two runs, without jitter; lag alarms use it."""
        return _period_s(self)

    def allowed(self, at_ns: int) -> bool:
        """Whether windows and blackouts permit a run at `at_ns`."""
        return not self._restricted or is_in(self._open, at_ns, self.zone)

    def next_allowed(self, at_ns: int) -> int:
        """The first instant not before `at_ns` at which a run is permitted."""
        return first_in(self._open, at_ns, self.zone) if self._restricted else at_ns

    @property
    def _restricted(self) -> bool:
        return self._open != ((0, WEEK_MIN),)

    def _nominal_times(
        self, after_ns: int, seed: str, rules: Sequence[_Every | Cron]
    ) -> Iterator[_Nominal]:
        """All nominal times after `after_ns`, in order, each once."""
        coming = [self._nominal_after(rule, after_ns, seed) for rule in rules]
        while first := min((each for each in coming if each), key=lambda n: n.at_ns, default=None):
            yield first
            for place, each in enumerate(coming):
                if each is not None and each.at_ns == first.at_ns:
                    coming[place] = self._nominal_after(rules[place], first.at_ns, seed)

    def _nominal_after(self, rule: _Every | Cron, after_ns: int, seed: str) -> _Nominal | None:
        if isinstance(rule, _Every):
            return self._nominal_interval(rule, after_ns, seed)
        limit_ns, at_ns = after_ns + _HORIZON_NS, after_ns
        while (found := next_fire_s(rule, self.zone, at_ns // NS)) is not None:
            open_ns = self.next_allowed(found * NS)
            if open_ns == found * NS:
                return _Nominal(open_ns, rule, False)
            # Dropped, like all others until then.
            at_ns = open_ns - 1
            if at_ns > limit_ns:
                break
        return None

    def _nominal_interval(self, rule: _Every, after_ns: int, seed: str) -> _Nominal:
        period_ns = rule.period_ns
        phase_ns = _phase_ns(seed, period_ns)
        if not self.allowed(after_ns):
            # If a time of the grid falls into this closed period, a run at its end replaces it.
            open_ns = self.next_allowed(after_ns)
            last_ns = (open_ns - 1 - phase_ns) // period_ns * period_ns + phase_ns
            if self.next_allowed(last_ns) == open_ns:
                return _Nominal(open_ns, rule, True)
        grid_ns = ((after_ns - phase_ns) // period_ns + 1) * period_ns + phase_ns
        at_ns = self.next_allowed(grid_ns)
        return _Nominal(at_ns, rule, at_ns != grid_ns)

    def _jitter_ns(self, nominal_ns: int, seed: str, jitter_ns: int) -> int:
        if not jitter_ns:
            return 0
        if self._restricted:
            closed_ns = first_in(invert(self._open), nominal_ns, self.zone)
            jitter_ns = min(jitter_ns, closed_ns - nominal_ns)
        return _hash(f"{seed}\0{nominal_ns}") * jitter_ns >> 64

    def _why(self, at_ns: int, nominal: _Nominal) -> str:
        why = _rule_text(nominal.rule, self.zone)
        if nominal.held:
            why += f"; {self._held(nominal.at_ns)}"
        if at_ns > nominal.at_ns:
            why += f", {format_duration((at_ns - nominal.at_ns) / NS)} of jitter"
        return why

    def _held(self, open_ns: int) -> str:
        """What delayed a run until `open_ns`."""
        for span in self.blackouts:
            if covers(span, open_ns - 1, self.zone):
                return f"held until the blackout {span} ends"
        opened = [str(span) for span in self.windows if covers(span, open_ns, self.zone)]
        return f"held until the window {opened[0]} opens" if opened else "held until it is allowed"


def parse_schedule(
    rules: str | Sequence[str],
    *,
    zone: str = "UTC",
    jitter: str = "",
    windows: Sequence[str] = (),
    blackouts: Sequence[str] = (),
) -> Schedule:
    """The schedule for rules as in docs/schedules.md; `UsageError` when invalid.

    rules: cron lines, `every 15m`, or `lag 5m` alone; of several rules the earliest time applies.
    """
    texts = tuple(" ".join(rule.split()) for rule in ([rules] if isinstance(rules, str) else rules))
    if not texts:
        raise UsageError(
            "the schedule has no rule", hint="Write for example 'every 15m' or '@daily'."
        )
    check_zone(zone)
    parsed = [_parse_rule(text) for text in texts]
    lags = [rule for rule in parsed if isinstance(rule, float)]
    if lags and len(parsed) > 1:
        raise UsageError(
            "a lag target cannot be combined with other rules",
            why=f"the rules are: {', '.join(texts)}",
            hint="Remove the lag target or the other rules: a lag target decides when to run.",
        )
    window_spans, blackout_spans, open_week = _parse_spans(windows, blackouts)
    schedule = Schedule(
        texts,
        zone,
        parse_duration(jitter) if jitter.strip() else 0.0,
        window_spans,
        blackout_spans,
        lags[0] if lags else None,
        tuple(rule for rule in parsed if not isinstance(rule, float)),
        open_week,
    )
    _check_jitter(schedule, jitter)
    _check_fires(schedule)
    return schedule


def missed(schedule: Schedule, last_ns: int, now_ns: int, *, seed: str) -> Next | None:
    """The run that makes up for all times in (last_ns, now_ns], if there were any.

    It is due now, or when windows next permit it.
    """
    count, at_ns = 0, last_ns
    while count <= _COUNT_MAX:
        following = schedule.next_after(at_ns, seed=seed)
        if following is None or following.at_ns > now_ns:
            break
        count, at_ns = count + 1, following.at_ns
    if not count:
        return None
    number = f"more than {_COUNT_MAX}" if count > _COUNT_MAX else str(count)
    why = f"{number} {'run was' if count == 1 else 'runs were'} missed; one makes up for it"
    open_ns = schedule.next_allowed(now_ns)
    return Next(open_ns, why if open_ns == now_ns else f"{why}; {schedule._held(open_ns)}")


def _parse_rule(text: str) -> _Every | Cron | float:
    """A rule; a lag target is a float (seconds)."""
    word, _, rest = text.partition(" ")
    if not word:
        raise UsageError(
            "a rule of the schedule is empty", hint="Write for example 'every 15m' or '@daily'."
        )
    if word.lower() not in ("every", "lag"):
        return parse_cron(text)
    try:
        length_s = parse_duration(rest)
    except UsageError as error:
        raise UsageError(f"'{text}' is not a schedule", why=str(error), hint=error.hint) from None
    if not 1 <= length_s <= _PERIOD_MAX_S:
        raise UsageError(
            f"'{text}' is out of range",
            hint="Write a duration from 1 s to 366 d, for example 'every 15m' or 'lag 5m'.",
        )
    return length_s if word.lower() == "lag" else _Every(text, round(length_s * NS))


def _parse_spans(
    windows: Sequence[str], blackouts: Sequence[str]
) -> tuple[tuple[Span, ...], tuple[Span, ...], Week]:
    spans = tuple(parse_span(text) for text in windows)
    closed = tuple(parse_span(text) for text in blackouts)
    twice = overlap(spans)
    if twice is not None:
        raise UsageError(
            f"the windows '{twice[0]}' and '{twice[1]}' overlap",
            hint="Write windows that do not overlap, or one that spans both.",
        )
    open_week = week_of(spans) if spans else ((0, WEEK_MIN),)
    open_week = intersect(open_week, invert(week_of(closed)))
    if not open_week:
        raise UsageError(
            "windows and blackouts leave no time for a run",
            hint="Make a window longer or a blackout shorter.",
        )
    return spans, closed, open_week


def _check_jitter(schedule: Schedule, jitter: str) -> None:
    if not schedule.jitter_s:
        return
    if schedule.lag_s is not None:
        raise UsageError(
            "a lag target cannot be combined with a jitter",
            hint="Remove the jitter: such runs are spread anyway.",
        )
    for rule in schedule._parsed:
        if isinstance(rule, _Every):
            shortest_s = rule.period_ns / NS
        else:
            times = _sample(schedule, (rule,))
            shortest_s = min(b - a for a, b in pairwise(times)) / NS if len(times) > 1 else 0
        if shortest_s and schedule.jitter_s > shortest_s:
            raise UsageError(
                f"the jitter '{jitter}' is longer than the shortest period of '{rule.text}'",
                why=f"that is {format_duration(shortest_s)}",
                hint=f"Write a jitter of at most {format_duration(shortest_s)}.",
            )


def _check_fires(schedule: Schedule) -> None:
    for rule in schedule._parsed:
        if isinstance(rule, _Every) or not schedule._restricted:
            continue
        first = schedule._nominal_after(rule, _REFERENCE_NS, "")
        if first is None or first.at_ns > _REFERENCE_NS + _MUST_FIRE_NS:
            raise UsageError(
                f"'{rule.text}' never fires inside its windows",
                why="in five years none of its times is one at which a run is allowed",
                hint="Change the rule, the windows or the blackouts; 'every 1h' runs when a "
                "window opens.",
            )


def _sample(schedule: Schedule, rules: tuple[_Every | Cron, ...]) -> list[int]:
    """At least 50 times of the rules and at least those of a week, up to a limit."""
    found: list[int] = []
    for nominal in schedule._nominal_times(_REFERENCE_NS, "", rules):
        found.append(nominal.at_ns)
        span_ns = nominal.at_ns - found[0]
        if len(found) >= 50 and (span_ns > 8 * DAY_S * NS or len(found) >= 4000):
            break
        if span_ns > 10 * _YEAR_NS and len(found) > 1:
            break
    return found


@lru_cache(maxsize=4096)
def _period_s(schedule: Schedule) -> float:
    if schedule.lag_s is not None:
        return schedule.lag_s
    closed_s = 60 * _longest(invert(schedule._open))
    gaps = [r.period_ns / NS + closed_s for r in schedule._parsed if isinstance(r, _Every)]
    crons = tuple(rule for rule in schedule._parsed if isinstance(rule, Cron))
    times = _sample(schedule, crons)
    if len(times) > 1:
        gaps.append(max(b - a for a, b in pairwise(times)) / NS)
    return min(gaps, default=float(_HORIZON_NS // NS))


def _longest(week: Week) -> int:
    """The longest period in minutes; one that spans the end of the week counts as one."""
    lengths = [end - start for start, end in week]
    if len(week) > 1 and week[0][0] == 0 and week[-1][1] == WEEK_MIN:
        lengths.append(lengths[0] + lengths[-1])
    return max(lengths, default=0)


@lru_cache(maxsize=4096)
def _rule_text(rule: _Every | Cron, zone: str) -> str:
    if isinstance(rule, Cron):
        return f"cron '{rule.text}' in {zone}"
    length = format_duration(rule.period_ns / NS).replace(".0 s", " s")
    exact = round(parse_duration(length) * NS) == rule.period_ns
    return f"every {length}" if exact else rule.text


@lru_cache(maxsize=1 << 16)
def _phase_ns(seed: str, period_ns: int) -> int:
    return _hash(seed) * period_ns >> 64


def _hash(text: str) -> int:
    """64 bits that are stable across processes and versions."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
