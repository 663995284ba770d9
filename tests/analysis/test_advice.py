"""The advice on the real traces: a plain search over intervals and links finds nothing better.

Where the traces are not at hand, generated workloads take their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import pytest

from mirrord.analysis.assess import Terms
from mirrord.analysis.cost import Choice, advise, candidates
from mirrord.analysis.grids import NS
from mirrord.analysis.numbers import Updates, Workload
from mirrord.analysis.prices import Prices, parse_loss_price
from mirrord.analysis.reports.common import rate_words
from mirrord.analysis.study import Plan, study
from mirrord.schedules.rates import parse_rates
from mirrord.traces.generators import Files, HotSpots
from mirrord.traces.options import ReadOptions
from tests.analysis.studies import stored
from tests.support import traces

INTERVALS_S = (60.0, 300.0, 900.0, 3600.0, 21600.0)
REAL = {
    "cloudphysics-2h.vscsi.zst": ReadOptions(align_shift=512),
    "hplajw-1week.srt.zst": ReadOptions(),
    "blkreplay-linux-mysql.load.zst": ReadOptions(),
    "blkreplay-linux-webserver-2.load.zst": ReadOptions(dedup_s=1.0),
    "fixture-cydonia-test_cp.csv.zst": ReadOptions(align_shift=512),
}
GENERATED: dict[str, HotSpots | Files] = {"hot": HotSpots(40_000, 3_000, 7300), "files": Files(90)}
HERE = traces.TRACES_FOLDER is not None
#: Relative: writes are known to the second.
CLOSE = 0.01
SPACE_S = 365.25 * 86400


@pytest.fixture(scope="module", params=REAL if HERE else GENERATED)
def workload(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    name, plan = request.param, Plan(intervals_s=INTERVALS_S)
    if HERE:
        return study(str(traces.real(name)), plan, REAL[name])
    traces.generated(name)
    path = stored(tmp_path_factory.mktemp("traces"), GENERATED[name], name)
    return study(str(path), plan, ReadOptions())


class Found(NamedTuple):
    """A schedule over a link, by the plain search."""

    seconds: float
    link: float
    total: float
    lag_s: float
    worst: float


class Search:
    """Update by update, byte by byte of the series: nothing of the product but the replay."""

    def __init__(self, workload: Workload, prices: Prices, terms: Terms) -> None:
        self.workload, self.prices, self.terms = workload, prices, terms
        self.sums: list[float] = [0, *accumulate(workload.writes.bytes.tolist())]
        self.areas: list[float] = [0.0, *accumulate((a + b) / 2 for a, b in pairwise(self.sums))]

    def written(self, at_s: float) -> float:
        at_s = min(max(at_s, 0.0), len(self.sums) - 1.0)
        second = min(int(at_s), len(self.sums) - 2)
        return self.sums[second] + (at_s - second) * (self.sums[second + 1] - self.sums[second])

    def area(self, at_s: float) -> float:
        """The integral of `written`."""
        last = len(self.sums) - 1
        if at_s >= last:
            return self.areas[-1] + (at_s - last) * self.sums[-1]
        second = int(at_s)
        return self.areas[second] + (at_s - second) * (self.sums[second] + self.written(at_s)) / 2

    def one(self, updates: Updates, link: float) -> Found | None:
        """None: the link does not carry it."""
        sizes = updates.sizes(self.terms.kind).tolist()
        ends = [(end - self.workload.first_ns) / NS for end in updates.end_ns.tolist()]
        busy = sum(size / link + self.terms.overhead_s for size in sizes if size)
        if busy > ends[-1]:
            return None
        free = shown = since = exposed = oldest = worst = 0.0
        for size, end in zip(sizes, ends, strict=True):
            free = max(free, end) + (size / link + self.terms.overhead_s if size else 0.0)
            exposed += self.area(free) - self.area(since) - (free - since) * self.written(shown)
            oldest = max(oldest, free - shown)
            worst = max(worst, self.written(free) - self.written(shown))
            shown, since = end, free
        prices, years = self.prices, SPACE_S / self.workload.span_s
        lost = exposed / self.workload.span_s / 2**30 * prices.lost.otherwise * prices.failures
        sent = sum(sizes) / 2**30 * prices.transfer * years
        held = sum(
            max(sum(sizes[k : k + keep]) for k in range(max(len(sizes) - keep, 0) + 1))
            for keep in (self.terms.keep_source, self.terms.keep_destination)
        )
        running = link * 8 / 1e6 * prices.link * 12 + sent + held / 2**30 * prices.space * 12
        return Found(updates.seconds or 0, link, running + lost, oldest, worst)

    def all(self) -> list[Found]:
        """Over links from 8.2 kbit/s on, each 8 % faster than the one before."""
        found: list[Found] = []
        least = float("inf")
        for updates in self.workload.shown():
            if 3.9 * (updates.seconds or 0) > self.workload.span_s:
                continue
            link = 1025.0
            # (A link alone that costs more than all of another cannot be better.)
            while link < 3e9 / 8 and link * 96e-6 < least:
                if (one := self.one(updates, link)) is not None:
                    found.append(one)
                    if self.terms.accepts(one.lag_s, one.worst):
                        least = min(least, one.total)
                link *= 1.08
        return found


def of_schedules(found: Sequence[Choice]) -> list[Choice]:
    return [each for each in found if each.mode == "async"]


def test_no_interval_and_link_is_better(workload: Workload) -> None:
    for lost in ("100", "10000"):
        prices, terms = Prices(lost=parse_loss_price(lost)), Terms(lags_s=())
        search = Search(workload, prices, terms)
        best = advise(of_schedules(candidates(workload, terms, prices))).best
        plain = search.all()
        least = min(plain, key=lambda each: each.total)
        # A step of the link is up to 16 %, of which the optimum loses little.
        assert best.total <= least.total * 1.03, (best, least)
        [same] = [u for u in workload.shown() if u.seconds == best.interval_s]
        priced = search.one(same, best.link)
        assert priced is not None
        assert best.total == pytest.approx(priced.total, rel=CLOSE)
        assert best.lag_s == pytest.approx(priced.lag_s, abs=0.01)
        assert best.worst == pytest.approx(priced.worst, rel=CLOSE)


def test_limits_are_kept_by_the_cheapest_that_keeps_them(workload: Workload) -> None:
    prices = Prices()
    for terms in (Terms(rpo_s=200), Terms(loss_bytes=workload.bytes_written / 20)):
        plain = Search(workload, prices, terms).all()
        best = advise(of_schedules(candidates(workload, terms, prices))).best
        within = [each for each in plain if terms.accepts(each.lag_s, each.worst)]
        assert best.usable == bool(within)
        if within:
            assert terms.accepts(best.lag_s, best.worst)
            # The slowest link within the limits may be just above a step.
            assert best.total <= min(each.total for each in within) * 1.17


def test_the_advice_is_repeated_on_the_link_that_it_advises(workload: Workload) -> None:
    for lost in ("0", "1000", "100000"):
        prices = Prices(lost=parse_loss_price(lost))
        best = advise(candidates(workload, Terms(), prices)).best
        link = parse_rates(rate_words(best.link).replace(" ", ""))
        assert advise(candidates(workload, Terms(link=link), prices)).best == best
