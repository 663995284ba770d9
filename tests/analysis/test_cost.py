"""The cost model: prices by the hour, the choices, what is advised and for how long it holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.analysis import cost
from mirrord.analysis.assess import Terms
from mirrord.analysis.cost import Choice, advise, pareto
from mirrord.analysis.grids import NS, fixed
from mirrord.analysis.links import steps
from mirrord.analysis.numbers import Workload, from_replay
from mirrord.analysis.prices import LossPrice, Prices, parse_loss_price
from mirrord.analysis.replay import replay
from mirrord.analysis.reports.common import rate_words
from mirrord.analysis.results import Writes
from mirrord.core.errors import Refused, UsageError
from mirrord.schedules.rates import parse_rates
from mirrord.traces.generators import Sequential
from tests.analysis.studies import choices

GIB = 1 << 30
MONDAY_NS = 1_704_067_200 * NS


def sequential(blocks: int = 600) -> Workload:
    """A block of 4 KiB every second for two hours."""
    source = Sequential(7200, blocks, 7200)
    grids = [fixed(seconds) for seconds in (60, 900, 3600, 86400)]
    bounds_s = (5, 10, 60, 70, 100)
    found = replay(source.batches(), source.facts, grids, bounds_s=bounds_s)
    return from_replay(found, source.facts)


def price(amount: float) -> LossPrice:
    return parse_loss_price(f"{amount:.9f}")


def test_prices_by_the_hour() -> None:
    found = parse_loss_price("2000 08:00-18:00 Mon-Fri, 7.5 12:00-13:00 Sat,Sun, else 100")
    assert found.at(MONDAY_NS + 9 * 3600 * NS) == 2000
    assert found.at(MONDAY_NS + 19 * 3600 * NS) == 100
    assert found.at(MONDAY_NS + (5 * 24 + 12) * 3600 * NS) == 7.5
    hours = Writes(0, 1800 * NS, np.ones(7 * 48, dtype=np.int64))
    by_bin = found.of_bins(hours, MONDAY_NS)
    assert by_bin.tolist() == [found.at(MONDAY_NS + k * 1800 * NS) for k in range(7 * 48)]
    berlin = parse_loss_price("5 08:00-09:00, else 1", zone="Europe/Berlin")
    assert berlin.at(MONDAY_NS + 7 * 3600 * NS) == 5


@pytest.mark.parametrize(
    "text", ["", "much", "10 08:00-18:00", "10, 20", "10 8-9, 20 08:30-10:00, else 1", "else 1 Mon"]
)
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(UsageError):
        parse_loss_price(text)


def test_costs_are_computed_from_the_workload() -> None:
    trace = sequential()
    prices = Prices(link=2, transfer=3, space=5, lost=price(7 * GIB / 4096), failures=4)
    found = {each.name: each for each in choices(trace, Terms(lags_s=()), prices)}
    assert list(found) == ["synchronous", "every 1 min", "every 15 min", "every 1 h"]
    sync, minute = found["synchronous"], found["every 1 min"]
    # The link is the next step of the series: 33 kbit/s.
    assert (sync.need, sync.link) == (4096, 4125)
    assert sync.expected == sync.worst == sync.loss_cost == sync.space_cost == 0
    assert sync.link_cost == pytest.approx(4125 * 8 / 1e6 * 2 * 12)
    assert sync.transfer_cost == pytest.approx(4096 * 365.25 * 86400 / GIB * 3, rel=1e-3)
    # Nothing is written twice within 10 min: a minute sends all, in 59 s besides the second that
    # each update takes. A lost byte costs so much that a faster link pays: ten times the need.
    assert minute.need == pytest.approx(60 * 4096 / 59)
    assert minute.link == steps(1, 10 * 60 * 4096 / 59)[-1]
    took_s = 1 + 60 * 4096 / minute.link
    assert minute.lag_s == pytest.approx(60 + took_s)
    assert minute.expected == pytest.approx((30 + took_s) * 4096, rel=0.02)
    assert minute.loss_cost == pytest.approx((30 + took_s) * 7 * 4, rel=0.02)
    assert minute.link_cost == pytest.approx(minute.link * 8 / 1e6 * 2 * 12)
    # Two snapshots at the source, ten at the destination, a minute's writes each.
    assert minute.space == (2 + 10) * 60 * 4096
    # In an hour the 600 blocks are written six times.
    assert found["every 1 h"].sent == pytest.approx(2 * 600 * 4096 / trace.span_s)


def test_what_is_lost_costs_by_the_hour_at_which_it_was_written() -> None:
    trace = replace(sequential(), calendar_ns=MONDAY_NS + 7 * 3600 * NS)
    # Worth something only from 08:00 on, the second hour of the trace.
    dear = parse_loss_price("1000 08:00-18:00, else 0")
    even = parse_loss_price("1000")
    by_hour = choices(trace, Terms(lags_s=()), Prices(lost=dear))[1]
    always = choices(trace, Terms(lags_s=()), Prices(lost=even))[1]
    assert by_hour.expected == always.expected
    assert by_hour.loss_cost == pytest.approx(always.loss_cost / 2, rel=0.02)


def test_semi_sync_loses_what_waits() -> None:
    trace = sequential()
    burst = np.zeros(100, dtype=np.int64)
    burst[50] = 10_000
    # (Spread over its second, the burst has ten seconds.)
    bursty = replace(trace, writes=Writes(0, NS, burst, links={9: 1000}))
    terms = Terms(lags_s=(9.0,))
    # A faster link loses less, but where lost data cost nothing the slowest one is cheapest.
    free = Prices(lost=price(0))
    [_, bounded] = choices(replace(bursty, updates=()), terms, free)
    assert bounded.need == pytest.approx(1000)
    assert bounded.link == 1025
    # What comes in a second comes at its beginning, and is sent as fast as the link can.
    assert bounded.worst == 10_000
    assert bounded.expected == pytest.approx(10_000**2 / 2 / 1025 / 100)
    assert bounded.lag_s == 9
    # On a link for the peak, too, something is on the way; a synchronous mirror loses less there.
    bursty = replace(bursty, writes=replace(bursty.writes, busiest=10_000), updates=())
    dear = choices(bursty, terms, Prices(lost=price(1e12)))
    assert dear[1].link == dear[0].link == steps(10_000, 10_000)[0]
    assert dear[1].worst == 10_000 and 0 < dear[1].expected < bounded.expected
    assert advise(dear).best is dear[0]


def test_what_waits_at_the_end_of_the_trace_is_lost_too() -> None:
    burst = np.zeros(100, dtype=np.int64)
    burst[99] = 10_240
    bursty = replace(sequential(), updates=(), writes=Writes(0, NS, burst, links={9: 1024}))
    terms = Terms(lags_s=(9.0,), link=parse_rates("1025B/s"))
    [_, bounded] = choices(bursty, terms, Prices())
    assert bounded.fits and bounded.worst == 10_240
    # The last second's bytes wait, half of them on average, until they are sent after 10 s.
    assert bounded.expected == pytest.approx(10_240**2 / 2 / 1025 / 100)


def test_expensive_data_lead_to_short_intervals_and_cheap_data_to_long_ones() -> None:
    trace = sequential()

    def best(amount: float) -> str:
        return advise(choices(trace, Terms(), Prices(lost=price(amount)))).best.name

    assert best(0) == "every 15 min"  # two hours are too short to judge an hour by
    assert best(1e12) == "synchronous"


def test_what_the_link_does_not_carry_is_not_advised() -> None:
    trace = sequential()
    terms = Terms(link=parse_rates("3KiB/s"), lags_s=())
    found = choices(trace, terms, Prices(lost=price(1e12)))
    assert [each.fits for each in found] == [False, False, True, True]
    assert advise(found).best.name == "every 15 min"
    nothing_fits = [replace(each, fits=False) for each in found]
    assert advise(nothing_fits).best.need == min(each.need for each in found[:-1])


def choice(running: float, loss: float, number: int) -> Choice:
    return Choice(
        name=str(number),
        mode="async",
        interval_s=1.0,
        link=1.0,
        need=1.0,
        late=0,
        sent=1.0,
        expected=loss,
        worst=loss,
        lag_s=1.0,
        at_least=False,
        space=0.0,
        fits=True,
        accepted=True,
        sure=True,
        link_cost=running,
        transfer_cost=0.0,
        space_cost=0.0,
        loss_cost=loss,
    )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=9),
    st.floats(0.01, 20),
)
def test_it_stays_the_cheapest_between_the_two_factors(
    pairs: list[tuple[int, int]], factor: float
) -> None:
    found = [choice(a, b, number) for number, (a, b) in enumerate(pairs)]
    advice = advise(found)
    best = advice.best
    assert best.total == min(each.total for each in found)
    at_factor = min(each.running_cost + factor * each.loss_cost for each in found)
    of_best = best.running_cost + factor * best.loss_cost
    if advice.from_factor < factor < advice.to_factor:
        assert of_best == pytest.approx(at_factor)
    elif factor < advice.from_factor * 0.999 or factor > advice.to_factor * 1.001:
        assert of_best > at_factor
    beaten = {
        each.name
        for each in found
        for other in found
        if other.running_cost <= each.running_cost
        and other.expected <= each.expected
        and (other.running_cost, other.expected) != (each.running_cost, each.expected)
    }
    places = {(e.running_cost, e.expected) for e in found if e.name not in beaten}
    assert [(e.running_cost, e.expected) for e in pareto(found)] == sorted(places)


def test_a_trace_without_writes_has_no_report() -> None:
    source = Sequential(10, 5, 10)
    [batch] = source.batches()
    reads = replace(batch, op=np.ones(10, dtype=np.uint8))
    with pytest.raises(Refused, match="no write"):
        from_replay(replay([reads], source.facts), source.facts)


def test_a_recorded_trace_has_no_interval_below_its_resolution() -> None:
    source = Sequential(7200, 600, 7200)
    facts = replace(source.facts, notes={"resolution_s": "300"})
    grids = [fixed(seconds) for seconds in (60, 300, 900)]
    found = from_replay(replay(source.batches(), facts, grids), facts)
    assert [each.seconds for each in found.updates] == [300, 900]
    [warning] = found.warnings
    assert "recorded every 5 min" in warning and "(1 min)" in warning


def test_what_a_trace_is_too_short_for_is_not_advised() -> None:
    # Two hours: half an hour can be judged, an hour cannot.
    source = Sequential(7200, 600, 7200)
    found = from_replay(
        replay(source.batches(), source.facts, [fixed(1800), fixed(3600)]), source.facts
    )
    half, hour = choices(found, Terms(lags_s=()), Prices(lost=price(0)))[1:]
    assert (half.sure, hour.sure) == (True, False)
    assert hour.total < half.total
    assert advise([half, hour]).best is half
    assert advise([hour]).best is hour


def test_links_are_steps_of_a_tenth_that_are_read_as_they_are_printed() -> None:
    found = steps(1, 1e9)
    assert found[0] == 1025
    ratios = [b / a for a, b in pairwise(found)]
    assert max(ratios) < 1.16 and min(ratios) > 1.06
    for rate in found:
        assert parse_rates(rate_words(rate).replace(" ", "")).otherwise == rate
    assert [steps(rate, rate)[0] for rate in found] == found
    assert steps(1025.5, 1025.5) == [1138]


def test_what_is_advised_is_accepted_when_it_is_given_back() -> None:
    trace = sequential()
    for amount in (0.0, 1e3, 1e6, 1e9):
        prices = Prices(lost=price(amount))
        best = advise(cost.candidates(trace, Terms(), prices)).best
        given = Terms(link=parse_rates(rate_words(best.link).replace(" ", "")))
        assert advise(cost.candidates(trace, given, prices)).best == best


def test_a_given_link_is_priced_at_its_fastest_hours() -> None:
    trace = sequential()
    for text, rate in (
        ("1MiB/s", 1 << 20),
        ("1MiB/s 08:00-10:00, else 4MiB/s", 4 << 20),
        ("1MiB/s 08:00-10:00, else unlimited", None),
    ):
        found = choices(trace, Terms(link=parse_rates(text)), Prices(link=3))
        assert {each.link for each in found} == {rate or float("inf")}
        [paid] = {each.link_cost for each in found}
        assert paid == pytest.approx((rate or 0) * 8 / 1e6 * 3 * 12)


def test_the_age_of_the_copy_and_the_loss_have_limits() -> None:
    trace = sequential()
    free = Prices(lost=price(0))

    def best(**limits: float) -> Choice:
        found = cost.candidates(trace, Terms(**limits), free)  # type: ignore[arg-type]
        return advise([each for each in found if each.mode == "async"]).best

    assert best().name == "every 15 min"
    within = best(rpo_s=100)
    assert within.name == "every 1 min" and 60 < within.lag_s <= 100
    assert best(rpo_s=70).link > within.link
    assert best(loss_bytes=80 * 4096).worst <= 80 * 4096
    assert not best(rpo_s=0).usable
    none_lost = advise(cost.candidates(trace, Terms(rpo_s=0, loss_bytes=0), free)).best
    assert (none_lost.name, none_lost.usable) == ("synchronous", True)
    beyond = Terms(link=parse_rates("3KiB/s"), rpo_s=5, lags_s=())
    assert not advise(cost.candidates(trace, beyond, free)).best.usable


def test_the_longest_bound_that_is_accepted_is_compared() -> None:
    terms = Terms(rpo_s=5.0, lags_s=(10.0, 60.0))
    found = choices(sequential(), terms, Prices())
    bounds = [each.name for each in found if each.mode == "semi-sync"]
    assert bounds == ["semi-sync, 5.0 s", "semi-sync, 10 s", "semi-sync, 1 min"]
    assert [each.accepted for each in found[:4]] == [True, True, False, False]
    without = choices(sequential(), replace(terms, lags_s=()), Prices())
    assert not any(each.mode == "semi-sync" for each in without)


def test_a_bound_is_judged_by_itself_and_not_by_what_a_slow_link_makes_of_it() -> None:
    # Two hours over a link of a quarter of the load: at the end the backlog is hours long.
    slow = Terms(link=parse_rates("1025B/s"), lags_s=(60.0,))
    found = choices(sequential(), slow, Prices())[1]
    assert not found.fits and found.lag_s > 7200 and found.sure


def test_what_costs_the_same_is_a_tie() -> None:
    found = [choice(100, 0, 1), choice(50, 50.5, 2), choice(50, 52, 3)]
    advice = advise(found)
    assert advice.best is found[0] and advice.ties == (found[1],)
    assert advise([found[2], choice(1, 1, 4)]).ties == ()
