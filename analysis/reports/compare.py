"""The report that compares mirroring modes: what each needs, loses and costs; which one to use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mirrord.analysis.assess import Terms
from mirrord.analysis.cost import Advice, Choice, advice_on
from mirrord.analysis.numbers import Workload
from mirrord.analysis.prices import Prices
from mirrord.analysis.reports.advice import (
    EVERYWHERE,
    assumptions,
    best_schedule,
    judges_schedules,
    method,
    money_words,
    sentence,
)
from mirrord.analysis.reports.common import (
    MBIT,
    MIB,
    slug,
    warnings,
)
from mirrord.analysis.reports.documents import of_costs
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

_PARTS = ("link", "bytes sent", "snapshots", "expected loss")
_SIDES: tuple[Side, ...] = ("top right", "bottom left", "bottom right", "top left")
#: Choices above this multiple of the cheapest are not drawn: the other bars would be too low.
_DRAWN_MAX = 12
#: A logarithmic axis has no zero: what costs nothing is drawn here, money per year.
_COST_MIN = 1e-3
#: Letters of a label that fill the width of a plot.
_LETTERS = 110
_MODES = {"sync": 1, "semi-sync": 3, "async": 0}


def report(workloads: Sequence[Workload], terms: Terms, prices: Prices) -> Report:
    """The report on these traces."""
    found = {each.name: advice_on(each, terms, prices) for each in workloads}
    return Report(
        "compare",
        "Mirroring modes and their cost",
        tuple(sentence(each, found[each.name], terms, prices) for each in workloads),
        tuple(_section(each, found[each.name], prices) for each in workloads),
        (*method(terms, prices), *risk_method(terms)[1:]),
        of_costs(workloads, found, terms, prices),
        warnings(workloads),
        assumptions=assumptions(terms, prices),
    )


def _section(workload: Workload, advice: Advice, prices: Prices) -> Section:
    key = slug(workload.name)
    return Section(
        workload.name,
        (),
        (_pareto(workload, advice, prices), _costs(workload, advice, prices)),
        _table(advice, prices),
        f"{key}-choices",
        _short(advice, prices),
    )


def _short(advice: Advice, prices: Prices) -> Table:
    """What decides, as wide as a terminal."""
    money = prices.currency
    columns = (
        Column("choice"), Column("link", "Mbit/s", 3), Column("to run", money, 2),
        Column("loss", money, 2), Column("total", money, 2), Column("oldest", "min", 1),
        Column("worst loss", "MiB", 1), Column("verdict"),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            None if math.isinf(each.link) else each.link / MBIT,
            each.running_cost,
            each.loss_cost,
            each.total,
            _least(each, each.lag_s / 60),
            _least(each, each.worst / MIB),
            _verdict(each, advice),
        )
        for each in advice.choices
    ]
    return Table(columns, tuple(rows))


def _least(each: Choice, value: float) -> Cell:
    """A value that may only be a lower limit, as the trace ends too early."""
    return f"\N{GREATER-THAN OR EQUAL TO} {grouped(f'{value:,.1f}')}" if each.at_least else value


def _table(advice: Advice, prices: Prices) -> Table:
    money = f"{prices.currency}/year"
    columns = (
        # The deciding columns come first: on a phone the others are reached by scrolling.
        Column("choice"), Column("total", money, 2), Column("verdict"), Column("to run", money, 2),
        Column("expected loss", money, 2), Column("link", "Mbit/s", 3),
        Column("sent", "Mbit/s", 3), Column("oldest copy", "min", 1),
        Column("expected loss", "MiB", 2), Column("worst loss", "MiB", 1),
        Column("snapshots", "MiB", 1), Column("late updates"), Column("at least"),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            each.total,
            _verdict(each, advice),
            each.running_cost,
            each.loss_cost,
            None if math.isinf(each.link) else each.link / MBIT,
            each.sent / MBIT,
            each.lag_s / 60,
            each.expected / MIB,
            each.worst / MIB,
            each.space / MIB,
            each.late,
            "age, loss" if each.at_least else "",
        )
        for each in advice.choices
    ]
    return Table(columns, tuple(rows))


def _verdict(each: Choice, advice: Advice) -> str:
    if each is advice.best and each.usable and judges_schedules(advice):
        return "recommended"
    if each is best_schedule(advice) and advice.best.mode != EVERYWHERE:
        return "best schedule"
    if not each.fits:
        return "link too slow"
    if not each.accepted:
        return "beyond the limits"
    if each in advice.ties:
        return "costs the same"
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
    lines.append(points(f"{_star(best)}: {best.name}", [best], 2, big=True))
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
            if best.usable
            else "No choice that the trace can judge is within the limits: the star has the most "
            "recent copy."
            if best.fits
            else "The given link is too slow for every choice that the trace can judge: the star "
            "needs the slowest link."
        ),
        Axis(f"running cost ({money})", "log", low=min(costs) / 2, high=max(costs) * 6),
        Axis("expected loss at a failure (MiB)", "log", low=floor / 2, high=top),
        Table(columns, tuple(rows)),
        tuple(lines),
    )


def _star(best: Choice) -> str:
    if best.usable:
        return "cheapest"
    return "most recent copy" if best.fits else "slowest link"


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
        if best.usable
        else f"'{best.name}' has the most recent copy, but is not within the limits: "
        f"{money_words(best.total, prices.currency)}."
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
