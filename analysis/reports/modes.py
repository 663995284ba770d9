"""The report on live modes: time in each, lag, clients' waits, the link for synchronous mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mirrord.analysis.modegrid import Plan, Simulated
from mirrord.analysis.modes import MODES, PERIOD_S, Outcome
from mirrord.analysis.reports.common import (
    MBIT,
    MIB,
    TimeAxis,
    log_axis,
    need_words,
    rate_words,
    slug,
)
from mirrord.analysis.reports.plots import (
    Axis,
    Cell,
    Column,
    Line,
    Plot,
    Range,
    Reference,
    Report,
    Section,
    Table,
)
from mirrord.core.live import Mode
from mirrord.core.units import format_duration, format_size

#: *Dynamic synchronous/asynchronous replication*, section 4.6: what the text says of Figure 11 (a
#: link of 1 Gbit/s, 25 miles). The text gives no numbers for Figure 12 (2 Gbit/s).
_FIGURE_11 = Reference(
    "paper (20 customers, 1 Gbit/s, 25 miles)",
    (
        Range(4.0, 90.0, 100.0, "at 4 ms 15 of 20 customers are over 90 %"),
        Range(7.0, 99.9, 100.0, "at 7 ms about half are over 99.9 %"),
    ),
)
#: VMstore (FAST 2018), table of synchronous writes of 8 KiB: round trip in ms, MiB/s.
_VMSTORE = ((0.1, 205), (1.0, 167), (5.0, 80), (10.0, 50))
_WRITE = 8 << 10
_ROUND_TRIPS_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TABLE_EVERY = 10


def report(found: Sequence[Simulated], plan: Plan) -> Report:
    """The report on these traces."""
    sections = [
        Section("Synchronous mode", (), (_in_sync(found, plan), _by_distance(plan))),
        *(_section(each, plan) for each in found),
    ]
    return Report(
        "modes",
        "Modes of a live mirror",
        tuple(line for each in found for line in _conclusions(each, plan)),
        tuple(sections),
        _method(),
        _document(found, plan),
        tuple(line for each in found for line in _warnings(each)),
        assumptions=(_assumed(plan),),
    )


def _assumed(plan: Plan) -> str:
    fill = "what the link sends in the maximum latency"
    if plan.fill_bytes is not None:
        fill = format_size(plan.fill_bytes)
    keys = plan.keys[0]
    text = (
        f"{_ms(plan.round_trip_s)} round trip, {_ms(plan.storage_s)} for a write on the storage of "
        f"either end, decisions every {_ms(PERIOD_S)}; in flight for "
        f"pull-ahead: {fill}"
    )
    if plan.policy == "dynamic":
        rpo = "any" if keys.max_rpo_bytes is None else format_size(keys.max_rpo_bytes)
        text += f"; maximum lag: {rpo}, {format_duration(keys.hold_down_s)} out of sync at least"
    if plan.sync_hours:
        text += f"; always synchronous {', '.join(map(str, plan.sync_hours))}"
    return text


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _percent(share: float) -> str:
    """A share of the time that is not rounded to all of it."""
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    return f"{min(max(share * 100, 0.01), 99.99):.4g} %"


def _conclusions(each: Simulated, plan: Plan) -> Iterator[str]:
    if each.span_s < PERIOD_S:
        yield f"{each.name}: the trace lasts only a moment: too short to judge modes."
        return
    for place, outcome in enumerate(each.outcomes):
        keys = plan.keys[place % len(plan.keys)]
        text = (
            f"{each.name}, {rate_words(outcome.scenario.link.rate)}, {_ms(keys.max_lat_s)}: "
            f"synchronous {_percent(outcome.share(Mode.SYNC))} of the time"
        )
        if outcome.peak_bytes:
            least = "at least " if outcome.at_least else "at most "
            text += (
                f", otherwise {least}{format_size(outcome.peak_bytes)} "
                f"({format_duration(outcome.peak_s)}) behind"
            )
        text += f"; {_changes(outcome)}"
        if each.compared:
            text += f", with pull-ahead {_changes(each.compared[place], short=True)}"
        yield f"{text}."
    for keys, rate in zip(plan.keys, each.needed, strict=False):
        wanted = f"{plan.in_sync * 100:.4g} % of the time in sync with {_ms(keys.max_lat_s)}"
        if rate is None:
            yield f"{each.name}: no link is enough for {wanted}."
        else:
            yield f"{each.name}: {wanted} needs a link of {need_words(rate)}."


def _changes(outcome: Outcome, *, short: bool = False) -> str:
    count = f"{outcome.changes_per_day:,.3g}" if outcome.changes else "no"
    if outcome.changes_per_day >= 1000:
        count = f"{outcome.changes_per_day:,.0f}"
    return count if short else f"{count} changes of the mode a day"


def _warnings(each: Simulated) -> Iterator[str]:
    for outcome in each.outcomes:
        if outcome.at_least:
            yield (
                f"{each.name}: with {outcome.scenario.name} on "
                f"{rate_words(outcome.scenario.link.rate)} the lag was greatest only after the end "
                "of the trace."
            )


def _rows(each: Simulated) -> Iterator[tuple[Outcome, tuple[Cell, ...]]]:
    for outcome in (*each.outcomes, *each.compared):
        yield (
            outcome,
            (
                outcome.scenario.name,
                outcome.scenario.link.rate / MBIT,
                *(100 * outcome.share(mode) for mode in MODES),
                outcome.changes_per_day,
                outcome.peak_bytes / MIB,
                outcome.peak_s,
            ),
        )


_COLUMNS = (
    Column("policy"), Column("link", "Mbit/s", 0), Column("sync", "%", 2),
    Column("semi-sync", "%", 2), Column("async", "%", 2), Column("changes", "/day", 1),
    Column("lag", "MiB", 1), Column("lag", "s", 2),
)  # fmt: skip
_MORE = (
    Column("expected loss", "MiB", 4), Column("mean age", "s", 4),
    Column("exposure factor", "", 2), Column("late writes"), Column("late", "%", 3),
    Column("mean latency", "ms", 3), Column("slowest", "ms", 1), Column("sent", "MiB", 1),
)  # fmt: skip


def _section(each: Simulated, plan: Plan) -> Section:
    short = tuple(cells for _, cells in _rows(each))
    rows = tuple(
        (
            *cells,
            outcome.mean_bytes / MIB,
            outcome.mean_s,
            None if math.isinf(outcome.exposure_factor) else outcome.exposure_factor,
            outcome.late,
            100 * outcome.late / outcome.writes,
            outcome.mean_latency_s * 1000,
            outcome.slowest_s * 1000,
            outcome.sent / MIB,
        )
        for outcome, cells in _rows(each)
    )
    key = slug(each.name)
    return Section(
        each.name,
        (),
        (_lag(each, plan),),
        Table((*_COLUMNS, *_MORE), rows),
        f"{key}-modes",
        Table(_COLUMNS, short),
    )


def _in_sync(found: Sequence[Simulated], plan: Plan) -> Plot:
    lines: list[Line] = []
    rows: list[tuple[Cell, ...]] = []
    ms = [keys.max_lat_s * 1000 for keys in plan.keys]
    for number, each in enumerate(found):
        for dash, rate in enumerate(plan.rates):
            part = each.outcomes[dash * len(ms) : (dash + 1) * len(ms)]
            shares = [100 * outcome.share(Mode.SYNC) for outcome in part]
            name = f"{each.name}, {rate_words(rate)}"
            lines.append(Line(name, ms, shares, number, dash=dash % 4))
            rows += [(each.name, rate / MBIT, *pair) for pair in zip(ms, shares, strict=True)]
    columns = (
        Column("trace"), Column("link", "Mbit/s", 3), Column("maximum latency", "ms", 1),
        Column("in synchronous mode", "%", 3),
    )  # fmt: skip
    return Plot(
        "in-sync",
        "Time in synchronous mode, by the maximum latency",
        f"With the policy '{plan.policy}'. In grey what the paper's text says of its Figure 11.",
        Axis("maximum latency (ms)", low=0, high=1.15 * max(*ms, 7.0)),
        Axis("in synchronous mode (% of the time)", low=0, high=104),
        Table(columns, tuple(rows)),
        tuple(lines),
        reference=_FIGURE_11,
    )


def _by_distance(plan: Plan) -> Plot:
    """What synchronous mode costs by distance; one write at a time."""
    base = _PUBLISHED[0.1]
    latency = {
        ms: plan.storage_s * 1000 + ms + _WRITE / plan.rates[0] * 1000 for ms in _ROUND_TRIPS_MS
    }
    least = latency[_ROUND_TRIPS_MS[0]]
    shares = [100 * least / latency[ms] for ms in _ROUND_TRIPS_MS]
    rows: list[tuple[Cell, ...]] = []
    for ms, share in zip(_ROUND_TRIPS_MS, shares, strict=True):
        published = _PUBLISHED.get(ms)
        rows.append(
            (
                ms,
                latency[ms],
                1000 / latency[ms],
                share,
                published,
                None if published is None else 100 * published / base,
            )
        )
    columns = (
        Column("round trip", "ms", 1), Column("write of 8 KiB", "ms", 2),
        Column("writes per second and client", "", 0), Column("throughput", "%", 0),
        Column("VMstore", "MiB/s", 0), Column("VMstore", "%", 0),
    )  # fmt: skip
    return Plot(
        "sync-by-distance",
        "Throughput of synchronous writes of 8 KiB, by distance",
        f"Of a client that waits for each write, on a link of {rate_words(plan.rates[0])}, "
        "relative to a round trip of 0.1 ms. In grey VMstore's table (FAST 2018), whose "
        "own work took 3 to 4 ms for each write: the faster the storage, the more distance costs.",
        log_axis("round trip (ms)", _ROUND_TRIPS_MS),
        Axis("throughput (%)", low=0, high=105),
        Table(columns, tuple(rows)),
        (Line("this link", _ROUND_TRIPS_MS, shares, 0),),
        reference=Reference(
            "VMstore (FAST 2018)",
            points=tuple((ms, 100 * rate / base) for ms, rate in _PUBLISHED.items()),
        ),
    )


_PUBLISHED = {ms: float(rate) for ms, rate in _VMSTORE}


def _lag(each: Simulated, plan: Plan) -> Plot:
    axis = TimeAxis(each, plan.zone)
    lines: list[Line] = []
    columns = [Column(axis.axis.title)]
    shown = [*each.outcomes[: len(plan.keys)], *each.compared[:1]]
    places: list[str] | list[float] = []
    courses: list[list[float]] = []
    for number, outcome in enumerate(shown):
        course = outcome.course
        places = axis.places(np.array(course.at_ns, np.int64))
        mib = [bytes_ / MIB for bytes_ in course.lag_bytes]
        words = outcome.scenario.name
        dash = int(number >= len(plan.keys))
        lines.append(Line(words, places, mib, number, marker=False, dash=dash))
        columns.append(Column(words, "MiB", 2))
        courses.append(mib)
    rows = tuple(
        (places[at], *(max(mib[max(0, at - _TABLE_EVERY + 1) : at + 1]) for mib in courses))
        for at in range(min(_TABLE_EVERY, len(places)) - 1, len(places), _TABLE_EVERY)
    )
    return Plot(
        f"{slug(each.name)}-lag",
        f"{each.name}: data lost at a failure, over time",
        f"Answered writes that the replica does not show, on {rate_words(plan.rates[0])}; the "
        "greatest in each part of the trace.",
        axis.axis,
        Axis("lost at a failure (MiB)"),
        Table(tuple(columns), rows),
        tuple(lines),
    )


def _method() -> tuple[str, ...]:
    return (
        "Each write of the trace arrives at its recorded time, whatever the earlier ones waited "
        "for. The link sends writes in order at its rate; the replica acknowledges a write one "
        "round trip and its storage's latency after the last byte. A write is answered when local "
        "storage has it and the mode admits it (docs/modes.md).",
        f"The policy decides every {_ms(PERIOD_S)}. A write is late when it is answered after "
        "more than the maximum latency.",
        "Lag: answered writes that the replica does not show. While changes are only tracked, it "
        "shows the state before. Expected loss is the mean over time; the exposure factor is the "
        "time of the trace divided by the time out of synchronous mode.",
    )


def _document(found: Sequence[Simulated], plan: Plan) -> dict[str, object]:
    return {
        "policy": plan.policy,
        "round_trip_s": plan.round_trip_s,
        "storage_s": plan.storage_s,
        "traces": [
            {
                "name": each.name,
                "span_s": each.span_s,
                "scenarios": [_scenario(one) for one in (*each.outcomes, *each.compared)],
                "needed": [
                    {"max_lat_s": keys.max_lat_s, "in_sync": plan.in_sync, "link": rate}
                    for keys, rate in zip(plan.keys, each.needed, strict=False)
                ],
            }
            for each in found
        ],
    }


def _scenario(one: Outcome) -> dict[str, object]:
    factor = one.exposure_factor
    return {
        "name": one.scenario.name,
        "policy": one.scenario.name.split(",")[0],
        "max_lat_s": one.scenario.late_s,
        "link": one.scenario.link.rate,
        "share": {mode.value: one.share(mode) for mode in MODES},
        "changes": one.changes,
        "changes_per_day": one.changes_per_day,
        "left_sync": one.left_sync,
        "lag_bytes": {"peak": one.peak_bytes, "mean": one.mean_bytes},
        "lag_s": {"peak": one.peak_s, "mean": one.mean_s},
        "at_least": one.at_least,
        "exposed_s": one.exposed_s,
        "exposure_factor": None if math.isinf(factor) else factor,
        "writes": one.writes,
        "late_writes": one.late,
        "latency_s": {"mean": one.mean_latency_s, "worst": one.slowest_s},
        "sent_bytes": one.sent,
        "decisions": one.decisions,
    }
