"""The advice on the real traces: a plain search over modes, intervals and links finds no better.

The search is computed from the records themselves, with nothing of the product but its reading of
traces. Where the real ones are not at hand, only generated workloads are searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from mirrord.analysis.assess import Terms
from mirrord.analysis.cost import Choice, advise, best_links, candidates
from mirrord.analysis.grids import NS
from mirrord.analysis.numbers import Workload
from mirrord.analysis.prices import Prices, parse_loss_price
from mirrord.analysis.reports.advice import _age, _at_worst
from mirrord.analysis.reports.common import rate_words
from mirrord.analysis.study import Plan, study
from mirrord.core.units import parse_duration, parse_size
from mirrord.schedules.rates import parse_rates
from mirrord.traces.generators import HotSpots, Sequential
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from tests.analysis.studies import stored
from tests.support import traces

#: Those that 'mirrord analyze compare' searches.
INTERVALS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
REAL = {
    "cloudphysics-2h.vscsi.zst": ReadOptions(align_shift=512),
    "hplajw-1week.srt.zst": ReadOptions(),
    "blkreplay-linux-mysql.load.zst": ReadOptions(),
    "blkreplay-linux-webserver-2.load.zst": ReadOptions(dedup_s=1.0),
    "fixture-cydonia-test_cp.csv.zst": ReadOptions(align_shift=512),
}
GENERATED: dict[str, HotSpots | Sequential] = {
    "hot": HotSpots(40_000, 3_000, 7300),
    "sequential": Sequential(7200, 600, 7200),
}
HERE = traces.TRACES_FOLDER is not None
#: Relative: writes are known to the second.
CLOSE = 0.01
#: Relative: the plain search takes every second step of the links.
STEP, COARSE = 1.12, 1.03
YEAR_S, BLOCK, GIB, OVERHEAD_S = 365.25 * 86400, 4096, 2**30, 1.0
LOST = ("0", "1000", "100000")
#: Bounds of semi-synchronous mirrors, the defaults; another one comes with `rpo_s`.
LAGS_S = (10.0, 60.0, 300.0)
Array = npt.NDArray[np.float64]


class Found(NamedTuple):
    """A mode over a link: bytes sent and bytes held by snapshots, loss and age."""

    name: str
    link: float
    sent: float
    held: float
    expected: float
    worst: float
    lag_s: float

    def total(self, lost: float, span_s: float) -> float:
        """The cost of a year at the prices that are the defaults."""
        running = self.link * 8 / 1e6 * 12 + self.held / GIB * 0.05 * 12
        return running + (self.sent * YEAR_S / span_s * 0.01 + self.expected * lost * 0.5) / GIB


class Search:
    """The writes of a trace: when (seconds from its first record), bytes, blocks touched."""

    def __init__(self, path: Path, reading: ReadOptions) -> None:
        with open_trace(str(path), options=reading) as trace:
            batches = list(trace.batches(("time_ns", "volume", "op", "offset", "length")))
            first_ns, self.span_s = trace.first_ns, (trace.last_ns - trace.first_ns) / NS
        t_ns, volume, op, offset, length = (
            np.concatenate([getattr(each, name) for each in batches]).astype(np.int64)
            for name in ("time_ns", "volume", "op", "offset", "length")
        )
        assert set(op.tolist()) <= {0, 1}, "the search does not know trims"
        t_ns, volume, offset, length = (
            each[(op == 0) & (length > 0)] for each in (t_ns, volume, offset, length)
        )
        self.at_s, self.length = (t_ns - first_ns) / NS, length.astype(np.float64)
        first, last = offset // BLOCK, (offset + length - 1) // BLOCK
        count = last - first + 1
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        self.blocks = np.repeat(volume << 50 | first, count) + within
        self.block_ns = np.repeat(t_ns - first_ns, count)
        # What is written in a second is taken to be spread over it, for the mean loss of schedules,
        # and to come together where it is lost, for the worst.
        seconds = np.bincount(self.at_s.astype(np.int64), self.length, int(self.span_s) + 1)
        self.sums: Array = np.append(0.0, np.cumsum(seconds))
        self.areas: Array = np.append(0.0, np.cumsum((self.sums[1:] + self.sums[:-1]) / 2))
        ends = np.searchsorted(t_ns, t_ns + NS, side="left")
        running = np.append(0.0, np.cumsum(self.length))
        self.peak = float((running[ends] - running[:-1]).max())
        self.found = list(self._all())

    def _all(self) -> Iterator[Found]:
        sent = float(len(self.blocks))  # (only for the count)
        assert sent
        every = float(self.length.sum())
        yield Found("synchronous", self.peak, every, 0, 0, 0, 0)
        for bound_s, name in ((5.0, "5.0 s"), (10.0, "10 s"), (60.0, "1 min"), (300.0, "5 min")):
            yield from self._live(f"semi-sync, {name}", bound_s)
        for seconds in INTERVALS_S:
            if 3.9 * seconds <= self.span_s:
                yield from self._schedule(seconds)

    def _live(self, name: str, bound_s: float) -> Iterator[Found]:
        """A queue that each write enters when it is made; it must be empty within the bound."""
        link = 1025.0
        before = np.cumsum(self.length) - self.length
        gaps = np.append(np.diff(self.at_s), np.inf)
        while link <= self.peak:
            waiting = (before + self.length - link * self.at_s) - np.minimum.accumulate(
                before - link * self.at_s
            )
            if waiting.max() / link <= bound_s:
                busy = np.minimum(gaps, waiting / link)
                mean = float((waiting * busy - link * busy**2 / 2).sum()) / self.span_s
                size = float(self.length.sum())
                yield Found(name, link, size, 0, mean, float(waiting.max()), bound_s)
            link *= STEP

    def _sizes(self, seconds: int) -> tuple[Array, Array]:
        """Of each update its bytes and its end."""
        updates = int(self.span_s * NS) // (seconds * NS) + 1
        which = self.block_ns // (seconds * NS)
        order = np.lexsort((self.blocks, which))
        blocks, which = self.blocks[order], which[order]
        new = np.append(True, (np.diff(blocks) != 0) | (np.diff(which) != 0))
        sizes = np.bincount(which[new], minlength=updates) * float(BLOCK)
        # The schedule goes on after the last record: what its interval wrote is at risk until then.
        return np.asarray(sizes), np.asarray(np.arange(1, updates + 1) * float(seconds))

    def _schedule(self, seconds: int) -> Iterator[Found]:
        """Links, until one alone costs more than the best total where lost data are dearest."""
        sizes, ends = self._sizes(seconds)
        held = sum(
            max(np.convolve(sizes, np.ones(min(keep, len(sizes))), "valid")) for keep in (2, 10)
        )
        link, least = 1025.0, float("inf")
        while link * 96e-6 < least:
            took = np.where(sizes > 0, sizes / link + OVERHEAD_S, 0.0)
            if took.sum() <= ends[-1]:
                found = self._one(f"every {seconds}", link, sizes, ends, took, float(held))
                least = min(least, found.total(float(LOST[-1]), self.span_s))
                yield found
            link *= STEP

    def _one(
        self, name: str, link: float, sizes: Array, ends: Array, took: Array, held: float
    ) -> Found:
        free, frees = 0.0, []
        for end, busy in zip(ends.tolist(), took.tolist(), strict=True):
            free = max(free, end) + busy
            frees.append(free)
        arrived, shown = np.array(frees), np.append(0.0, ends[:-1])
        since = np.append(0.0, arrived[:-1])
        exposed = self._area(arrived) - self._area(since) - (arrived - since) * self._by(shown)
        return Found(
            name, link, float(sizes.sum()), held, float(exposed.sum()) / self.span_s,
            float((self._by(np.ceil(arrived - 1e-6)) - self._by(shown)).max()),
            float((arrived - shown).max()),
        )  # fmt: skip

    def _by(self, at_s: Array) -> Array:
        """Bytes written by these moments."""
        return np.interp(at_s, np.arange(len(self.sums)), self.sums)

    def lost(self, choice: Choice) -> float:
        """The most that a schedule of the product loses, by the times of all writes."""
        sizes, ends = self._sizes(round(choice.interval_s or 0))
        free, worst = 0.0, 0.0
        running = np.append(0.0, np.cumsum(self.length))
        for size, shown, end in zip(sizes, np.append(0.0, ends[:-1]), ends, strict=True):
            free = max(free, end) + (size / choice.link + OVERHEAD_S if size else 0.0)
            first, last = np.searchsorted(self.at_s, [shown, free])
            worst = max(worst, float(running[last] - running[first]))
        return worst

    def _area(self, at_s: Array) -> Array:
        """The integral of these bytes over time."""
        last = len(self.sums) - 1
        second = np.minimum(at_s.astype(np.int64), last)
        part = at_s - second
        return self.areas[second] + part * (self.sums[second] + self._by(at_s)) / 2

    def again(self, choice: Choice) -> Found:
        """A schedule of the product over its link."""
        sizes, ends = self._sizes(round(choice.interval_s or 0))
        took = np.where(sizes > 0, sizes / choice.link + OVERHEAD_S, 0.0)
        return self._one(choice.name, choice.link, sizes, ends, took, 0)


class Case(NamedTuple):
    """A trace, replayed by the product and searched plainly."""

    path: Path
    reading: ReadOptions
    workload: Workload
    search: Search

    def under(self, terms: Terms) -> Workload:
        """The workload, replayed with these bounds of semi-synchronous mirrors."""
        again = study(str(self.path), Plan((86400.0,), bounds_s=terms.bounds_s), self.reading)
        return replace(self.workload, writes=again.writes)

    def cheapest(self, found: list[Found], lost: str) -> Found:
        return min(found, key=lambda each: each.total(float(lost), self.search.span_s))


@pytest.fixture(scope="module", params=[*(REAL if HERE else ()), *GENERATED])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, plan = request.param, Plan(tuple(map(float, INTERVALS_S)), bounds_s=LAGS_S)
    if name in REAL:
        path, reading = traces.real(name), REAL[name]
    else:
        traces.generated(name)
        path = stored(tmp_path_factory.mktemp("traces"), GENERATED[name], name)
        reading = ReadOptions()
    return Case(path, reading, study(str(path), plan, reading), Search(path, reading))


def test_no_mode_interval_and_link_is_cheaper(case: Case) -> None:
    for lost in LOST:
        prices = Prices(lost=parse_loss_price(lost))
        best = advise(candidates(case.workload, Terms(lags_s=LAGS_S), prices)).best
        plain = [each for each in case.search.found if each.name != "semi-sync, 5.0 s"]
        least = case.cheapest(plain, lost)
        assert best.total <= least.total(float(lost), case.search.span_s) * COARSE, (best, least)


def test_each_schedule_costs_and_loses_what_the_plain_search_says(case: Case) -> None:
    prices = Prices()
    shown = best_links(candidates(case.workload, Terms(lags_s=()), prices))
    judged = [each for each in shown if each.mode == "async" and each.sure]
    assert judged
    for each in judged:
        name = f"every {each.interval_s:.0f}"
        plain = [other for other in case.search.found if other.name == name]
        least = case.cheapest(plain, "1000").total(1000, case.search.span_s)
        assert least / COARSE <= each.total <= least * COARSE, each
        same = case.search.again(each)
        assert each.lag_s == pytest.approx(same.lag_s, abs=0.01)
        assert each.expected == pytest.approx(same.expected, rel=CLOSE)
        assert each.worst == pytest.approx(same.worst, rel=CLOSE)
        exact = case.search.lost(each)
        assert exact <= each.worst <= exact + case.search.peak


def test_limits_are_kept_by_the_cheapest_that_keeps_them(case: Case) -> None:
    prices = Prices()
    for terms in (
        Terms(rpo_s=200, lags_s=LAGS_S),
        Terms(rpo_s=5.0, lags_s=LAGS_S),
        Terms(loss_bytes=case.workload.bytes_written / 20, lags_s=LAGS_S),
        Terms(rpo_s=200, lags_s=()),
    ):
        modes = ("sync", "async", *(("semi-sync",) if terms.lags_s else ()))
        found = candidates(case.under(terms), terms, prices)
        best = advise([each for each in found if each.mode in modes]).best
        plain = [
            each
            for each in case.search.found
            if terms.accepts(each.lag_s, each.worst)
            and (terms.lags_s or not each.name.startswith("semi"))
            and (terms.rpo_s == 5 or each.name != "semi-sync, 5.0 s")
        ]
        assert best.usable and terms.accepts(best.lag_s, best.worst)
        # The slowest link within the limits may be just above a step.
        least = case.cheapest(plain, "1000")
        assert best.total <= least.total(1000, case.search.span_s) * 1.17, (best, least)


def test_the_advice_is_repeated_on_the_link_and_the_limits_that_it_tells(case: Case) -> None:
    for lost in ("0", "1000", "100000"):
        prices = Prices(lost=parse_loss_price(lost))
        best = advise(candidates(case.workload, Terms(lags_s=LAGS_S), prices)).best
        link = parse_rates(rate_words(best.link).replace(" ", ""))
        again = advise(candidates(case.workload, Terms(lags_s=LAGS_S, link=link), prices)).best
        assert again == best
        age = _age(best).partition("at most ")[2].removesuffix(" old")
        told = Terms(
            link=link,
            lags_s=LAGS_S,
            rpo_s=parse_duration(age) if age else None,
            loss_bytes=parse_size(_at_worst(best)),
        )
        [same] = [e for e in candidates(case.under(told), told, prices) if e.name == best.name]
        assert same.usable and same.total == pytest.approx(best.total)
