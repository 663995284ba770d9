"""The pages in a real browser, as the person sees them who has to decide from them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from mirrord.analysis.assess import Terms
from mirrord.analysis.prices import Prices
from mirrord.analysis.reports import compare, reduction, risk
from mirrord.analysis.reports.html import page as page_of
from mirrord.analysis.reports.palette import DARK, LIGHT
from mirrord.analysis.reports.plots import Report
from mirrord.schedules.rates import parse_rates
from tests.analysis.browser import DESKTOP, PHONE, chromium, opened
from tests.analysis.studies import two

KINDS = ("reduction", "risk", "compare")
VIEWS: dict[str, dict[str, Any]] = {
    "light": {**DESKTOP, "color_scheme": "light"},
    "dark": {**DESKTOP, "color_scheme": "dark"},
    "phone": {**PHONE, "color_scheme": "light"},
}
#: Texts of a plot and where they are; what is hidden has no size.
TEXTS = """plot => [...plot.querySelectorAll('.xtick text, .ytick text, .legendtext, .xtitle, '
    + '.textpoint text, .annotation-text')].map(each => {
        const box = each.getBoundingClientRect();
        return [each.textContent, box.left, box.top, box.right, box.bottom];
    }).filter(each => each[3] > each[1] && each[0].trim())"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    workloads = two()
    terms = Terms(link=parse_rates("100KiB/s"))
    return {
        "reduction": reduction.report(workloads),
        "risk": risk.report(workloads, terms),
        "compare": compare.report(workloads, terms, Prices()),
    }


