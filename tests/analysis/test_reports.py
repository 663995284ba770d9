"""What reports consist of: numbers in their exact form, tables, words, pictures, or nothing."""

from __future__ import annotations

import csv
import io
import json
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mirrord.analysis.assess import Terms, assess_all
from mirrord.analysis.numbers import Workload
from mirrord.analysis.prices import Prices
from mirrord.analysis.reports import compare, paper, reduction, risk, tables
from mirrord.analysis.reports.html import page
from mirrord.analysis.reports.images import pictures
from mirrord.analysis.reports.palette import DARK, LIGHT, Theme
from mirrord.analysis.reports.plots import Column, Plot, Report, Table
from mirrord.analysis.reports.save import save, text
from mirrord.core.errors import IoFailed, NoSpace
from mirrord.schedules.rates import parse_rates
from mirrord.traces.generators import Files, HotSpots, LogAndDatabase
from tests.analysis.studies import stored, two, workload

KINDS = ("reduction", "risk", "compare")


@pytest.fixture(scope="module")
def workloads() -> list[Workload]:
    return two()


@pytest.fixture(scope="module")
def reports(workloads: list[Workload]) -> dict[str, Report]:
    return {
        "reduction": reduction.report(workloads),
        "risk": risk.report(workloads, Terms()),
        "compare": compare.report(workloads, Terms(), Prices()),
    }


def test_reduction_json_has_exactly_its_form() -> None:
    source = Files(30)
    document = json.loads(json.dumps(reduction.report([workload(source, "files")]).data))
    assert list(document) == ["traces"]
    [trace] = document["traces"]
    assert list(trace) == ["name", "blocks_written", "intervals"]
    assert trace["name"] == "files"
    assert trace["blocks_written"] == 30 * 50 * 16
    seconds = [each["seconds"] for each in trace["intervals"]]
    assert seconds == [60, 300, 900, 1800, 3600, 21600, 43200, 86400]
    assert all(type(each) is int for each in seconds)
    for each in trace["intervals"]:
        assert list(each) == ["seconds", "trace_covers_it", "percent"]
        assert each["trace_covers_it"] is (each["seconds"] <= 1800)
        assert list(each["percent"]) == ["update_in_place", "active_map", "no_active_map"]
    known = source.share(60)
    assert trace["intervals"][0]["percent"]["active_map"] == pytest.approx(100 * known.active_map)
    assert trace["intervals"][0]["percent"]["update_in_place"] == pytest.approx(
        100 * known.update_in_place
    )


def test_the_average_over_traces_is_the_mean_of_their_percentages(
    workloads: list[Workload],
) -> None:
    percents = [each.percent(each.updates[2], "active_map") for each in workloads]
    assert abs(percents[0] - percents[1]) > 1, "weighed by their blocks it would be another"
    percent = reduction.mean_percent(workloads, 900, "active_map")
    assert percent == pytest.approx(sum(percents) / 2)
    said = reduction.conclusions(workloads)[-1]
    assert said.startswith("On average over 2 traces, updates every 15 min transfer")
    assert said.endswith("(mean of the percentages; the paper's twelve file systems: 50 %).")


def test_the_paper_is_quoted_as_it_is_printed() -> None:
    # Section 4.1, Table 1 and Figures 2 and 3.
    assert paper.NAME == "SnapMirror paper (12 file systems on 4 servers)"
    assert len(paper.TABLE_1) == len(paper.AFTER_A_DAY) == 12
    [day] = [each for each in paper.FIGURE_2 if each.seconds == paper.DAY_S]
    assert (min(paper.AFTER_A_DAY), max(paper.AFTER_A_DAY)) == (day.low, day.high)
    day_long = workload(HotSpots(40_000, 3_000, 90_000), "day")
    [transferred] = [e for e in reduction.report([day_long]).plots() if e.key == "transferred"]
    assert transferred.reference is not None
    assert sorted(transferred.reference.points) == sorted((1440, y) for y in paper.AFTER_A_DAY)
    [mapped] = [e for e in reduction.report([day_long]).plots() if e.key == "active-map"]
    assert "10 of 12 file systems save nothing without it" in mapped.caption


