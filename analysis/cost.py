"""A simple cost model: the annual cost of each mirroring mode, and which one to use.

RecoverPoint's paper leaves "a simple economic model for the penalty involved in data loss" to the
future (section 6). Here the annual cost is that of the link needed, the bytes sent, the space held
by snapshots, and the data lost at the expected failures, where the price of a lost byte depends on
the hour at which it was written. A trace is taken to be representative of the year.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mirrord.analysis import risk
from mirrord.analysis.assess import Assessed, Terms, assess_all
from mirrord.analysis.grids import NS
from mirrord.analysis.numbers import Floats, Workload
from mirrord.analysis.results import Writes
from mirrord.core.errors import UsageError
from mirrord.core.units import format_duration
from mirrord.schedules.rates import split_clauses
from mirrord.schedules.spans import Span, covers, next_edge, overlap, parse_span

GIB = 1 << 30
_YEAR_S = 365.25 * 86400
_MONTHS = 12
_MBIT = 1e6 / 8
#: Fewer full intervals are not enough: the first is special, as the copy begins up to date.
_INTERVALS_MIN = 3.9
_PRICE = re.compile(r"(\d+(?:\.\d+)?)(?:\s+(.*))?")


@dataclass(frozen=True)
class LossPrice:
    """Money per GiB of lost data: each price applies to data written in its hours of the week."""

    clauses: tuple[tuple[float, Span], ...]
    otherwise: float
    zone: str
    text: str

    def at(self, at_ns: int) -> float:
        """The price of data written at `at_ns` (Unix time)."""
        for price, span in self.clauses:
            if covers(span, at_ns, self.zone):
                return price
        return self.otherwise

    def of_bins(self, writes: Writes, epoch_ns: int) -> Floats:
        """The price for each bin of a series, by the bin's start."""
        spans = [span for _, span in self.clauses]
        prices = np.full(len(writes.bytes), self.otherwise)
        at_ns: int | None = writes.start_ns + epoch_ns
        while at_ns is not None and at_ns < writes.end_ns + epoch_ns and spans:
            first = -(-(at_ns - epoch_ns - writes.start_ns) // writes.bin_ns)
            prices[first:] = self.at(at_ns)
            at_ns = next_edge(spans, at_ns, self.zone)
        return prices


def parse_loss_price(text: str, *, zone: str = "UTC") -> LossPrice:
    """Parse prices such as `2000 08:00-18:00 Mon-Fri, else 100`, per GiB; `UsageError`.

    The syntax is that of rates: a comma separates clauses and, inside a span, days.
    """
    found: list[tuple[float, Span]] = []
    otherwise: float | None = None
    clauses = split_clauses(text)
    for number, clause in enumerate(clauses, 1):
        match = _PRICE.fullmatch(re.sub(r"^else\s+", "", clause))
        if match is None or (clause.startswith("else") and match[2]):
            raise _no_price(text, f"'{clause}' is not a price, with or without hours")
        if match[2]:
            found.append((float(match[1]), parse_span(match[2])))
        elif number == len(clauses):
            otherwise = float(match[1])
        else:
            raise _no_price(text, f"'{clause}' has no hours and is not the last clause")
    if otherwise is None:
        raise _no_price(text, "the price for all other hours is missing")
    if overlap([span for _, span in found]) is not None:
        raise _no_price(text, "its hours overlap")
    return LossPrice(tuple(found), otherwise, zone, text)


def _no_price(text: str, why: str) -> UsageError:
    return UsageError(
        f"'{text}' is not a price of lost data: {why}",
        hint="Give for example 500, or '2000 08:00-18:00 Mon-Fri, else 100' (money per GiB).",
    )


@dataclass(frozen=True)
class Prices:
    """Prices, in one currency.

    link: per Mbit/s and month. transfer: per GiB sent. space: per GiB and month, of snapshots.
    lost: per GiB of lost data. failures: expected losses of the source per year.
    """

    link: float = 1.0
    transfer: float = 0.01
    space: float = 0.05
    lost: LossPrice = field(default_factory=lambda: parse_loss_price("1000"))
    failures: float = 0.5
    currency: str = "EUR"


@dataclass(frozen=True)
class Choice:
    """One mode of mirroring a workload, with what it needs, risks and costs.

    mode: "sync", "semi-sync" or "async". interval_s: of an asynchronous one. link: bytes per second
    that it needs. sent: bytes per second on average. expected, worst: bytes lost at a failure.
    lag_s: maximum age of the copy. space: bytes held by snapshots. fits: whether the given link
    carries it. sure: whether the trace has enough intervals to judge it. The costs are per year.
    """

    name: str
    mode: str
    interval_s: float | None
    link: float
    sent: float
    expected: float
    worst: float
    lag_s: float
    space: float
    fits: bool
    sure: bool
    link_cost: float
    transfer_cost: float
    space_cost: float
    loss_cost: float

    @property
    def running_cost(self) -> float:
        """The cost without failures."""
        return self.link_cost + self.transfer_cost + self.space_cost

    @property
    def total(self) -> float:
        """The total cost per year."""
        return self.running_cost + self.loss_cost


@dataclass(frozen=True)
class Advice:
    """The recommendation: the cheapest choice that the link carries and the trace can judge.

    from_factor, to_factor: it remains the cheapest while the price of lost data is between these
    multiples of the given price (`inf`: without an upper limit).
    """

    best: Choice
    choices: tuple[Choice, ...]
    front: tuple[Choice, ...]
    from_factor: float
    to_factor: float


def choices(workload: Workload, terms: Terms, prices: Prices) -> list[Choice]:
    """All modes of mirroring this workload, the most recent copy first."""
    writes = workload.writes
    per_gib = prices.lost.of_bins(writes, workload.calendar_ns)
    found = [_live(workload, terms, prices, per_gib, None)]
    found += [_live(workload, terms, prices, per_gib, lag_s) for lag_s in sorted(terms.lags_s)]
    money = risk.Account(writes, writes.bytes * per_gib)
    return found + [
        _async(workload, terms, prices, money, each) for each in assess_all(workload, terms)
    ]


def _live(
    workload: Workload, terms: Terms, prices: Prices, per_gib: Floats, lag_s: float | None
) -> Choice:
    """Synchronous (None), or semi-synchronous with a bound of the lag."""
    writes = workload.writes
    if lag_s is None:
        need = risk.peak_rate(writes, writes.bin_ns / NS)
        waiting = np.zeros(len(writes.bytes))
    else:
        need = risk.semi_sync_link(writes, lag_s)
        waiting = risk.backlog(writes, _given(terms, need))
    return _choice(
        "synchronous" if lag_s is None else f"semi-sync, {format_duration(lag_s)}",
        "sync" if lag_s is None else "semi-sync",
        None,
        terms,
        prices,
        workload.span_s,
        link=need,
        sent=workload.written_rate,
        loss=risk.Loss(float(waiting.mean()), float(waiting.max(initial=0)), 0),
        lag_s=0.0 if lag_s is None else lag_s,
        space=0,
        fits=need <= terms.least,
        money=float((waiting * per_gib).mean()) / GIB,
    )


def _given(terms: Terms, need: float) -> float:
    """The link's rate: the given one, if it is constant and fast enough, else the rate needed."""
    if terms.link is not None and terms.link.constant:
        return max(terms.least, need)
    return need


def _async(
    workload: Workload, terms: Terms, prices: Prices, money: risk.Account, each: Assessed
) -> Choice:
    # Judged by the actual transfers: a link that is slow by day may still be fast enough.
    return _choice(
        each.updates.words,
        "async",
        each.updates.period_s,
        terms,
        prices,
        workload.span_s,
        link=each.need.rate,
        sent=each.sent_bytes / workload.counted_s,
        loss=each.loss,
        lag_s=each.lag.worst_s,
        space=each.space_source + each.space_destination,
        fits=terms.link is None or not len(each.late_ns),
        money=money.loss(each.shown).expected / GIB,
    )


def _choice(
    name: str,
    mode: str,
    interval_s: float | None,
    terms: Terms,
    prices: Prices,
    span_s: float,
    *,
    link: float,
    sent: float,
    loss: risk.Loss,
    lag_s: float,
    space: float,
    fits: bool,
    money: float,
) -> Choice:
    return Choice(
        name=name,
        mode=mode,
        interval_s=interval_s,
        link=link,
        sent=sent,
        expected=loss.expected,
        worst=loss.worst,
        lag_s=lag_s,
        space=space,
        fits=fits,
        sure=span_s >= _INTERVALS_MIN * (lag_s if interval_s is None else interval_s),
        link_cost=link / _MBIT * prices.link * _MONTHS,
        transfer_cost=sent * _YEAR_S / GIB * prices.transfer,
        space_cost=space / GIB * prices.space * _MONTHS,
        loss_cost=money * prices.failures,
    )


def advise(found: Sequence[Choice]) -> Advice:
    """The cheapest choice that fits (if none fits, the one that needs the slowest link)."""
    judged = [each for each in found if each.sure] or list(found)
    fitting = [each for each in judged if each.fits]
    if not fitting:
        fitting = [min(judged, key=lambda each: each.link)]
    best = min(fitting, key=lambda each: (each.total, each.expected))
    low, high = 0.0, float("inf")
    for other in fitting:
        # total(f) = running + f * loss: where two lines cross, the other one becomes cheaper.
        apart = other.loss_cost - best.loss_cost
        if apart:
            cross = (best.running_cost - other.running_cost) / apart
            if apart > 0:
                low = max(low, cross)
            else:
                high = min(high, cross)
    return Advice(best, tuple(found), tuple(pareto(judged)), max(low, 0.0), high)


def pareto(found: Sequence[Choice]) -> list[Choice]:
    """The choices that no other beats in both running cost and expected loss, cheapest first."""
    front: list[Choice] = []
    for each in sorted(found, key=lambda one: (one.running_cost, one.expected)):
        if not front or each.expected < front[-1].expected:
            front.append(each)
    return front
