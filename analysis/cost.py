"""A simple cost model: the annual cost of each mirroring mode, and which one to use.

RecoverPoint's paper leaves "a simple economic model for the penalty involved in data loss" to the
future (section 6). Here the annual cost is that of the link, the bytes sent, the space held by
snapshots, and the data lost at the expected failures, where the price of a lost byte depends on
the hour at which it was written. A trace is taken to be representative of the year.

Each mode is evaluated on each link: the given one, or else all steps of `links`. The link on which
lag and loss are computed is the one that is priced, and the one that is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mirrord.analysis import risk
from mirrord.analysis.assess import Terms, arrivals
from mirrord.analysis.grids import NS
from mirrord.analysis.links import fastest, steps
from mirrord.analysis.numbers import Floats, Updates, Workload
from mirrord.analysis.prices import Prices
from mirrord.core.units import WINDOW_MAX, format_duration
from mirrord.schedules.rates import Rates

GIB = 1 << 30
_YEAR_S = 365.25 * 86400
_MONTHS = 12
_MBIT = 1e6 / 8
#: Fewer full intervals are not enough: the first is special, as the copy begins up to date.
_INTERVALS_MIN = 3.9
#: Links are compared up to this multiple of what is needed to be in time.
_FASTER = 10
#: Totals that differ by less are the same: a step of the link is ten times as much.
TIE = 0.01


@dataclass(frozen=True)
class Choice:
    """One mode of mirroring a workload over one link, with what it risks and costs.

    mode: "sync", "semi-sync" or "async". interval_s: of an asynchronous one. link: bytes per second
    of the link that is assessed and priced, infinite if it is unlimited. need: bytes per second on
    which nothing is late. late: updates that were not finished when the next one was due. sent:
    bytes per second on average. expected, worst: bytes lost at a failure. lag_s: maximum age of the
    copy. at_least: lag or loss were greatest only after the end of the trace. space: bytes held
    by snapshots. fits: whether the link carries it. accepted: whether lag and loss are within the
    given limits. sure: whether the trace has enough intervals to judge it. The costs are per year.
    """

    name: str
    mode: str
    interval_s: float | None
    link: float
    need: float
    late: int
    sent: float
    expected: float
    worst: float
    lag_s: float
    at_least: bool
    space: float
    fits: bool
    accepted: bool
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

    @property
    def usable(self) -> bool:
        """Whether the link carries it and its lag and loss are accepted."""
        return self.fits and self.accepted


@dataclass(frozen=True)
class Advice:
    """The recommendation: the cheapest usable choice that the trace can judge.

    choices: each mode on its best link. ties: other choices that cost the same within `TIE`.
    from_factor, to_factor: this mode remains the cheapest, on the link that is best then, while the
    price of lost data is between these multiples of the given price (`inf`: without an upper
    limit). quieter: the recommendation without the busiest minute of the trace.
    """

    best: Choice
    choices: tuple[Choice, ...]
    front: tuple[Choice, ...]
    ties: tuple[Choice, ...]
    from_factor: float
    to_factor: float
    quieter: Advice | None = None


def advice_on(workload: Workload, terms: Terms, prices: Prices) -> Advice:
    """The advice on a workload, and on what is left of it without its busiest minute."""
    made = advise(candidates(workload, terms, prices))
    if workload.quieter is None:
        return made
    return replace(made, quieter=advise(candidates(workload.quieter, terms, prices)))


def candidates(workload: Workload, terms: Terms, prices: Prices) -> list[Choice]:
    """All modes of mirroring this workload on all links, the most recent copy first."""
    made = _Candidates(workload, terms, prices)
    found = made.live(None)
    for lag_s in terms.bounds_s:
        found += made.live(lag_s)
    for updates in workload.shown():
        found += made.scheduled(updates)
    return found


class _Waits(NamedTuple):
    """Bytes that wait for a link: on average; at most, if all writes of a second come together; at
    most, if they are spread over it; and on average times their price per GiB.
    """

    mean: float
    most: float
    left: float
    money: float


class _Candidates:
    """The candidates of one workload."""

    def __init__(self, workload: Workload, terms: Terms, prices: Prices) -> None:
        self._workload, self._terms, self._prices = workload, terms, prices
        writes = workload.writes
        self._per_gib = prices.lost.of_bins(writes, workload.calendar_ns)
        self._account = risk.Account(writes)
        self._money = risk.Account(writes, writes.bytes * self._per_gib)
        self._peak = risk.peak_rate(writes, 1.0)
        self._known: dict[float | Rates, _Waits] = {}

    def live(self, lag_s: float | None) -> list[Choice]:
        """Synchronous (None), or semi-synchronous with a bound of the lag."""
        need = self._peak
        if lag_s is not None:
            need = self._workload.writes.links[lag_s]
        # (On the link of a synchronous mirror nothing is lost: a faster one only costs more.)
        return [self._live(lag_s, need, link) for link in self._links(need, self._peak)]

    def _live(self, lag_s: float | None, need: float, link: float | Rates) -> Choice:
        rate = link if isinstance(link, float) else self._terms.least
        waits = _Waits(0.0, 0.0, 0.0, 0.0)
        if lag_s is not None:
            waits = self._waits(link, rate)
        bound_s = lag_s or 0.0
        fits = need <= rate and waits.left <= WINDOW_MAX
        limit = self._terms.loss_bytes
        window = WINDOW_MAX if limit is None else min(limit, WINDOW_MAX)
        # What is more than the window waits at the source, as in a synchronous mirror.
        worst = min(waits.most, window) if waits.left <= window else waits.most
        return self._choice(
            "synchronous" if lag_s is None else f"semi-sync, {format_duration(lag_s)}",
            "sync" if lag_s is None else "semi-sync",
            link,
            need=need,
            sent=self._workload.written_rate,
            loss=risk.Loss(min(waits.mean, worst), worst, 0),
            lag_s=bound_s if fits else max(bound_s, waits.left / rate),
            fits=fits,
            judged_s=bound_s,
            money=waits.money / GIB,
        )

    def _waits(self, link: float | Rates, rate: float) -> _Waits:
        if (known := self._known.get(link)) is not None:
            return known
        writes = self._workload.writes
        bin_s = writes.bin_ns / NS
        carried = self._carried(link)
        mean, most = risk.waiting(writes, carried)
        left = np.maximum(most - carried, 0.0)
        # What still waits at the end of the trace arrives after it.
        after = float(left[-1]) ** 2 / 2 / (rate * bin_s) / len(left)
        found = _Waits(
            float(mean.mean()) + after,
            float(most.max()),
            max(float(left.max()), self._peak - rate),
            float((mean * self._per_gib).mean()) + after * float(self._per_gib[-1]),
        )
        self._known[link] = found
        return found

    def _carried(self, link: float | Rates) -> float | Floats:
        """Bytes that the link carries in each bin of the writes."""
        writes = self._workload.writes
        if not isinstance(link, Rates) or link.constant:
            rate = link if isinstance(link, float) else self._terms.least
            return rate * writes.bin_ns / NS
        epoch_ns = self._workload.calendar_ns
        times, carried = risk.capacity(link, writes.start_ns, writes.end_ns, epoch_ns)
        edges = writes.bin_ns * np.arange(len(writes.bytes) + 1, dtype=np.int64)
        return np.diff(np.interp(edges, times - writes.start_ns, carried))

    def scheduled(self, updates: Updates) -> list[Choice]:
        """A schedule."""
        terms = self._terms
        need = risk.link_need(updates, terms.kind, terms.overhead_s).rate
        most = _FASTER * max(self._peak, need)
        span_s = max(int(updates.end_ns[-1] - updates.start_ns[0]), 1) / NS
        links = self._links(float(updates.sizes(terms.kind).sum()) / span_s, most)
        sustained = [
            link
            for link in links
            if risk.sustains(
                updates,
                terms.kind,
                link,
                epoch_ns=self._workload.calendar_ns,
                overhead_s=terms.overhead_s,
            )
        ]
        if not sustained:
            return [self._scheduled(updates, need, links[-1], fits=False)]
        return [self._scheduled(updates, need, link, fits=True) for link in sustained]

    def _scheduled(
        self, updates: Updates, need: float, link: float | Rates, *, fits: bool
    ) -> Choice:
        terms, workload = self._terms, self._workload
        arrived = arrivals(workload, updates, terms, link)
        shown = risk.showing(workload, updates, arrived)
        lag_s, lag_at_least = shown.oldest
        loss = self._account.loss(shown)
        space = sum(
            risk.snapshot_space(updates, terms.kind, keep)
            for keep in (terms.keep_source, terms.keep_destination)
        )
        return self._choice(
            updates.words,
            "async",
            link,
            interval_s=updates.period_s,
            judged_s=updates.period_s,
            need=need,
            late=len(risk.late(updates, arrived)),
            sent=int(updates.sizes(terms.kind).sum()) / workload.counted_s,
            loss=loss,
            lag_s=lag_s,
            at_least=lag_at_least or loss.at_least,
            space=space,
            fits=fits,
            money=self._money.loss(shown).expected / GIB,
        )

    def _links(self, first: float, last: float) -> Sequence[float | Rates]:
        """The links on which a mode is evaluated."""
        return steps(first, last) if self._terms.link is None else [self._terms.link]

    def _choice(
        self,
        name: str,
        mode: str,
        link: float | Rates,
        *,
        need: float,
        sent: float,
        loss: risk.Loss,
        lag_s: float,
        fits: bool,
        money: float,
        judged_s: float,
        interval_s: float | None = None,
        late: int = 0,
        at_least: bool = False,
        space: float = 0,
    ) -> Choice:
        prices = self._prices
        rate = fastest(link) if isinstance(link, Rates) else link
        return Choice(
            name=name,
            mode=mode,
            interval_s=interval_s,
            link=float("inf") if rate is None else rate,
            need=need,
            late=late,
            sent=sent,
            expected=loss.expected,
            worst=loss.worst,
            lag_s=lag_s,
            at_least=at_least,
            space=space,
            fits=fits,
            accepted=self._terms.accepts(lag_s, loss.worst),
            sure=self._workload.span_s >= _INTERVALS_MIN * judged_s,
            link_cost=(rate or 0.0) / _MBIT * prices.link * _MONTHS,
            transfer_cost=sent * _YEAR_S / GIB * prices.transfer,
            space_cost=space / GIB * prices.space * _MONTHS,
            loss_cost=money * prices.failures,
        )


def best_links(found: Sequence[Choice]) -> list[Choice]:
    """Of each mode its cheapest usable candidate; without one, that with the most recent copy."""
    by_name: dict[str, list[Choice]] = {}
    for each in found:
        by_name.setdefault(each.name, []).append(each)
    made = []
    for group in by_name.values():
        usable = [each for each in group if each.usable]
        if usable:
            made.append(min(usable, key=_order))
        else:
            made.append(min(group, key=lambda each: (not each.fits, each.lag_s, each.total)))
    return made


def _order(each: Choice) -> tuple[float, float]:
    return each.total, each.expected


def advise(found: Sequence[Choice]) -> Advice:
    """The cheapest of these candidates (if none is usable, the one that is closest to it)."""
    shown = best_links(found)
    judged = [each for each in shown if each.sure] or shown
    usable = [each for each in judged if each.usable]
    if usable:
        best = min(usable, key=_order)
    else:
        fitting = [each for each in judged if each.fits]
        best = (
            min(fitting, key=lambda each: (each.lag_s, each.worst))
            if fitting
            else min(judged, key=lambda each: each.need)
        )
    ties = [
        each for each in usable if each is not best and each.total <= best.total * (1 + TIE) + 1e-9
    ]
    names = {each.name for each in usable}
    rivals = [each for each in found if each.usable and each.name in names]
    low, high = _range(best, rivals)
    return Advice(best, tuple(shown), tuple(pareto(judged)), tuple(ties), low, high)


def _range(best: Choice, found: Sequence[Choice]) -> tuple[float, float]:
    """The multiples of the price of lost data between which the mode of `best` is the cheapest.

    The total is running + factor * loss: where two lines cross, the other one becomes cheaper.
    """

    def crossing(one: Choice, other: Choice) -> float:
        return (one.running_cost - other.running_cost) / (other.loss_cost - one.loss_cost)

    def end(ahead: bool) -> float:
        now = best
        while True:
            others = [
                each
                for each in found
                if (each.loss_cost < now.loss_cost if ahead else each.loss_cost > now.loss_cost)
            ]
            if not others:
                return float("inf") if ahead else 0.0
            other = (min if ahead else max)(others, key=lambda each: crossing(now, each))
            at = crossing(now, other)
            if other.name != best.name or at <= 0:
                return max(at, 0.0)
            now = other

    return end(ahead=False), end(ahead=True)


def pareto(found: Sequence[Choice]) -> list[Choice]:
    """The choices that no other beats in both running cost and expected loss, cheapest first."""
    front: list[Choice] = []
    for each in sorted(found, key=lambda one: (one.running_cost, one.expected)):
        if not front or each.expected < front[-1].expected:
            front.append(each)
    return front
