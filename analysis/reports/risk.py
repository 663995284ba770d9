"""The report on risk: the link needed, the age of the copy, the data lost at a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mirrord.analysis import risk
from mirrord.analysis.assess import Assessed, Terms, assess_all
from mirrord.analysis.grids import NS
from mirrord.analysis.links import RATE_MIN
from mirrord.analysis.numbers import Workload
from mirrord.analysis.reports import scheduled
from mirrord.analysis.reports.common import (
    MBIT,
    MIB,
    TimeAxis,
    age_axis,
    interval_axis,
    interval_words,
    log_axis,
    name_of,
    need_words,
    never_runs,
    nice_seconds,
    rate_words,
    runs,
    slug,
    warnings,
)
from mirrord.analysis.reports.documents import WINDOWS_S, of_risk
from mirrord.analysis.reports.plots import (
    Axis,
    Cell,
    Column,
    Level,
    Line,
    Plot,
    Report,
    Section,
    Table,
)
from mirrord.core.units import format_size

#: Number of points of a plot over time; its table has every tenth.
_POINTS = 480
_TABLE_EVERY = 10
_OVER_TIME = (60.0, 900.0, 3600.0, 21600.0, 86400.0)
_OVER_TIME_MAX = 3
_LINES_MAX = 8
#: With more traces a second line for each would cover the first ones.
_PAIRS_MAX = 6


def report(workloads: Sequence[Workload], terms: Terms) -> Report:
    """The report on these traces."""
    found = {each.name: assess_all(each, terms) for each in workloads}
    sections = [_section(each, found[each.name], terms) for each in workloads]
    if (by_schedule := scheduled.section(workloads, found, terms)) is not None:
        sections.insert(0, by_schedule)
    if _seconds(found):
        plots = (
            _link_needed(workloads, found, terms),
            _lost(workloads, found),
            _space(workloads, found, terms),
        )
        sections.insert(0, Section("By update interval", (), plots))
    return Report(
        "risk",
        "What a mirror would need, and what a failure would lose",
        tuple(line for each in workloads for line in conclusions(each, found[each.name], terms)),
        tuple(sections),
        method(terms),
        of_risk(workloads, found, terms),
        warnings(workloads),
    )


def method(terms: Terms) -> tuple[str, ...]:
    """How it was computed, in words."""
    link = (
        f"Each interval gets the slowest link, at least {format_size(RATE_MIN)}/s, on which all "
        "its updates end before the next one begins; on a faster link the copy is more recent. "
        "(Set the available link with --link.)"
        if terms.link is None
        else f"The link carries {terms.link}; each update takes {terms.overhead_s:g} s in addition."
    )
    return (
        "An update's snapshot is taken at the end of its interval; its transfer begins then, or "
        f"when the previous one has ended; the copy shows it when it has arrived. {link}",
        "The lag is the age of the copy. A failure loses the writes made since the snapshot that "
        "the copy shows. Expected: at a random moment of the trace; worst: at its worst moment. "
        "At the start of a trace its copy is assumed to be up to date.",
        "The link needed is determined by the update with the least time for its bytes. A "
        "synchronous mirror needs the peak rate of the writes; the rate over 60 s is enough if "
        "writers may wait that long.",
        "Snapshots hold the old version of each block written since: an upper bound, as a trace "
        "does not tell which blocks were empty before. The source keeps "
        f"{terms.keep_source} reference snapshots, the destination {terms.keep_destination}.",
    )


def conclusions(workload: Workload, found: Sequence[Assessed], terms: Terms) -> list[str]:
    """The conclusions on a trace, in words."""
    usable = [each for each in found if runs(each.updates)]
    if not usable:
        return [
            f"{workload.name}: the trace is too short for every interval.{never_runs(workload)}"
        ]
    axis = TimeAxis(workload, terms.zone)
    peak = risk.peak_rate(workload.writes, WINDOWS_S[0])
    base = next((each for each in found if each.updates.seconds == 900.0), (_x(found) or usable)[0])
    text = (
        f"{workload.name}: a synchronous mirror needs {need_words(peak)} at its peak, updates "
        f"{_by(base)} need {need_words(base.need.rate)}. With these, {_outcome(base, axis)}."
    )
    late = [each for each in found if len(each.late_ns)]
    fixed = _x(late)
    if fixed:
        below = " and below" if len(fixed) > 1 else ""
        text += (
            f" At {name_of(fixed[-1].updates)}{below} the link saturates, {_late(fixed[-1], axis)}."
        )
    for each in usable:
        if each.updates.seconds is None:
            text += _schedule(each, axis, reported=each is base)
    text += never_runs(workload)
    if terms.link is not None and not late:
        text += " The link carries every interval: no update is late."
    return [text]


def _by(each: Assessed) -> str:
    updates = each.updates
    return f"with '{updates.label}'" if updates.seconds is None else f"every {name_of(updates)}"


def _outcome(each: Assessed, axis: TimeAxis) -> str:
    age = interval_words(round(each.lag.worst_s))
    old = f"at least {age} old at its worst" if each.lag.at_least else f"at most {age} old"
    least = "at least " if each.loss.at_least else ""
    return (
        f"the copy is {old}, and a failure loses {format_size(each.loss.expected)} on average, "
        f"{least}{format_size(each.loss.worst)} at worst ({axis.words(each.loss.worst_at_ns)})"
    )


def _schedule(each: Assessed, axis: TimeAxis, *, reported: bool) -> str:
    """A sentence on a given schedule. reported: what it needs and loses is already reported."""
    text = ""
    if not reported:
        rate = need_words(each.need.rate)
        text += f" With '{each.updates.label}' a link of {rate} is needed, {_outcome(each, axis)}."
    if len(each.late_ns):
        text += f" With '{each.updates.label}' the link saturates, {_late(each, axis)}."
    return text


def _late(each: Assessed, axis: TimeAxis) -> str:
    count, number = len(each.late_ns), len(each.updates)
    verb = "has" if count == 1 else "have"
    return (
        f"first at {axis.words(int(each.late_ns[0]))}: {count} of {number} updates {verb} not "
        "finished when the next is due"
    )


def _x(found: Sequence[Assessed]) -> list[Assessed]:
    return sorted(
        (each for each in found if each.updates.seconds), key=lambda e: e.updates.seconds or 0
    )


def _line(
    name: str, found: Sequence[Assessed], y: Sequence[float], tone: int, dash: int = 0
) -> Line:
    fixed = _x(found)
    return Line(
        name,
        [(each.updates.seconds or 0) / 60 for each in fixed],
        y,
        tone,
        dash=dash,
        labels=tuple(f"every {name_of(each.updates)}" for each in fixed),
    )


def _pairs(
    workloads: Sequence[Workload],
    found: dict[str, list[Assessed]],
    values: Mapping[str, Callable[[Assessed], float]],
    least: float,
) -> tuple[Line, ...]:
    """Lines of two values in MiB for each trace: solid, and dashed, which many traces do not have.
    least: what is drawn for nothing, on a logarithmic axis.
    """
    drawn = list(values.items())[: 2 if len(workloads) <= _PAIRS_MAX else 1]
    return tuple(
        _line(
            f"{each.name}, {name}",
            found[each.name],
            [max(value(e) / MIB, least) for e in _x(found[each.name])],
            number,
            dash=dash,
        )
        for number, each in enumerate(workloads)
        for dash, (name, value) in enumerate(drawn)
    )


def _seconds(found: dict[str, list[Assessed]]) -> list[float]:
    return sorted({e.updates.seconds for each in found.values() for e in each if e.updates.seconds})


def _link_needed(
    workloads: Sequence[Workload], found: dict[str, list[Assessed]], terms: Terms
) -> Plot:
    lines: list[Line] = []
    rows: list[tuple[Cell, ...]] = []
    for number, each in enumerate(workloads):
        needs = [max(e.need.rate / MBIT, 1e-6) for e in _x(found[each.name])]
        lines.append(_line(each.name, found[each.name], needs, number))
        for window_s in WINDOWS_S:
            rate = risk.peak_rate(each.writes, window_s) / MBIT
            rows.append((each.name, f"synchronous, peak {window_s:g} s", rate, None, None, None))
        for lag_s in terms.lags_s:
            rate = each.writes.links[lag_s] / MBIT
            rows.append((each.name, f"semi-sync, at most {lag_s:g} s", rate, None, None, None))
        for e in found[each.name]:
            sizes = e.updates.sizes(terms.kind)
            late = len(e.late_ns) if terms.link is not None else None
            rows.append(
                (
                    each.name,
                    e.updates.words,
                    e.need.rate / MBIT,
                    e.sent_bytes / MIB,
                    int(sizes.max(initial=0)) / MIB,
                    late,
                )
            )
    columns = (
        Column("trace"), Column("mode"), Column("link needed", "Mbit/s", 3),
        Column("sent in all", "MiB"), Column("largest update", "MiB"), Column("late updates"),
    )  # fmt: skip
    given = terms.least
    levels = (Level(given / MBIT, "the given link"),) if given < 1e12 else ()
    drawn = [y for line in lines for y in line.y] + [each.y for each in levels]
    return Plot(
        "link-needed",
        "Link needed so that each update ends before the next",
        "The longer the interval, the more rewrites it absorbs and the more bursts are averaged "
        "out. Synchronous and semi-synchronous mirrors are in the table.",
        interval_axis(_seconds(found)),
        log_axis("link needed (Mbit/s)", drawn),
        Table(columns, tuple(rows)),
        tuple(lines),
        levels=levels,
    )


def _lost(workloads: Sequence[Workload], found: dict[str, list[Assessed]]) -> Plot:
    lines = _pairs(
        workloads,
        found,
        {"expected": lambda e: e.loss.expected, "worst": lambda e: e.loss.worst},
        1e-6,
    )
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            name_of(e.updates),
            e.loss.expected / MIB,
            e.loss.worst / MIB,
            e.lag.mean_s / 60,
            e.lag.median_s / 60,
            e.lag.p95_s / 60,
            e.lag.worst_s / 60,
        )
        for each in workloads
        for e in found[each.name]
    ]
    columns = (
        Column("trace"), Column("interval"), Column("expected loss", "MiB", 2),
        Column("worst loss", "MiB", 2), Column("lag: mean", "min", 2), Column("median", "min", 2),
        Column("95 % of the time below", "min", 2), Column("worst", "min", 2),
    )  # fmt: skip
    return Plot(
        "data-at-risk",
        "Data lost at a failure, by update interval",
        "Solid: at a random moment; dashed: at the worst moment of the trace."
        if len(workloads) <= _PAIRS_MAX
        else "At a random moment; the worst moment is in the table.",
        interval_axis(_seconds(found)),
        log_axis("lost at a failure (MiB)", [y for line in lines for y in line.y]),
        Table(columns, tuple(rows)),
        lines,
    )


def _space(workloads: Sequence[Workload], found: dict[str, list[Assessed]], terms: Terms) -> Plot:
    lines = _pairs(
        workloads,
        found,
        {"source": lambda e: e.space_source, "destination": lambda e: e.space_destination},
        1e-3,
    )
    rows: list[tuple[Cell, ...]] = [
        (each.name, name_of(e.updates), e.space_source / MIB, e.space_destination / MIB)
        for each in workloads
        for e in found[each.name]
    ]
    columns = (
        Column("trace"), Column("interval"), Column(f"source, {terms.keep_source} kept", "MiB"),
        Column(f"destination, {terms.keep_destination} kept", "MiB"),
    )  # fmt: skip
    return Plot(
        "snapshot-space",
        "Maximum space held by reference snapshots",
        (
            f"Solid: {terms.keep_source} snapshots at the source; dashed: "
            f"{terms.keep_destination} at the destination"
            if len(workloads) <= _PAIRS_MAX
            else f"{terms.keep_source} snapshots at the source"
        )
        + ". An upper bound: blocks that were empty before hold nothing.",
        interval_axis(_seconds(found)),
        log_axis("held by snapshots (MiB)", [y for line in lines for y in line.y]),
        Table(columns, tuple(rows)),
        lines,
    )


def _section(workload: Workload, found: list[Assessed], terms: Terms) -> Section:
    span = interval_words(round(workload.span_s))
    text = (
        f"{format_size(workload.bytes_written)} were written in {span}: "
        f"{rate_words(workload.written_rate)} on average, "
        f"{rate_words(risk.peak_rate(workload.writes, 1.0))} in the busiest second.",
    )
    plots = [_writes(workload, terms)]
    if _x(found):
        plots.append(_lag(workload, found))
    if found:
        plots.append(_over_time(workload, found, terms))
    return Section(workload.name, text, tuple(plots))


def _writes(workload: Workload, terms: Terms) -> Plot:
    series, axis = workload.writes, TimeAxis(workload, terms.zone)
    point_s = nice_seconds(workload.span_s / _POINTS)
    per_point = max(1, round(point_s * NS / series.bin_ns))
    padded = np.pad(series.bytes, (0, -len(series.bytes) % per_point)).reshape(-1, per_point)
    point_s = per_point * series.bin_ns / NS
    mean = padded.sum(axis=1) / point_s / MBIT
    peak = padded.max(axis=1) / (series.bin_ns / NS) / MBIT
    at_ns = series.start_ns + np.arange(len(mean), dtype=np.int64) * per_point * series.bin_ns
    places = axis.places(at_ns)
    # A step is drawn up to the next point: the last one needs an end as well.
    ends = axis.places(np.append(at_ns, at_ns[-1] + per_point * series.bin_ns))
    step = max(1, len(mean) // (_POINTS // _TABLE_EVERY))
    rows = tuple(
        (places[at], float(mean[at : at + step].mean()), float(peak[at : at + step].max()))
        for at in range(0, len(mean), step)
    )
    busiest = int(mean.argmax())
    columns = (
        Column(axis.axis.title),
        Column("mean", "Mbit/s", 3),
        Column("busiest second", "Mbit/s", 3),
    )
    levels = (
        (Level(terms.least / MBIT, "the given link"),)
        if terms.least / MBIT < 2 * float(mean.max())
        else ()
    )
    high = 1.08 * max([float(mean.max()), *(each.y for each in levels)])
    return Plot(
        f"{slug(workload.name)}-writes",
        f"{workload.name}: writes over time",
        f"Mean per {interval_words(point_s)}. Highest: {axis.words(int(at_ns[busiest]))}, with "
        f"{rate_words(float(mean[busiest]) * MBIT)}; the busiest second reaches "
        f"{rate_words(float(peak.max()) * MBIT)}.",
        axis.axis,
        Axis("written (Mbit/s)", low=0, high=high),
        Table(columns, rows),
        (
            Line(
                "written",
                ends,
                [*mean.tolist(), float(mean[-1])],
                0,
                marker=False,
                steps=True,
                filled=True,
            ),
        ),
        levels=levels,
    )


def _lag(workload: Workload, found: Sequence[Assessed]) -> Plot:
    fixed = _x(found)
    lines = tuple(
        _line(words, fixed, [max(age_s / 60, 1e-4) for age_s in ages_s], tone)
        for words, ages_s, tone in (
            ("worst", [each.lag.worst_s for each in fixed], 1),
            ("95 % of the time below", [each.lag.p95_s for each in fixed], 3),
            ("median", [each.lag.median_s for each in fixed], 0),
        )
    )
    rows: list[tuple[Cell, ...]] = []
    for each in found:
        parts = np.interp([0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99], each.lag.shares, each.lag.ages_s)
        minutes = (float(part) / 60 for part in parts)
        rows.append((name_of(each.updates), *minutes, each.lag.worst_s / 60, each.lag.mean_s / 60))
    columns = (
        Column("interval"), *(Column(f"{part} % of the time below", "min", 2)
                              for part in (10, 25, 50, 75, 90, 95, 99)),
        Column("worst", "min", 2), Column("mean", "min", 2),
    )  # fmt: skip
    return Plot(
        f"{slug(workload.name)}-lag",
        f"{workload.name}: age of the copy",
        "The age of the copy is the time since the last snapshot that has arrived. It is greatest "
        "just before an update ends.",
        interval_axis([each.updates.seconds or 60 for each in fixed]),
        age_axis("age of the copy", [60 * y for line in lines for y in line.y]),
        Table(columns, tuple(rows)),
        lines,
    )


def _over_time(workload: Workload, found: Sequence[Assessed], terms: Terms) -> Plot:
    axis = TimeAxis(workload, terms.zone)
    account = risk.Account(workload.writes)
    fixed = _x(found)
    usual = [each for each in fixed if each.updates.seconds in _OVER_TIME] or fixed
    # The longest intervals differ most visibly; schedules are shown because they are given.
    shown = [*usual[-_OVER_TIME_MAX:], *(e for e in found if e.updates.seconds is None)]
    shown = shown[:_LINES_MAX]
    lines, columns, courses = [], [Column(axis.axis.title)], []
    places: list[str] | list[float] = []
    for number, each in enumerate(shown):
        at_ns, lost = account.course(each.shown, _POINTS)
        places = axis.places(at_ns)
        words = each.updates.words
        lines.append(Line(words, places, (lost / MIB).tolist(), number, marker=False))
        columns.append(Column(words, "MiB", 2))
        courses.append(lost / MIB)
    rows = tuple(
        (places[at], *(float(each[at - _TABLE_EVERY + 1 : at + 1].max()) for each in courses))
        for at in range(_TABLE_EVERY - 1, _POINTS, _TABLE_EVERY)
    )
    worst = max(shown, key=lambda each: each.loss.worst)
    return Plot(
        f"{slug(workload.name)}-at-risk",
        f"{workload.name}: data lost at a failure, over time",
        f"Written since the snapshot that the copy shows. The maximum is "
        f"{format_size(worst.loss.worst)}, {axis.words(worst.loss.worst_at_ns)}, with updates "
        f"{_by(worst)}.",
        axis.axis,
        Axis("lost at a failure (MiB)"),
        Table(tuple(columns), rows),
        tuple(lines),
    )
