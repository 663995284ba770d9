"""`mirrord analyze` as people call it: files, words, JSON, and one clear line for what is wrong."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirrord.cli.main import run
from mirrord.traces.generators import Files, HotSpots, Sequential
from mirrord.traces.model import Batch, Op
from mirrord.traces.store import TraceWriter
from tests.analysis.studies import stored
from tests.support.traces import TRACES_FOLDER, generated, real

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return stored(tmp_path, Files(90), "files")


@pytest.fixture
def hot(tmp_path: Path) -> Path:
    return stored(tmp_path, HotSpots(40_000, 3_000, 7300), "hot", dated=True)


def as_json(capsys: Captured, *words: str) -> dict[str, Any]:
    status = run(["analyze", *words, "--json"])
    out, error = capsys.readouterr()
    assert status == 0, error
    document: dict[str, Any] = json.loads(out)
    return document


def refusal(capsys: Captured, *words: str, status: int = 2) -> tuple[str, str]:
    assert run(["analyze", *words]) == status
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")
    return error, hint


@pytest.mark.parametrize("kind", ["reduction", "risk", "compare"])
def test_a_report_is_made(
    kind: str, hot: Path, files: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "out"
    assert run(["analyze", kind, str(hot), str(files), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "hot: " in said and "files: " in said
    names = {path.name for path in out.iterdir()}
    assert {f"{kind}.html", f"{kind}.json", f"{kind}.txt"} <= names
    assert f"Report: {out}/{kind}.html, and {len(names) - 1} files beside it" in said
    endings = [Path(name).suffix for name in names]
    assert endings.count(".png") == endings.count(".svg") >= 4
    assert endings.count(".csv") >= endings.count(".png")


def test_analyze_reduction_gives_the_known_percentages(
    files: Path, tmp_path: Path, capsys: Captured
) -> None:
    found = as_json(capsys, "reduction", str(files), "--out", str(tmp_path / "out"))
    on_disk = json.loads((tmp_path / "out" / "reduction.json").read_text())
    assert found["traces"] == on_disk["traces"]
    assert found["status"] == "done" and "reduction.html" in found["files"]
    assert sorted(found["files"]) == sorted(p.name for p in (tmp_path / "out").iterdir())
    [trace] = on_disk["traces"]
    for each in trace["intervals"]:
        if each["seconds"] <= 300:
            known = Files(90).share(each["seconds"])
            assert each["percent"]["active_map"] == pytest.approx(100 * known.active_map)


def test_a_report_says_how_it_was_made(hot: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    words = ["compare", str(hot), "--intervals", "5m,15m", "--price-link", "2"]
    words += ["--schedule", "*/20 * * * *", "--schedule", "hourly"]
    made_by = as_json(capsys, *words, "--out", str(out))["provenance"]
    assert shlex.split(made_by["command"])[:4] == ["mirrord", "analyze", "compare", str(hot)]
    assert "--schedule '*/20 * * * *' --schedule hourly" in made_by["command"]
    [file] = made_by["files"]
    assert file["path"] == str(hot) and file["bytes"] == hot.stat().st_size
    assert (made_by["options"]["price_link"], made_by["options"]["failures"]) == (2.0, 0.5)
    assert json.loads((out / "compare.json").read_text())["provenance"] == made_by
    assert made_by["command"] in (out / "compare.txt").read_text()
    source = tmp_path / "t.csv"
    source.write_text("0,h,0,Write,0,4096,26\n600000000000,h,0,Write,0,4096,26\n")
    read = ["--dedup", "1.5s", "--skip-bad", "--format", "msr", "--volume", "h-0"]
    foreign = as_json(capsys, "reduction", str(source), *read)["provenance"]
    given = shlex.split(foreign["command"])
    assert sorted(given[4:]) == sorted(read) and foreign["options"]["dedup"] == "1.5s"
    again = as_json(capsys, *shlex.split(made_by["command"])[2:])
    assert again["provenance"]["command"] == made_by["command"]
    assert again["traces"] == json.loads((out / "compare.json").read_text())["traces"]


def test_a_date_that_a_wrong_unit_made_is_none(tmp_path: Path, capsys: Captured) -> None:
    source = tmp_path / "t.csv"
    source.write_text("".join(f"1,W,{n * 4096},4096,{1577808000000000 + n}\n" for n in range(9)))
    read = ["--time-unit", "s", "--format", "alibaba"]
    for command in ("reduction", "risk", "compare", "modes"):
        found = as_json(capsys, command, str(source), *read, "--out", str(tmp_path / "out"))
        assert found["status"] == "done"
    merged = str(tmp_path / "merged.parquet")
    assert run(["trace", "merge", str(source), str(source), *read, "-o", merged]) == 1
    assert "has no date" in capsys.readouterr().err


#: README.md of the real traces, section 2: 1, 5, 15, 30, 60 min (and 6, 12, 24 h).
REAL = {
    "cloudphysics-2h.vscsi.zst": (["--align-shift", "512"], [81.0, 72.6, 71.9, 71.7, 62.3]),
    "hplajw-1week.srt.zst": ([], [65.5, 50.9, 40.4, 33.9, 28.6, 16.6, 14.0, 11.7]),
    "blkreplay-linux-mysql.load.zst": ([], [90.1, 77.3, 60.0, 53.1, 45.0]),
    "blkreplay-linux-webserver-2.load.zst": (["--dedup", "1s"], [88.0, 74.4, 64.5, 59.9, 56.5]),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_traces_give_the_known_numbers(
    name: str, tmp_path: Path, capsys: Captured
) -> None:
    options, known = REAL[name]
    if TRACES_FOLDER is None:
        generated("sequential")
        source = Sequential(7200, 600, 7200)
        path, options = stored(tmp_path, source, "sequential"), []
        known = [100 * source.share(s).active_map for s in (60, 300, 900, 1800, 3600)]
    else:
        path = real(name)
    found = as_json(capsys, "reduction", str(path), *options)
    percents = [each["percent"]["active_map"] for each in found["traces"][0]["intervals"]]
    for percent, expected in zip(percents, known, strict=False):
        assert percent == pytest.approx(expected, abs=0.0501)


def test_schedules_and_lag_targets(hot: Path, capsys: Captured, tmp_path: Path) -> None:
    found = as_json(
        capsys,
        "risk",
        str(hot),
        "--link",
        "1MiB/s",
        "--intervals",
        "30m",
        "--out",
        str(tmp_path),
        "--schedule",
        "*/30 * * * *",
        "--schedule",
        "hourly",
        "--schedule",
        "lag 20m",
    )
    by_name = {each["schedule"]: each for each in found["traces"][0]["schedules"]}
    assert list(by_name) == ["30 min", "*/30 * * * *", "hourly", "lag 20m"]
    # The trace begins at 07:00:00: the cron line's grid is the interval's, and so is its lag.
    assert by_name["*/30 * * * *"]["lag_s"]["worst"] == pytest.approx(
        by_name["30 min"]["lag_s"]["worst"], rel=0.01
    )
    assert by_name["hourly"]["updates"] == 3
    assert by_name["lag 20m"]["lag_s"]["worst"] <= 1200
    assert by_name["lag 20m"]["lag_s"]["worst"] > 600


def test_hours_in_which_it_may_run(hot: Path, capsys: Captured) -> None:
    found = as_json(
        capsys,
        "risk",
        str(hot),
        "--schedule",
        "every 10m",
        "--window",
        "08:00-09:00",
        "--intervals",
        "10m",
        "--zone",
        "UTC",
    )
    always, windowed = found["traces"][0]["schedules"]
    assert windowed["schedule"] == "every 10m (08:00-09:00)"
    # Nothing runs in the first hour: the copy is as old as that.
    assert windowed["lag_s"]["worst"] > 3600 > always["lag_s"]["worst"]


def test_compare_says_what_to_take(hot: Path, capsys: Captured) -> None:
    cheap = as_json(capsys, "compare", str(hot), "--price-lost", "0")["traces"][0]
    dear = as_json(capsys, "compare", str(hot), "--price-lost", "9" * 15)
    assert cheap["recommended"] == "every 30 min"
    assert dear["traces"][0]["recommended"] == "synchronous"
    totals = {each["name"]: each["cost"]["total"] for each in cheap["choices"] if each["judged"]}
    assert "every 1 h" not in totals, "the trace has but two of them"
    assert totals[cheap["recommended"]] == min(totals.values())


def test_the_odd_is_warned_of(tmp_path: Path, capsys: Captured) -> None:
    # Writes 512 bytes beside the grid of 4 KiB.
    source = Sequential(5000, 600, 600)
    path = tmp_path / "shifted.csv"
    lines = [
        f"{int(time_ns) // 1000},{(int(offset) + 512) // 512},w,4096\n"
        for batch in source.batches()
        for time_ns, offset in zip(batch.time_ns, batch.offset, strict=True)
    ]
    path.write_text("".join(lines))
    words = ["reduction", str(path), "--intervals", "1m"]
    columns = ["--columns", "time=0,offset=1,op=2,length=3"]
    units = [*columns, "--format", "csv", "--time-unit", "us", "--addr-unit", "sector"]
    found = as_json(capsys, *words, *units)
    assert any("--align-shift" in each for each in found["warnings"])
    shifted = as_json(capsys, *words, *units, "--align-shift", "auto")
    assert shifted["warnings"] == []
    assert 2 * shifted["traces"][0]["blocks_written"] == found["traces"][0]["blocks_written"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--intervals", "5 parsecs"], "'5 parsecs' is not a duration"),
        (["--intervals", "0s"], "out of range"),
        (["--schedule", "lag 5m"], "the lag target 'lag 5m' needs the rate of the link"),
        (["--schedule", "every now and then"], "every now and then"),
        (["--schedule", "no-such-name"], "no schedule is called 'no-such-name'"),
        (["--zone", "Atlantis"], "Atlantis"),
        (["--link", "fast"], "fast"),
        (["--block", "1000"], "blocks of 1000 bytes are not supported"),
        (["--out", ""], "the name of a folder is empty"),
        (["--intervals", ""], "neither an interval nor a schedule"),
        (["--window", "08:00-18:00"], "--window applies to schedules, and none is given"),
        (["--window", "Sat", "--schedule", "hourly"], "--window cannot be used with the named"),
        (["--time-unit", "us"], "--time-unit applies only to foreign traces"),
        (["--skip-bad"], "--skip-bad applies only to foreign traces"),
    ],
)
def test_invalid_arguments_are_refused(
    words: list[str], said: str, hot: Path, capsys: Captured
) -> None:
    error, _ = refusal(capsys, "reduction", str(hot), *words)
    assert said in error


def test_other_invalid_options_are_refused(hot: Path, capsys: Captured) -> None:
    assert "is not a kind of volume" in refusal(capsys, "risk", str(hot), "--into", "tape")[0]
    assert "is not a price" in refusal(capsys, "compare", str(hot), "--price-lost", "dear")[0]
    for amount in ("nan", "inf"):
        error, _ = refusal(capsys, "compare", str(hot), "--price-link", amount)
        assert f"'--price-link': {amount} is not a finite number" in error
    error, _ = refusal(capsys, "compare", str(hot), "--price-link", "1e300")
    assert "--price-link 1e+300 is not an amount" in error
    for name in (" ", "\x1b[31m"):
        assert (
            "--currency is not a name"
            in refusal(capsys, "compare", str(hot), "--currency", name)[0]
        )
    assert "a bound of 0 s" in refusal(capsys, "risk", str(hot), "--semi-sync", "0s")[0]


def test_a_list_names_each_once(hot: Path, capsys: Captured) -> None:
    words = ["--intervals", "5m,300s,10m", "--schedule", "hourly", "--schedule", "hourly"]
    found = as_json(capsys, "risk", str(hot), *words)
    names = [each["schedule"] for each in found["traces"][0]["schedules"]]
    assert names == ["5 min", "10 min", "hourly"]


def test_a_stored_and_a_foreign_trace_together(hot: Path, tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "log.csv"
    log.write_text("".join(f"{second},w,{second % 9 * 4096},4096\n" for second in range(300)))
    columns = ["--columns", "time=0,op=1,offset=2,length=3"]
    found = as_json(capsys, "reduction", str(hot), str(log), *columns, "--intervals", "1m")
    assert [each["name"] for each in found["traces"]] == ["hot", "log"]


def test_a_place_that_is_none_is_said_before_the_work(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("")
    # (The trace is not even looked for.)
    words = ["reduction", str(tmp_path / "none"), "--out", str(tmp_path / "file")]
    error, hint = refusal(capsys, *words, status=1)
    assert "the report cannot be written" in error and "--out" in hint


def test_what_is_no_trace(tmp_path: Path, capsys: Captured) -> None:
    assert run(["analyze", "reduction", str(tmp_path / "none")]) == 1
    assert "there is no such file" in capsys.readouterr().err
    (tmp_path / "empty").write_bytes(b"")
    assert "empty" in refusal(capsys, "reduction", str(tmp_path / "empty"), status=1)[0]


def test_a_trace_without_writes(tmp_path: Path, capsys: Captured) -> None:
    source = HotSpots(100, 10, 60)
    path = tmp_path / "reads.parquet"
    with TraceWriter(path, source.facts, durable=False) as writer:
        for batch in source.batches():
            columns = {name: getattr(batch, name) for name in Batch.__slots__}
            writer.write(Batch(**{**columns, "op": np.full(100, Op.READ, np.uint8)}))
    error, hint = refusal(capsys, "reduction", str(path), status=1)
    assert "there are no writes in this trace" in error
    assert "mirrord trace info" in hint


def test_what_is_wrong_is_said_before_the_work(tmp_path: Path, capsys: Captured) -> None:
    # The trace is not even looked for.
    missing = str(tmp_path / "missing")
    assert "Atlantis" in refusal(capsys, "risk", missing, "--zone", "Atlantis")[0]
    assert "is not a price" in refusal(capsys, "compare", missing, "--price-lost", "x")[0]


@pytest.mark.platform
def test_a_full_disk(hot: Path, tmp_path: Path, capsys: Captured) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], check=True)
    try:
        error, hint = refusal(capsys, "reduction", str(hot), "--out", str(small / "o"), status=1)
        assert "no space for the report" in error and "--out" in hint
        assert not (small / "o").exists()
    finally:
        subprocess.run(["umount", small], check=True)


def test_interrupted_nothing_is_left(tmp_path: Path) -> None:
    path = stored(tmp_path, HotSpots(4_000_000, 200_000, 90_000), "long")
    out = tmp_path / "out"
    working = subprocess.Popen(
        [sys.executable, "-m", "mirrord", "analyze", "risk", str(path), "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    end_s = time.monotonic() + 200
    while not list(out.glob(".risk.new/*.png")):
        assert working.poll() is None and time.monotonic() < end_s
        time.sleep(0.01)
    working.send_signal(signal.SIGINT)
    _, error = working.communicate(timeout=200)
    assert working.returncode == 130
    assert error.startswith("error: interrupted")
    assert "Traceback" not in error
    assert not out.exists()


def test_a_mirror_of_whole_files_is_drawn_beside(tmp_path: Path, capsys: Captured) -> None:
    # Two files of 100 blocks; then a block of the first one, every second.
    lines = ["fio version 3 iolog"]
    for name in ("/a", "/b"):
        lines += [f"0 {name} add", f"0 {name} open", f"1 {name} write 0 409600"]
    lines += [
        f"{second * 1_000_000} /a write {second % 100 * 4096} 4096" for second in range(1, 240)
    ]
    log = tmp_path / "two.iolog"
    log.write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    as_json(capsys, "reduction", str(log), "--intervals", "1m,2m", "--out", str(out))
    rows = (out / "whole-files.csv").read_text().splitlines()
    assert rows[0] == "trace,interval,changed blocks (%),whole files (%)"
    written = 200 + 239
    # Of four updates the first sends both files, the others all of the one that changed.
    _, _, blocks, files = rows[1].split(",")
    assert float(files) == pytest.approx(100 * (200 + 3 * 100) / written)
    assert float(blocks) == pytest.approx(100 * (200 + 60 + 60 + 59) / written)