def test_intervals_longer_than_a_trace_are_not_drawn(reports: dict[str, Report]) -> None:
    [plot] = [each for each in reports["reduction"].plots() if each.key == "transferred"]
    hot, files, _ = plot.lines
    assert hot.x == [1, 5, 15, 30, 60]  # 2 h
    assert files.x == [1, 5, 15, 30, 60]  # 90 min
    assert plot.x.low is not None and plot.x.low < 1
    assert plot.x.high is not None and plot.x.high < 100


def test_the_paper_is_drawn_beside(reports: dict[str, Report]) -> None:
    [plot] = [each for each in reports["reduction"].plots() if each.key == "transferred"]
    assert plot.reference is not None
    assert [(each.x, each.low, each.high) for each in plot.reference.ranges] == [
        (1, None, 90),
        (15, 20, 70),
    ]
    assert plot.reference.average_x == (15, 60)
    assert plot.reference.average_y == (50, 42)
    [freed] = [each for each in reports["reduction"].plots() if each.key == "written-deleted"]
    assert freed.bars[1].values[2:] == [float(each.freed) for each in paper.TABLE_1]


def test_the_conclusion_in_words() -> None:
    # 100 pages written 20 times in each minute: 5 % of them and a log of 64 blocks.
    database = workload(LogAndDatabase(120), "db")
    [said] = reduction.conclusions([database])
    percent = [database.percent(each, "active_map") for each in database.updates]
    assert said.startswith(f"db: updates every 15 min transfer {percent[2]:.1f} % of what a")
    assert f"every 1 h saves another {100 * (1 - percent[4] / percent[2]):.1f} %" in said


def test_the_words_say_where_the_link_saturates() -> None:
    hot = workload(HotSpots(40_000, 3_000, 7300), "hot", dated=True)
    need = [
        assess_all(replace(hot, updates=(each,)), Terms())[0].need.rate for each in hot.shown()[:2]
    ]
    # Enough for 5 min, too little for 1 min.
    rate = f"{int((need[0] + need[1]) / 2)}B/s"
    terms = Terms(link=parse_rates(rate), overhead_s=0)
    [said] = risk.conclusions(hot, assess_all(hot, terms), terms)
    assert "At 1 min the link saturates, first at Mon 2024-01-01 07:" in said
    wide = Terms(link=parse_rates("1GiB/s"), overhead_s=0)
    [said] = risk.conclusions(hot, assess_all(hot, wide), wide)
    assert said.endswith("The link carries every interval: no update is late.")
    narrow = Terms(link=parse_rates("4KiB/s"), overhead_s=0)
    [said] = risk.conclusions(hot, assess_all(hot, narrow), narrow)
    assert "At 30 min and below the link saturates" in said


def test_what_is_doubtful_is_said(workloads: list[Workload]) -> None:
    odd = replace(workloads[0], warnings=("it was recorded twice",))
    for made in (
        reduction.report([odd]),
        risk.report([odd], Terms()),
        compare.report([odd], Terms(), Prices()),
    ):
        assert made.warnings == ("hot: it was recorded twice",)
        assert "hot: it was recorded twice" in text(made)
        assert "hot: it was recorded twice" in page(made, version="1")


