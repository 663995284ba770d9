"""What the reports say in words: it is what the replay found, and says when that is too little."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirrord.analysis.assess import Terms, assess_all
from mirrord.analysis.cost import advise, candidates
from mirrord.analysis.grids import fixed, scheduled
from mirrord.analysis.numbers import Workload, from_replay
from mirrord.analysis.prices import Prices, parse_loss_price
from mirrord.analysis.replay import replay
from mirrord.analysis.reports import compare, reduction, risk
from mirrord.analysis.reports.common import distinct, slug
from mirrord.analysis.reports.plots import Report
from mirrord.analysis.reports.save import check, save
from mirrord.analysis.study import Plan, study, summed_up
from mirrord.core.errors import IoFailed
from mirrord.schedules.rates import parse_rates
from mirrord.schedules.schedule import parse_schedule
from mirrord.traces.generators import HotSpots, Sequential
from mirrord.traces.model import Batch, Facts
from mirrord.traces.options import ReadOptions
from mirrord.traces.store import TraceWriter
from tests.analysis.studies import BOUNDS_S, MORNING_NS, choices, stored, workload

HOUR = 3600


def studied(
    intervals_s: tuple[float, ...], rules: tuple[str, ...] = (), block: int = 4096
) -> Workload:
    """Hot spots on Monday from 07:00 to 09:01 UTC, by these intervals and schedules."""
    source = HotSpots(40_000, 3_000, 7300)
    facts = replace(source.facts, name="hot", epoch_ns=MORNING_NS)
    by_rule = [
        replace(scheduled(parse_schedule(rule), facts, 0, 7300 * 10**9), label=rule)
        for rule in rules
    ]
    grids = [*map(fixed, intervals_s), *by_rule]
    found = replay(source.batches(), facts, grids, bounds_s=BOUNDS_S, block=block)
    return from_replay(found, facts)


def test_schedules_are_in_the_words_of_every_report() -> None:
    hot = studied((900, HOUR), ("*/20 * * * *", "0 2 * * *"))
    by_rule = hot.updates[2]
    [said] = reduction.conclusions([hot])
    percent = hot.percent(by_rule, "active_map")
    assert f"With '*/20 * * * *' it is {percent:.0f} %, in {len(by_rule)} updates." in said
    assert "The trace is too short for '0 2 * * *', which does not run within it." in said
    found = assess_all(hot, Terms())
    [said] = risk.conclusions(hot, found, Terms())
    assert said.startswith("hot: a synchronous mirror needs") and "updates every 15 min" in said
    assert "With '*/20 * * * *' a link of" in said and "every */20" not in said
    made = risk.report([hot], Terms())
    [plot] = [each for each in made.plots() if each.key == "schedules-at-risk"]
    assert plot.x.names == ("*/20 * * * *", "0 2 * * *")
    assert plot.bars[0].values[0] == pytest.approx(found[2].loss.expected / 2**20)
    [course] = [each for each in made.plots() if each.key == "hot-at-risk"]
    assert "*/20 * * * *" in [line.name for line in course.lines]


def test_schedules_alone_are_enough() -> None:
    hot = studied((), ("*/20 * * * *",))
    [said] = reduction.conclusions([hot])
    assert "less than every interval" not in said and "at its end" not in said
    made = risk.report([hot], Terms())
    assert "updates with '*/20 * * * *' need" in made.conclusions[0]
    for plot in made.plots():
        assert plot.bars or any(len(line.y) for line in plot.lines), f"{plot.key} is empty"


def test_an_interval_longer_than_the_trace_is_not_mixed_up_with_a_schedule() -> None:
    hot = studied((30 * 86400,), ("*/20 * * * *",))
    [said] = reduction.conclusions([hot])
    end = hot.percent(hot.updates[0], "active_map")
    assert end < hot.percent(hot.updates[1], "active_map")
    share = f"{end:.0f}" if end >= 9.95 else f"{end:.1f}"
    assert f"one update at its end transfers {share} %" in said


def test_what_is_saved_by_waiting_is_told_with_what_is_left() -> None:
    hot = studied((900, HOUR))
    [said] = reduction.conclusions([hot])
    found = re.search(r"transfer ([\d.]+) %.*another ([\d.]+) % of that \(([\d.]+) %", said)
    assert found is not None
    before, saved, left = map(float, found.groups())
    assert before * (1 - saved / 100) == pytest.approx(left, abs=1)


def test_the_size_of_blocks_is_the_one_that_was_replayed() -> None:
    assert "The block size is 4 KiB." in reduction.report([studied((900,))]).method[0]
    assert "The block size is 16 KiB." in reduction.report([studied((900,), block=16384)]).method[0]


def test_too_short_for_any_schedule_is_no_advice() -> None:
    moment = workload(Sequential(100, 50, 97), "short")
    [said] = compare.report([moment], Terms(), Prices()).conclusions
    assert "use '" not in said
    assert "the trace lasts only 1 min 3" in said and "too short to judge a schedule" in said
    table = compare.report([moment], Terms(), Prices()).sections[0].table
    assert table is not None
    assert "recommended" not in [row[2] for row in table.rows]


def test_what_is_not_judged_is_named() -> None:
    hot = studied((900, HOUR), ("0 2 * * *",))
    [said] = compare.report([hot], Terms(), Prices()).conclusions
    assert said.endswith("The trace is too short to judge 'every 1 h' and '0 2 * * *'.")


def test_when_no_choice_fits_the_link_the_report_says_so() -> None:
    hot = studied((60, 900, HOUR))
    terms = Terms(link=parse_rates("1KiB/s"))
    [said] = compare.report([hot], terms, Prices()).conclusions
    assert said.startswith(
        "hot: the given link is too slow for every choice that the trace can judge; 'every"
    )
    assert "use '" not in said and "It remains the cheapest" not in said


def test_a_link_that_is_slow_by_day_carries_what_arrives_in_time() -> None:
    # The snapshots of 08:00 and 09:00 go over the fast hours of a link that begins slowly.
    hot = studied((HOUR,))
    [need] = [each.need.rate for each in assess_all(hot, Terms())]
    fast = int(need * 20)
    terms = Terms(link=parse_rates(f"{int(need / 2)}B/s 03:00-07:30, else {fast}B/s"), lags_s=())
    assert not len(assess_all(hot, terms)[0].late_ns)
    [_, hourly] = choices(hot, terms, Prices())
    assert hourly.link > terms.least
    assert hourly.fits, "risk says that no update is late, so the advice must not say otherwise"
    slow = Terms(link=parse_rates(f"{int(need / 2)}B/s"), lags_s=())
    assert [each.fits for each in choices(hot, slow, Prices())] == [False, False]


def test_the_prices_between_which_it_holds_are_amounts() -> None:
    hot = studied((60, 300, 900))
    prices = Prices(lost=parse_loss_price("2000"))
    [said] = compare.report([hot], Terms(), prices).conclusions
    advice = advise(candidates(hot, Terms(), prices))
    assert "(assumed: 2\N{NARROW NO-BREAK SPACE}000)" in said
    found = re.search(r"lost data costs (?:at least )?([\d\N{NARROW NO-BREAK SPACE}.]+)", said)
    assert found is not None
    least = float(found[1].replace("\N{NARROW NO-BREAK SPACE}", ""))
    assert least == pytest.approx(2000 * advice.from_factor, rel=0.05)
    hours = Prices(lost=parse_loss_price("2000 08:00-18:00 Mon-Fri, else 100"))
    [said] = compare.report([hot], Terms(), hours).conclusions
    assert "times the given prices" in said


def test_what_costs_nothing_is_drawn_all_the_same() -> None:
    free = Prices(0, 0, 0, parse_loss_price("0"), 0)
    plots = compare.report([studied((60, 300))], Terms(), free).plots()
    for line in plots[0].lines:
        assert all(float(x) > 0 for x in line.x), "a logarithmic axis has no zero"


def test_the_last_step_is_drawn_to_its_end() -> None:
    hot = studied((900,))
    [plot] = [each for each in risk.report([hot], Terms()).plots() if each.key == "hot-writes"]
    [line] = plot.lines
    assert len(line.x) == len(line.y) and line.y[-1] == line.y[-2]
    moment = workload(Sequential(1, 1, 1), "moment")
    [plot] = risk.report([moment], Terms()).plots()
    assert len(plot.lines[0].x) == 2, "a single bin has a width"


NAMES = ["a b", "a-b", "A.B", "a-b (2)", "日本", "中国", "x" * 60 + "1", "x" * 60 + "2", "", "a b"]


def test_names_that_look_alike_have_files_of_their_own() -> None:
    names = distinct(NAMES)
    assert len(set(names)) == len(set(map(slug, names))) == len(NAMES)
    assert all(re.fullmatch(r"[a-z0-9-]+", slug(name)) for name in names)
    assert names[0] == "a b" and slug(names[0]) == "a-b"


def report_of(names: list[str]) -> Report:
    found = [replace(studied((900,)), name=name) for name in names]
    return risk.report(summed_up(found), Terms())


def test_the_link_that_is_called_needed_is_enough_when_it_is_given_back() -> None:
    for seconds in (60, 300, 900, 1800):
        hot = studied((seconds,))
        [said] = risk.conclusions(hot, assess_all(hot, Terms()), Terms())
        found = re.search(r"updates every .* need ([\d.]+ [kM]bit/s)\.", said)
        assert found is not None, said
        given = Terms(link=parse_rates(found[1].replace(" ", "")))
        [same] = assess_all(hot, given)
        assert not len(same.late_ns), (seconds, found[1])


@pytest.mark.parametrize(("end_s", "told"), [(150, "80.0 KiB"), (65, "at least 80.0 KiB")])
def test_a_loss_that_is_greatest_at_the_end_is_a_lower_limit(end_s: int, told: str) -> None:
    # 40 KiB at the beginning and again a minute later, which arrive with updates at 1 and 2 min:
    # the first after 10 s, in which the trace ends or does not.
    offsets = np.arange(10) * 4096
    at_s = np.repeat([0, 60], 10)
    batch = Batch(
        np.append(at_s, end_s).astype(np.int64) * 10**9,
        np.zeros(21, np.uint32),
        np.append(np.zeros(20), 1).astype(np.uint8),
        np.concatenate((offsets, offsets, [0])),
        np.append(np.full(20, 4096), 512).astype(np.int64),
        np.full(21, -1, np.int64),
    )
    facts = Facts("short", "csv", ("0",))
    made = from_replay(replay([batch], facts, [fixed(60)]), facts)
    terms = Terms(link=parse_rates("4KiB/s"), overhead_s=0)
    [said] = risk.conclusions(made, assess_all(made, terms), terms)
    assert re.search(r"on average, (.*) at worst", said)[1] == told  # type: ignore[index]


def test_two_traces_of_nearly_one_name_are_saved(tmp_path: Path) -> None:
    made = report_of(["web 1", "web-1"])
    names = save(made, tmp_path / "out", version="1")
    assert len(names) == len(set(names)) == len(list((tmp_path / "out").iterdir()))


def test_a_place_is_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(IoFailed, match="cannot be written"):
            check(place)
    check(tmp_path / "new" / "deeper")
    assert not (tmp_path / "new").exists()


def test_only_zero_is_shown_as_zero() -> None:
    from mirrord.analysis.reports.plots import Column
    from mirrord.analysis.reports.tables import text_of

    money = Column("total", "EUR/year", 2)
    assert [text_of(each, money) for each in (0.0, 1e-7, 0.0005, 0.25)] == [
        "0",
        "<0.0001",
        "0.0005",
        "0.25",
    ]
    assert text_of(float(np.float64(0)), money) == "0"


def test_labels_that_would_cover_each_other_are_left_to_the_pointer() -> None:
    # Many choices at nearly one place, as where a trace is short for all of them.
    rules = tuple(f"{minute} 9 * * *" for minute in (1, 2, 3, 4, 5, 6, 7))
    made = compare.report([studied((900,), rules)], Terms(), Prices())
    [plot] = [each for each in made.plots() if each.key == "hot-pareto"]
    said = [side for line in plot.lines for side in line.sides]
    assert None in said
    assert plot.lines[-1].big and plot.lines[-1].sides[0] is not None


def test_a_schedule_that_does_not_run_has_no_bar() -> None:
    hot = studied((900,), ("*/20 * * * *", "0 2 * * *"))
    for made, key in (
        (reduction.report([hot]), "schedules"),
        (risk.report([hot], Terms()), "schedules-at-risk"),
    ):
        [plot] = [each for each in made.plots() if each.key == key]
        runs, does_not = plot.bars[0].values
        assert runs > 0 == does_not
        assert plot.table.rows[1][-1] is None


def test_what_fits_no_link_is_nowhere_called_the_cheapest() -> None:
    terms = Terms(link=parse_rates("1KiB/s"))
    for plot in compare.report([studied((60, 900))], terms, Prices()).plots():
        assert "costs least" not in plot.caption
        assert not any("cheapest" in line.name for line in plot.lines)


def test_a_mode_of_live_mirrors_is_said_to_be_for_images() -> None:
    hot = studied((60, 900))
    dear = Prices(lost=parse_loss_price("1000000000"))
    made = compare.report([hot], Terms(), dear)
    [said] = made.conclusions
    assert said.startswith("hot: use 's")
    usable = min(
        (e for e in choices(hot, Terms(), dear) if e.mode == "async"), key=lambda e: e.total
    )
    assert "a mode of live mirrors, which are for images and block devices: " in said
    assert f"for other volumes use '{usable.name}'" in said
    table = made.sections[0].table
    assert table is not None
    verdicts = {str(row[0]): row[2] for row in table.rows}
    assert verdicts[usable.name] == "best schedule"
    cheap = Prices(lost=parse_loss_price("1"))
    assert "live mirrors" not in compare.report([hot], Terms(), cheap).conclusions[0]


def test_the_link_that_is_taken_where_none_is_given_is_told() -> None:
    # A block an hour: half a byte a second would do, and a copy two hours old.
    rare = workload(Sequential(5, 5, 5 * HOUR), "rare")
    [hourly] = [e for e in assess_all(rare, Terms()) if e.updates.seconds == HOUR]
    assert hourly.need.rate < 1024 and hourly.lag.worst_s < HOUR + 10
    assert (
        "the slowest link, at least 1.00 KiB/s, on which" in risk.report([rare], Terms()).method[0]
    )


def test_the_busiest_minute_is_told_if_it_decides(tmp_path: Path) -> None:
    # A block a second for an hour, and in 45 s of it a burst that outweighs all else.
    times = np.arange(3600, dtype=np.int64) * 10**9
    burst = 1800 * 10**9 + np.arange(45_000, dtype=np.int64) * 10**6
    when = np.sort(np.concatenate([times, burst]))
    count = len(when)
    offset = np.arange(count, dtype=np.int64) * 4096
    columns = np.zeros(count, np.uint32), np.zeros(count, np.uint8), offset
    batch = Batch(when, *columns, np.full(count, 4096, np.int64), np.full(count, -1, np.int64))
    path = tmp_path / "burst.parquet"
    with TraceWriter(path, Facts("burst", "none", ("v",)), durable=False) as writer:
        writer.write(batch)
    plan = Plan(intervals_s=(60, 300), bounds_s=BOUNDS_S, sensitivity=True)
    found = study(str(path), plan, ReadOptions())
    assert found.quieter is not None and found.busiest_ns is not None
    begin, end = (at / 10**9 for at in found.busiest_ns)
    assert begin <= 1800 and 1845 <= end == begin + 60
    assert found.quieter.bytes_written == (3600 - 60) * 4096
    made = compare.report([found], Terms(), Prices())
    [said] = made.conclusions
    assert re.search(r"Without the busiest minute \(29 min 4\d s after the start: 176 MiB of", said)
    assert re.search(r"it would be '.*' over .*, at [\d.]+ EUR: check that it is typical\.", said)
    alone = compare.report([found.quieter], Terms(), Prices())
    [rest], [without] = (json.loads(json.dumps(each.data))["traces"] for each in (made, alone))
    assert rest["without_busiest_minute"]["recommended"] == without["recommended"]
    assert rest["without_busiest_minute"]["recommended_link"] == without["recommended_link"]
    assert rest["recommended_link"] > without["recommended_link"]
    even = study(str(stored(tmp_path, Sequential(7200, 600, 7200), "even")), plan, ReadOptions())
    assert "the advice is the same" in compare.report([even], Terms(), Prices()).conclusions[0]
    moment = stored(tmp_path, Sequential(100, 50, 97), "moment")
    assert study(str(moment), plan, ReadOptions()).quieter is None
