"""The report that compares mirroring modes: what each needs, loses and costs; which one to use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mirrord.analysis.assess import Terms
from mirrord.analysis.cost import Advice, Choice, Prices, advise, choices
from mirrord.analysis.numbers import Workload
from mirrord.analysis.reports.common import (
    MBIT,
    MIB,
    interval_words,
    listed,
    rate_words,
    slug,
    warnings,
)
from mirrord.analysis.reports.plots import (
    Axis,
    Bars,
    Cell,
    Column,
    Line,
    Plot,
    Report,
    Section,
    Side,
    Table,
)
from mirrord.analysis.reports.risk import method as risk_method
from mirrord.analysis.reports.tables import grouped
from mirrord.core.units import format_size

_PARTS = ("link", "bytes sent", "snapshots", "expected loss")
_SIDES: tuple[Side, ...] = ("top right", "bottom left", "bottom right", "top left")
#: Choices above this multiple of the cheapest are not drawn: the other bars would be too low.
_DRAWN_MAX = 12
#: A logarithmic axis has no zero: what costs nothing is drawn here, money per year.
_COST_MIN = 1e-3
#: Letters of a label that fill the width of a plot.
_LETTERS = 110
#: The modes that mirrord supports (README.md); the others are compared as well.
_THERE = ("async",)
_MODES = {"sync": 1, "semi-sync": 3, "async": 0}


def report(workloads: Sequence[Workload], terms: Terms, prices: Prices) -> Report:
    """The report on these traces."""
    found = {each.name: advise(choices(each, terms, prices)) for each in workloads}
    return Report(
        "compare",
        "Mirroring modes and their cost",
        tuple(_sentence(each, found[each.name], prices) for each in workloads),
        tuple(_section(each, found[each.name], prices) for each in workloads),
        (*_method(prices), *risk_method(terms)),
        document(found, terms, prices),
        warnings(workloads),
    )


def _method(prices: Prices) -> tuple[str, ...]:
    money = prices.currency
    return (
        f"The annual cost is: the link needed, at {prices.link:g} {money} per Mbit/s and month; "
        f"bytes sent, at {prices.transfer:g} {money} per GiB; space of snapshots, at "
        f"{prices.space:g} {money} per GiB and month; and {prices.failures:g} failures, each "
        f"with the expected loss at {prices.lost.text} {money} per GiB lost, by the hour at which "
        "it was written. The prices are options; the defaults are only examples. The trace is "
        "taken to be representative of the year.",
        "A synchronous mirror loses nothing, but each write waits for the link, which needs the "
        "peak rate of the busiest second. Semi-synchronous: writers continue as long as no write "
        "arrives later than the bound. The cost of waiting for a distant disk is not included.",
        "In the plot of cost against loss a line connects the choices that no other choice beats "
        "in both: between them the price of lost data decides. A choice remains the cheapest "
        "between the two prices given. Intervals of which the trace has fewer than four are shown, "
        "but not recommended.",
    )


def money_words(amount: float, currency: str) -> str:
    """`1 240 EUR`: without decimals from three digits on."""
    digits = 0 if abs(amount) >= 99.5 else 2
    return f"{grouped(f'{amount:,.{digits}f}')} {currency}"


def _sentence(workload: Workload, advice: Advice, prices: Prices) -> str:
    best, money = advice.best, prices.currency
    text = (
        f"{workload.name}: {_lead(workload, advice)} It costs {money_words(best.total, money)} a "
        f"year: {money_words(best.running_cost, money)} to run (link of {rate_words(best.link)}) "
        f"and {money_words(best.loss_cost, money)} of expected loss "
        f"({format_size(best.expected)} on average, {format_size(best.worst)} at worst)"
    )
    others = [e for e in advice.choices if e.fits and e.sure and e is not best]
    if others and best.fits:
        second = min(others, key=lambda each: each.total)
        text += f"; next best is '{second.name}' at {money_words(second.total, money)}"
    text += "."
    if others and best.fits and (span := _span(advice, prices)):
        text += f" It remains the cheapest {span}."
    if best.mode not in _THERE:
        text += " mirrord does not support this mode yet"
        usable = _best_there(advice)
        text += (
            "."
            if usable is None
            else (
                f": until then use '{usable.name}', at {money_words(usable.total, money)} and "
                f"with {format_size(usable.expected)} lost on average, "
                f"{format_size(usable.worst)} at worst."
            )
        )
    misfits = [each.name for each in advice.choices if not each.fits]
    if misfits and best.fits:
        text += f" The given link is too slow for {listed(misfits)}."
    unsure = [each.name for each in advice.choices if not each.sure]
    if unsure and _judges_schedules(advice):
        text += f" The trace is too short to judge {listed(unsure)}."
    return text


def _best_there(advice: Advice) -> Choice | None:
    """The cheapest choice that mirrord supports, the link carries and the trace can judge."""
    usable = [e for e in advice.choices if e.mode in _THERE and e.fits and e.sure]
    return min(usable, key=lambda each: each.total, default=None)


def _judges_schedules(advice: Advice) -> bool:
    return any(each.sure for each in advice.choices if each.mode == "async")


def _lead(workload: Workload, advice: Advice) -> str:
    """The recommendation; or, without one, the reason and the closest choice."""
    best = advice.best
    if not best.fits:
        return (
            "the given link is too slow for every choice that the trace can judge; "
            f"'{best.name}' needs the slowest link."
        )
    if not _judges_schedules(advice):
        span = interval_words(round(workload.span_s)) if workload.span_s >= 1 else "a moment"
        kind = "synchronous modes" if best.mode != "async" else "modes"
        return (
            f"the trace lasts only {span}: too short to judge a schedule, which takes four "
            f"intervals (set shorter ones with --intervals). Of the {kind} '{best.name}' costs "
            "least."
        )
    return f"use '{best.name}'."


def _span(advice: Advice, prices: Prices) -> str:
    """The prices of lost data between which the recommendation holds; "" without a price."""
    low, high = advice.from_factor, advice.to_factor
    lost = prices.lost
    if not lost.clauses and not lost.otherwise:
        return ""
    if low <= 0 and math.isinf(high):
        return "whatever lost data costs"
    if lost.clauses:  # prices by the hour: all of them times a factor
        given, one, other = " times the given prices", _factor(low), _factor(high)
    else:
        given = f" {prices.currency} per GiB (assumed: {_digits(lost.otherwise)})"
        one, other = _round(low * lost.otherwise), _round(high * lost.otherwise)
    if math.isinf(high):
        return f"as long as lost data costs at least {one}{given}"
    if low <= 0:
        return f"as long as lost data costs at most {other}{given}"
    return f"as long as lost data costs {one} to {other}{given}"


def _round(price: float) -> str:
    """A price rounded to two digits: `830`, `10 000`."""
    return "" if math.isinf(price) else _digits(float(f"{price:.2g}"))


def _digits(price: float) -> str:
    return grouped(f"{price:,.10g}")


def _factor(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.2g}"


def _section(workload: Workload, advice: Advice, prices: Prices) -> Section:
    key = slug(workload.name)
    return Section(
        workload.name,
        (),
        (_pareto(workload, advice, prices), _costs(workload, advice, prices)),
        _table(advice, prices),
        f"{key}-choices",
    )


def _table(advice: Advice, prices: Prices) -> Table:
    money = f"{prices.currency}/year"
    columns = (
        # The deciding columns come first: on a phone the others are reached by scrolling.
        Column("choice"), Column("total", money, 2), Column("verdict"), Column("to run", money, 2),
        Column("expected loss", money, 2), Column("link needed", "Mbit/s", 3),
        Column("sent", "Mbit/s", 3), Column("oldest copy", "min", 1),
        Column("expected loss", "MiB", 2), Column("worst loss", "MiB", 1),
        Column("snapshots", "MiB", 1),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            each.total,
            _verdict(each, advice),
            each.running_cost,
            each.loss_cost,
            each.link / MBIT,
            each.sent / MBIT,
            each.lag_s / 60,
            each.expected / MIB,
            each.worst / MIB,
            each.space / MIB,
        )
        for each in advice.choices
    ]
    return Table(columns, tuple(rows))


def _verdict(each: Choice, advice: Advice) -> str:
    if each is advice.best and each.fits and _judges_schedules(advice):
        return "recommended"
    if each is _best_there(advice) and advice.best.mode not in _THERE:
        return "best schedule"
    if not each.fits:
        return "link too slow"
    if not each.sure:
        return "trace too short"
    return "alternative" if each in advice.front else "inferior to another"


def _pareto(workload: Workload, advice: Advice, prices: Prices) -> Plot:
    """Running cost against expected loss."""
    money, best = f"{prices.currency} a year", advice.best
    # A logarithmic axis has no zero: what loses nothing is drawn at the lower edge, and labelled.
    losses = [each.expected / MIB for each in advice.choices if each.expected > 0]
    floor = min(losses, default=1e-3) / 10
    top = max([*losses, floor]) * 3

    sides = _sides([best, *(each for each in advice.choices if each is not best)], floor)

    def x(each: Choice) -> float:
        return max(each.running_cost, _COST_MIN)

    def points(name: str, group: Sequence[Choice], tone: int, *, big: bool = False) -> Line:
        return Line(
            name,
            [x(each) for each in group],
            [max(each.expected / MIB, floor) for each in group],
            tone,
            joined=False,
            big=big,
            labels=tuple(
                each.name if each.expected > 0 else f"{each.name} (loses nothing)" for each in group
            ),
            sides=tuple(sides[each.name] for each in group),
        )

    front = points("Pareto front", advice.front, -1)
    lines = [replace(front, joined=True, marker=False, dash=2, labels=(), sides=())]
    others = [each for each in advice.choices if each is not best]
    words = {"sync": "synchronous", "semi-sync": "semi-synchronous", "async": "asynchronous"}
    groups = [
        (words[mode], [each for each in others if each.sure and each.mode == mode], tone)
        for mode, tone in _MODES.items()
    ]
    groups.append(("trace too short to judge", [each for each in others if not each.sure], -1))
    lines += [points(name, group, tone) for name, group, tone in groups if group]
    lines.append(
        points(f"{'cheapest' if best.fits else 'slowest link'}: {best.name}", [best], 2, big=True)
    )
    rows: list[tuple[Cell, ...]] = [
        (each.name, each.running_cost, each.expected / MIB, each.loss_cost, _verdict(each, advice))
        for each in advice.choices
    ]
    columns = (
        Column("choice"), Column("to run", money, 2), Column("expected loss", "MiB", 3),
        Column("expected loss", money, 2), Column("verdict"),
    )  # fmt: skip
    costs = [x(each) for each in advice.choices]
    return Plot(
        f"{slug(workload.name)}-pareto",
        f"{workload.name}: running cost against expected loss",
        "Lower left is better. "
        + (
            "The star costs least, including the expected loss."
            if best.fits
            else "The given link is too slow for every choice that the trace can judge: the star "
            "needs the slowest link."
        ),
        Axis(f"running cost ({money})", "log", low=min(costs) / 2, high=max(costs) * 6),
        Axis("expected loss at a failure (MiB)", "log", low=floor / 2, high=top),
        Table(columns, tuple(rows)),
        tuple(lines),
    )


def _sides(found: Sequence[Choice], floor: float) -> dict[str, Side | None]:
    """Where each label is placed so that none covers another: the first side that is free.

    None if no side is free: the label is then shown only on hover. The first choice is placed
    first. Places are fractions of the plot; a label takes about 1/110 per letter in width and 1/22
    in height (on a desktop's screen, and in the pictures).
    """
    x = [math.log10(max(each.running_cost, _COST_MIN)) for each in found]
    y = [math.log10(max(each.expected / MIB, floor)) for each in found]
    width, height = max(max(x) - min(x), 0.3) + 1.1, max(max(y) - min(y), 0.3) + 0.8
    points = [(a / width, b / height) for a, b in zip(x, y, strict=True)]
    taken = [(a - 0.008, b - 0.012, a + 0.008, b + 0.012) for a, b in points]
    sides: dict[str, Side | None] = {}
    for each, (a, b) in zip(found, points, strict=True):
        letters = len(each.name) + (0 if each.expected > 0 else 16)
        boxes: dict[Side, tuple[float, float, float, float]] = {}
        for side in _SIDES:
            left = a + 0.01 if "right" in side else a - 0.01 - letters / _LETTERS
            low = b + 0.012 if "top" in side else b - 0.012 - 1 / 22
            boxes[side] = (left, low, left + letters / _LETTERS, low + 1 / 22)
        free = [side for side, box in boxes.items() if not any(_meet(box, o) for o in taken)]
        sides[each.name] = free[0] if free else None
        taken += [boxes[side] for side in free[:1]]
    return sides


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _costs(workload: Workload, advice: Advice, prices: Prices) -> Plot:
    shown = [each for each in advice.choices if each.total <= _DRAWN_MAX * advice.best.total]
    left_out = [
        f"'{each.name}' ({money_words(each.total, prices.currency)})"
        for each in advice.choices
        if each not in shown
    ]
    parts = (
        [each.link_cost for each in shown], [each.transfer_cost for each in shown],
        [each.space_cost for each in shown], [each.loss_cost for each in shown],
    )  # fmt: skip
    money = f"{prices.currency}/year"
    columns = (
        Column("choice"),
        *(Column(part, money, 2) for part in _PARTS),
        Column("total", money, 2),
    )
    rows: list[tuple[Cell, ...]] = [
        (each.name, each.link_cost, each.transfer_cost, each.space_cost, each.loss_cost, each.total)
        for each in advice.choices
    ]
    best = advice.best
    least = all(best.total <= each.total for each in advice.choices)
    among = "" if least else " of the choices that the link carries and the trace can judge"
    caption = (
        f"'{best.name}' costs least{among}: {money_words(best.total, prices.currency)}."
        if best.fits
        else f"'{best.name}' needs the slowest link, but a faster one than the given link: "
        f"{money_words(best.total, prices.currency)}."
    )
    if left_out:
        caption += f" Too expensive to be drawn: {', '.join(left_out)}."
    return Plot(
        f"{slug(workload.name)}-cost",
        f"{workload.name}: annual cost",
        caption,
        Axis("", "names", names=tuple(each.name for each in shown)),
        Axis(f"annual cost ({prices.currency})"),
        Table(columns, tuple(rows)),
        bars=tuple(
            Bars(part, values, tone)
            for part, values, tone in zip(_PARTS, parts, (0, 4, 2, 1), strict=True)
        ),
        stacked=True,
    )


def document(found: dict[str, Advice], terms: Terms, prices: Prices) -> dict[str, object]:
    """`compare.json`: all numbers; bytes, seconds, money per year."""
    return {
        "volume": terms.kind,
        "link": None if terms.link is None else str(terms.link),
        "prices": {
            "currency": prices.currency,
            "link_mbit_month": prices.link,
            "transfer_gib": prices.transfer,
            "space_gib_month": prices.space,
            "lost_gib": prices.lost.text,
            "failures_year": prices.failures,
        },
        "traces": [
            {
                "name": name,
                "recommended": advice.best.name,
                "cheapest_from_factor": advice.from_factor,
                "cheapest_to_factor": None if math.isinf(advice.to_factor) else advice.to_factor,
                "choices": [_numbers(each, advice) for each in advice.choices],
            }
            for name, advice in found.items()
        ],
    }


def _numbers(each: Choice, advice: Advice) -> dict[str, object]:
    return {
        "name": each.name,
        "mode": each.mode,
        "seconds": each.interval_s,
        "link_needed": each.link,
        "sent_rate": each.sent,
        "lag_worst_s": each.lag_s,
        "expected_loss_bytes": each.expected,
        "worst_loss_bytes": each.worst,
        "snapshot_bytes": each.space,
        "fits": each.fits,
        "judged": each.sure,
        "on_front": each in advice.front,
        "cost": {
            "link": each.link_cost,
            "transfer": each.transfer_cost,
            "space": each.space_cost,
            "loss": each.loss_cost,
            "total": each.total,
        },
    }