@pytest.mark.parametrize("kind", KINDS)
def test_every_plot_has_its_numbers_in_its_table(kind: str, reports: dict[str, Report]) -> None:
    for plot in reports[kind].plots():
        rows = list(csv.reader(io.StringIO(tables.csv_of(plot.table))))
        assert rows[0] == [column.head for column in plot.table.columns]
        assert len(rows) == len(plot.table.rows) + 1 > 1
        numbers = {float(cell) for row in rows[1:] for cell in row if _is_number(cell)}
        for bars in plot.bars:
            assert {value for value in bars.values if value} <= numbers, plot.key
        if plot.x.scale == "log" and not plot.key.endswith("pareto"):
            for line in plot.lines:
                for value in line.y:
                    # (a logarithmic axis has no zero: the least is drawn for it; ages are in min)
                    assert any(abs(value - n) <= 1e-4 + 1e-9 * n for n in numbers), plot.key


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_numbers_for_people_and_for_machines() -> None:
    table = Table(
        (Column("name"), Column("size", "MiB", 2), Column("count")),
        (("a,b", 1234.5678, 1_000_000), ("c", None, 0), ("d", 0.00123, 5)),
    )
    assert tables.csv_of(table) == (
        'name,size (MiB),count\r\n"a,b",1234.5678,1000000\r\nc,,0\r\nd,0.00123,5\r\n'
    )
    thin = "\N{NARROW NO-BREAK SPACE}"
    assert tables.text_of(1234.5678, table.columns[1]) == f"1{thin}234.57"
    assert tables.text_of(0.00123, table.columns[1]) == "0.001"
    assert tables.text_of(None, table.columns[1]) == "\N{EN DASH}"
    lines = tables.plain_of(table).splitlines()
    assert lines[0].split() == ["name", "size", "(MiB)", "count"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_becomes_files(kind: str, reports: dict[str, Report], tmp_path: Path) -> None:
    names = save(reports[kind], tmp_path / "new" / "out", version="1")
    out = tmp_path / "new" / "out"
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert json.loads((out / f"{kind}.json").read_text()) == json.loads(
        json.dumps(reports[kind].data)
    )
    for plot in reports[kind].plots():
        png = (out / f"{plot.key}.png").read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", png[16:24])
        assert width >= 1000 and height >= 600
        root = ElementTree.parse(out / f"{plot.key}.svg").getroot()
        assert root.tag.endswith("svg")
        assert (out / f"{plot.key}.csv").read_bytes() == tables.csv_of(plot.table).encode()
    said = (out / f"{kind}.txt").read_text()
    for line in reports[kind].conclusions:
        assert line in said


def test_the_same_plot_gives_the_same_pictures(reports: dict[str, Report]) -> None:
    plot = reports["compare"].plots()[0]
    once = pictures(plot)
    assert once == pictures(plot)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_ground(theme: Theme) -> None:
    def contrast(colour: str, ground: str) -> float:
        light, dark = sorted((_luminance(colour), _luminance(ground)), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    # WCAG 2.1: 4.5 for text, 3 for what is drawn.
    for ground in (theme.ground, theme.panel):
        assert contrast(theme.ink, ground) >= 7
        assert contrast(theme.soft, ground) >= 4.5
        assert contrast(theme.accent, ground) >= 4.5
    for colour in theme.series:
        assert contrast(colour, theme.ground) >= 3
    assert len(set(theme.series)) == 8


@contextmanager
def small_place(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.platform
def test_a_full_disk_leaves_what_was_there(reports: dict[str, Report], tmp_path: Path) -> None:
    with small_place(tmp_path / "small", "5100k") as place:
        (place / "out").mkdir()
        (place / "out" / "reduction.json").write_text("from before")
        with pytest.raises(NoSpace, match="no space for the report") as caught:
            save(reports["reduction"], place / "out", version="1")
        assert "--out" in caught.value.hint
        assert [path.name for path in (place / "out").iterdir()] == ["reduction.json"]
        assert (place / "out" / "reduction.json").read_text() == "from before"
        with pytest.raises(NoSpace):
            save(reports["reduction"], place / "another", version="1")
        assert not (place / "another").exists()


def test_a_place_that_is_none(reports: dict[str, Report], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IoFailed, match="cannot be written"):
        save(reports["reduction"], tmp_path / "file", version="1")


def test_ended_halfway_nothing_is_left(
    reports: dict[str, Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    seen: list[str] = []

    def stop(plot: Plot) -> dict[str, bytes]:
        seen.append(plot.key)
        if len(seen) == 2:
            raise Ended
        return pictures(plot)

    monkeypatch.setattr("mirrord.analysis.reports.save.pictures", stop)
    with pytest.raises(Ended):
        save(reports["reduction"], tmp_path / "out", version="1")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["plotly", "matplotlib"])
def test_a_missing_package_is_one_clear_line(package: str, tmp_path: Path) -> None:
    path = stored(tmp_path, Files(3), "files")
    code = f"""
        import sys
        sys.modules["{package}"] = None
        from mirrord.cli.main import run
        sys.exit(run(["analyze", "reduction", "{path}", "--out", "{tmp_path}/out"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 1
    error, hint = done.stderr.strip().splitlines()
    assert error == f"error: the package '{package}' is not installed: the analysis needs it"
    assert hint == "hint: Install the extra: pip install 'mirrord[analysis]'."
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