@pytest.fixture(scope="module")
def pages(reports: dict[str, Report], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for kind, report in reports.items():
        made[kind] = folder / f"{kind}.html"
        made[kind].write_text(page_of(report, version="1"), encoding="utf-8")
    return made


def overlapping(texts: list[list[Any]]) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other by more than a pixel."""
    found = []
    for number, one in enumerate(texts):
        for other in texts[number + 1 :]:
            across = min(one[3], other[3]) - max(one[1], other[1])
            down = min(one[4], other[4]) - max(one[2], other[2])
            if across > 1.5 and down > 1.5:
                found.append((one[0], other[0]))
    return found


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_readable(
    browser: Browser, pages: dict[str, Path], reports: dict[str, Report], kind: str, view: str
) -> None:
    with opened(browser, pages[kind], **VIEWS[view]) as (page, seen):
        assert seen.complaints == []
        assert seen.requests == [pages[kind].as_uri()]
        wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= window, "the page scrolls sideways"
        plots = page.query_selector_all(".plot")
        assert len(plots) == len(reports[kind].plots())
        for plot, description in zip(plots, reports[kind].plots(), strict=True):
            box = plot.bounding_box()
            assert box is not None and box["width"] >= 0.85 * window * (view == "phone")
            texts = plot.evaluate(TEXTS)
            assert len(texts) >= 4, description.key
            if view != "phone" or description.x.scale != "names":
                turned = [t for t in texts if description.x.scale != "names"]
                assert overlapping(turned) == [], description.key
            for text, left, _, right, _ in texts:
                assert box["x"] - 1 <= left and right <= box["x"] + box["width"] + 1, text
        theme = DARK if view == "dark" else LIGHT
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == _rgb(theme.ground)
        drawn = page.evaluate("document.querySelector('.main-svg').style.background")
        assert drawn == _rgb(theme.ground)


def test_what_decides_is_seen_without_scrolling(browser: Browser, pages: dict[str, Path]) -> None:
    """The total of a year is the number to decide by; scrolled, a row still has its name."""
    edges = """each => [...each.querySelectorAll('thead th, tbody tr:first-child td')].map(
        cell => [cell.textContent, cell.getBoundingClientRect().right])"""
    for view in ("light", "phone"):
        with opened(browser, pages["compare"], **VIEWS[view]) as (page, _):
            table = page.query_selector("section > .scroll")
            assert table is not None
            box = table.bounding_box()
            assert box is not None
            cells = dict(table.evaluate(edges))
            assert cells["total (EUR/year)"] <= box["x"] + box["width"]
            first = "td => td.getBoundingClientRect().left"
            name = table.query_selector("tbody td")
            assert name is not None
            before = name.evaluate(first)
            table.evaluate("each => { each.scrollLeft = 400 }")
            assert name.evaluate(first) == pytest.approx(before, abs=1)


def until(condition: Callable[[], bool]) -> None:
    """Wait for it. (Playwright would evaluate text in the page, which its policy forbids.)"""
    end_s = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.05)


def _rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


def _plot(page: Page, key: str) -> Any:
    plot = page.query_selector(f"#plot-{key}")
    assert plot is not None
    plot.scroll_into_view_if_needed()
    return plot


def test_pointing_at_a_point_says_its_number(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["reduction"], **VIEWS["light"]) as (page, _):
        _plot(page, "transferred")
        place = page.evaluate(
            """() => {
                const plot = document.getElementById('plot-transferred');
                const number = plot.data.findIndex(each => each.name === 'hot');
                const full = plot._fullLayout, box = plot.getBoundingClientRect();
                const line = plot.data[number];
                return [box.left + full.xaxis._offset + full.xaxis.d2p(line.x[2]),
                        box.top + full.yaxis._offset + full.yaxis.d2p(line.y[2]), line.y[2]];
            }"""
        )
        page.mouse.move(place[0], place[1])
        label = page.wait_for_selector("#plot-transferred .hovertext")
        assert label is not None
        said = label.text_content() or ""
        assert said.startswith("hot") and "every 15 min" in said
        number = re.search(r"15 min(\d+\.?\d*)", said)
        assert number is not None and float(number[1]) == pytest.approx(place[2], rel=1e-3)


def test_zooming_and_back(browser: Browser, pages: dict[str, Path]) -> None:
    shown = "() => document.getElementById('plot-transferred')._fullLayout.xaxis.range"
    with opened(browser, pages["reduction"], **VIEWS["light"]) as (page, _):
        box = _plot(page, "transferred").bounding_box()
        whole = page.evaluate(shown)
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=5)
        page.mouse.up()
        until(lambda: page.evaluate(shown)[0] > whole[0] + 0.1)
        zoomed = page.evaluate(shown)
        assert zoomed[1] - zoomed[0] == pytest.approx(0.33 * (whole[1] - whole[0]), rel=0.25)
        page.wait_for_timeout(600)  # or the end of the drag counts as a click too
        page.mouse.dblclick(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.4)
        until(lambda: page.evaluate(shown) == pytest.approx(whole))


def test_a_finger_scrolls_and_buttons_zoom(browser: Browser, pages: dict[str, Path]) -> None:
    shown = "() => document.getElementById('plot-transferred')._fullLayout.xaxis.range"
    with opened(browser, pages["reduction"], **VIEWS["phone"]) as (page, _):
        assert page.evaluate("document.getElementById('plot-transferred').layout.dragmode") is False
        whole = page.evaluate(shown)
        button = page.query_selector("#plot-transferred .modebar-btn[data-val='in']")
        assert button is not None
        button.tap()
        until(lambda: page.evaluate(shown)[0] > whole[0] + 0.01)


def test_light_and_dark_by_the_button(browser: Browser, pages: dict[str, Path]) -> None:
    line = "document.getElementById('plot-transferred').data.find(e => e.name === 'hot').line.color"
    with opened(browser, pages["reduction"], **VIEWS["light"]) as (page, seen):
        assert page.evaluate(line) == LIGHT.series[0]
        page.click("#theme")
        until(lambda: page.evaluate(line) == DARK.series[0])
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == _rgb(DARK.ground)
        assert page.text_content("#theme") == "Light colours"
        page.click("#theme")
        until(lambda: page.evaluate(line) == LIGHT.series[0])
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(200)
        assert page.evaluate(line) == LIGHT.series[0], "what was chosen stays"
        assert seen.complaints == []


@pytest.mark.parametrize("kind", KINDS)
def test_without_scripts_the_words_and_numbers_are_there(
    browser: Browser, pages: dict[str, Path], reports: dict[str, Report], kind: str
) -> None:
    with opened(browser, pages[kind], java_script_enabled=False) as (page, _):
        said = (page.inner_text(".conclusions") or "").replace("\N{NO-BREAK SPACE}", " ")
        for line in reports[kind].conclusions:
            assert line in said
        assert "need JavaScript, which is disabled" in page.inner_text("main")
        for plot in reports[kind].plots():
            rows = page.query_selector_all(f"#figure-{plot.key} tbody tr")
            assert len(rows) == len(plot.table.rows)
            heads = page.query_selector_all(f"#figure-{plot.key} thead th")
            assert [each.text_content() for each in heads] == [
                column.head for column in plot.table.columns
            ]


def test_a_report_has_text_alternatives_and_keyboard_access(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["risk"], **VIEWS["light"]) as (page, _):
        assert page.get_attribute("html", "lang") == "en"
        for plot in page.query_selector_all(".plot"):
            assert plot.get_attribute("role") == "img"
            assert len(plot.get_attribute("aria-label") or "") > 40
        levels = [each.evaluate("e => e.tagName") for each in page.query_selector_all("h1,h2,h3")]
        assert levels.count("H1") == 1
        # What scrolls can be reached by the keyboard.
        for each in page.query_selector_all(".scroll"):
            assert each.get_attribute("tabindex") == "0"


def test_a_name_is_never_markup(
    browser: Browser, reports: dict[str, Report], tmp_path: Path
) -> None:
    name = "</script><script>document.title='taken'</script><b>$x$ & co</b>"
    workloads = [replace(each, name=name) for each in two()[:1]]
    path = tmp_path / "odd.html"
    path.write_text(page_of(reduction.report(workloads), version="1"), encoding="utf-8")
    with opened(browser, path, **VIEWS["light"]) as (page, seen):
        assert seen.complaints == []
        assert page.title() == "How much a mirror would transfer"
        assert name in (page.text_content(".conclusions") or "")
        legend = page.text_content("#plot-transferred .legendtext >> nth=2") or ""
        assert legend.startswith("</script><script>")


def test_the_numbers_can_be_saved(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["reduction"], **VIEWS["light"], accept_downloads=True) as (page, _):
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        with page.expect_download() as waiting:
            page.click("#figure-transferred .csv a")
        saved = waiting.value
        assert saved.suggested_filename == "transferred.csv"
        assert saved.path().read_text(encoding="utf-8").startswith("trace,interval,")
