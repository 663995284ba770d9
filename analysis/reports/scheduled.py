"""The risk of the given schedules, which have no place on an axis of intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirrord.analysis.assess import Assessed, Terms
from mirrord.analysis.numbers import Workload
from mirrord.analysis.reports.common import MBIT, MIB, runs
from mirrord.analysis.reports.plots import Axis, Bars, Cell, Column, Plot, Section, Table

_COLUMNS = (
    Column("trace"), Column("schedule"), Column("updates"), Column("expected loss", "MiB", 2),
    Column("worst loss", "MiB", 2), Column("link needed", "Mbit/s", 3),
    Column("sent in all", "MiB"), Column("lag: median", "min", 1), Column("worst", "min", 1),
    Column("late updates"),
)  # fmt: skip


def section(
    workloads: Sequence[Workload], found: Mapping[str, Sequence[Assessed]], terms: Terms
) -> Section | None:
    """A section with the loss at a failure by schedule; None without schedules."""
    by_trace = {
        each.name: {e.updates.label: e for e in found[each.name] if e.updates.seconds is None}
        for each in workloads
    }
    labels = list(dict.fromkeys(label for each in by_trace.values() for label in each))
    if not labels:
        return None
    rows = [_row(name, e, terms) for name, each in by_trace.items() for e in each.values()]
    bars = tuple(
        Bars(name, [_expected(each.get(label)) for label in labels], number)
        for number, (name, each) in enumerate(by_trace.items())
    )
    plot = Plot(
        "schedules-at-risk",
        "Data lost at a failure, by schedule",
        "At a random moment; the worst moment, the lag and the link needed are in the table. A "
        "trace in which a schedule does not run has no bar.",
        Axis("schedule", "names", names=tuple(labels)),
        Axis("expected loss at a failure (MiB)"),
        Table(_COLUMNS, tuple(rows)),
        bars=bars,
    )
    return Section("Schedules", (), (plot,))


def _expected(each: Assessed | None) -> float:
    return 0.0 if each is None or not runs(each.updates) else each.loss.expected / MIB


def _row(name: str, each: Assessed, terms: Terms) -> tuple[Cell, ...]:
    if not runs(each.updates):
        return (name, each.updates.label, 0, *[None] * (len(_COLUMNS) - 3))
    late = len(each.late_ns) if terms.link is not None else None
    return (
        name,
        each.updates.label,
        len(each.updates),
        each.loss.expected / MIB,
        each.loss.worst / MIB,
        each.need.rate / MBIT,
        each.sent_bytes / MIB,
        each.lag.median_s / 60,
        each.lag.worst_s / 60,
        late,
    )
