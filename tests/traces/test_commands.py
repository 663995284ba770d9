"""`mirrord trace` as a person types it: each command end to end, JSON, errors, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mirrord.cli.main import run
from mirrord.traces import batches as make
from mirrord.traces.reading import open_trace
from mirrord.traces.store import TraceFile
from mirrord.traces.writing import WRITERS
from tests.support import traces
from tests.traces.samples import EXAMPLES, FILETIME

#: A busy hour of two volumes: writes, reads, trims and flushes.
LINES = 3000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "hour.iolog"
    lines = ["fio version 3 iolog"]
    for i in range(LINES):
        file = ("sda", "sdb")[i % 2]
        action = ("write", "read", "trim", "write")[i % 4]
        lines.append(f"{i * 1200} {file} {action} {(i * 37 % 1000) * 4096} 8192")
        if i % 100 == 0:
            lines.append(f"{i * 1200} {file} sync")
    path.write_text("\n".join(lines) + "\n")
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0) -> str:
    """What a command prints."""
    assert run([str(word) for word in words]) == status, capsys.readouterr().err
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def document(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    found = json.loads(said(capsys, *words, "--json"))
    assert isinstance(found, dict)
    return found


def test_import_info_and_head(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "hour.parquet"
    text = said(capsys, "trace", "import", source, "-o", target, "--name", "an hour")
    assert "an hour: 3,030 records of 3.6 s, format fio3" in text
    assert f"3,030 records are stored in {target}" in text
    text = said(capsys, "trace", "info", target)
    for part in ("2: sda, sdb", "writes", "trims", "flushes", "unknown: the source has no date"):
        assert part in text, text
    for path in (source, target):
        found = document(capsys, "trace", "info", path)
        assert found["records"] == {"write": 1500, "read": 750, "trim": 750, "flush": 30}
        assert found["sizes"]["write"] == 1500 * 8192
        assert found["span_s"] == pytest.approx((LINES - 1) * 0.0012)
        head = document(capsys, "trace", "head", "-n", "3", path)
        assert [row["op"] for row in head["records"]] == ["write", "flush", "read"]
        assert head["records"][2] == {
            "time_ns": 1_200_000,
            "volume": "sdb",
            "op": "read",
            "offset": 37 * 4096,
            "length": 8192,
            "latency_ns": -1,
        }
    assert len(said(capsys, "trace", "head", target).splitlines()) == 10


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_converted_reads_the_same(
    kind: str, ending: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / f"again{ending}"
    found = document(capsys, "trace", "convert", source, target, "--to", kind)
    lost = {"trim": 750, "flush": 30} if kind == "msr" else {}
    assert found["left_out"] == lost
    with open_trace(source) as one, open_trace(target) as other:
        assert other.facts.source_format == {"csv": "mirrord-csv"}.get(kind, kind)
        before, after = (make.join(list(each.batches())) for each in (one, other))
        if lost:
            before = make.pick(before, before.op < 2)
        for column in ("time_ns", "op", "offset", "length", "volume"):
            assert (getattr(before, column) == getattr(after, column)).all(), column


@pytest.mark.parametrize("kind", WRITERS)
def test_volumes_of_similar_names_stay_apart(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["8,16", "vdb", "8,0", "a-0", "a", "a,b", "a_b", "a b", "a_b_2", "a,b-0", "a_2"]
    path = tmp_path / "names.csv"
    path.write_text("".join(f"{at};W;{at * 4096};4096;{name}\n" for at, name in enumerate(names)))
    columns = "time=0,op=1,offset=2,length=3,volume=4"
    stored, target = tmp_path / "names.parquet", tmp_path / "names.txt"
    said(capsys, "trace", "import", path, "--columns", columns, "-o", stored)
    said(capsys, "trace", "convert", stored, target, "--to", kind)
    with open_trace(target) as trace:
        found = make.join(list(trace.batches()))
    assert found.volume.tolist() == list(range(len(names)))
    assert (found.offset // 4096).tolist() == list(range(len(names)))


def test_convert_to_parquet_filters_and_knows_endings(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (source, tmp_path / "a.parquet"):
        out = tmp_path / ("a.parquet" if given == source else "b.parquet")
        said(
            capsys,
            "trace",
            "convert",
            given,
            out,
            "--volume",
            "sdb",
            "--align-shift",
            "-512" if given != source else "512",
        )
        assert TraceFile(out).facts.volumes == ("sdb",)
    [one], [other] = (TraceFile(tmp_path / f"{name}.parquet").batches() for name in "ab")
    assert len(one) == len(other) == 1500 and (one.offset - other.offset <= 512).all()
    assert other.offset[0] == 37 * 4096
    assert "suffix" in said(capsys, "trace", "convert", source, tmp_path / "x", status=2)
    assert "cannot be written" in said(
        capsys, "trace", "convert", source, tmp_path / "x", "--to", "vscsi1", status=2
    )


def test_merge_by_the_clock_and_by_the_beginning(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for index in range(2):
        path = tmp_path / f"disk{index}.csv"
        rows = [f"{FILETIME + 10**7 * (3 * i + index)},h,{index},Write,0,512,1" for i in range(5)]
        path.write_text("\n".join(rows) + "\n")
        paths.append(path)
    out = tmp_path / "both.parquet"
    found = document(capsys, "trace", "merge", *paths, "-o", out)
    assert found["volumes"] == ["disk0/h-0", "disk1/h-1"] and found["records"] == 10
    [batch] = TraceFile(out).batches()
    assert (batch.time_ns // 10**9).tolist() == [0, 1, 3, 4, 6, 7, 9, 10, 12, 13]
    assert batch.volume.tolist() == [0, 1] * 5
    said(capsys, "trace", "merge", *paths, "-o", out, "--align", "start", "--same-volumes")
    [batch] = TraceFile(out).batches()
    assert (batch.time_ns // 10**9).tolist() == [0, 0, 3, 3, 6, 6, 9, 9, 12, 12]
    assert TraceFile(out).facts.volumes == ("h-0", "h-1") and TraceFile(out).facts.epoch_ns is None
    text = said(capsys, "trace", "merge", source, paths[0], "-o", out, status=1)
    assert "has no date" in text and "--align start" in text
    assert "only one trace" in said(capsys, "trace", "merge", source, "-o", out, status=2)


def test_slice(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "part.parquet"
    found = document(capsys, "trace", "slice", source, "--from", "1.2s", "--to", "2.4s", "-o", out)
    assert found["records"] == 1000 + 10
    assert (found["first_ns"], found["last_ns"]) == (1_200_000_000, 2_398_800_000)
    again = document(capsys, "trace", "slice", out, "--from", "2s", "-o", out)
    assert again["first_ns"] == 2_000_400_000  # times stay those of the whole
    only = document(capsys, "trace", "slice", source, "--volume", "sda", "-o", out)
    assert only["records"] == 1500 + 30
    for words, part in (
        (("--from", "1h"), "no record between"),
        (("--from", "2s", "--to", "1s"), "not later"),
        (("--from", "soon"), "not a duration"),
        (("--volume", "sdz"), "no volume 'sdz'"),
    ):
        assert run(["trace", "slice", str(source), *words, "-o", str(out)]) in (1, 2)
        assert part in capsys.readouterr().err


def test_names_do_not_reach_the_terminal_as_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, stored = tmp_path / "evil\x1b[31m.csv", tmp_path / "evil.parquet"
    path.write_text(f"{FILETIME},h\x1b]0;me\x07,0,Write,0,4096,26\n" * 9)
    for words in (
        ("info", path),
        ("head", path),
        ("import", path, "-o", stored),
        ("info", stored),
        ("head", stored),
    ):
        text = said(capsys, "trace", *words)
        assert text.replace("\n", "").isprintable() and r"h\x1b]0;me\x07-0" in text
    for kind in ("reduction", "risk", "compare"):
        text = said(capsys, "analyze", kind, stored)
        assert "\x1b" not in text and r"evil\x1b[31m" in text


def test_a_span_is_left_out(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rest.parquet"
    found = document(capsys, "trace", "slice", source, "--without", "1.2s..2.4s", "-o", out)
    assert found["records"] == 2000 + 20
    times = [time for batch in TraceFile(out).batches() for time in batch.time_ns.tolist()]
    assert not [time for time in times if 1_200_000_000 <= time < 2_400_000_000]
    assert times[-1] == found["last_ns"] == (LINES - 1) * 1_200_000
    for span, part in (
        ("1s", "not a span"),
        ("2s..1s", "does not end after"),
        ("0s..1h", "no record between"),
    ):
        assert run(["trace", "slice", str(source), "--without", span, "-o", str(out)]) in (1, 2)
        assert part in capsys.readouterr().err


def test_slices_of_a_trace_without_a_date_are_merged_to_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.parquet", tmp_path / "merged.parquet"
    said(capsys, "trace", "import", source, "-o", whole)
    parts = [tmp_path / f"part{index}.parquet" for index in range(3)]
    for part, words in zip(
        parts,
        (("--to", "1s"), ("--from", "1s", "--to", "2s"), ("--from", "2s")),
        strict=True,
    ):
        said(capsys, "trace", "slice", whole, *words, "-o", part)
    said(capsys, "trace", "slice", parts[2], "--from", "2s", "-o", parts[2])
    found = document(capsys, "trace", "merge", *reversed(parts), "-o", out)
    assert found["records"] == LINES + 30 and found["volumes"] == ["sda", "sdb"]
    assert TraceFile(out).facts.name == "hour" and TraceFile(out).facts.epoch_ns is None
    [one], [other] = TraceFile(whole).batches(), TraceFile(out).batches()
    for column in ("time_ns", "volume", "offset", "length"):
        assert sorted(getattr(one, column).tolist()) == sorted(getattr(other, column).tolist())
    # Parts of two traces are not parts of one.
    text = said(capsys, "trace", "merge", parts[0], whole, "-o", out, status=1)
    assert "has no date" in text


def test_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "trace", "formats")
    for name in EXAMPLES:
        assert f"\n{name} " in f"\n{text}"
    assert {each["name"] for each in document(capsys, "trace", "formats")["formats"]} >= set(
        EXAMPLES
    )


@pytest.mark.parametrize(
    ("words", "status", "parts"),
    [
        (["info", "nowhere"], 1, ["no such file", "nowhere"]),
        (["head", "SOURCE", "--format", "msr"], 1, ["line 1", "looks like fio3: omit --format"]),
        (["head", "SOURCE", "--format", "mrs"], 2, ["no format 'mrs'", "'msr'"]),
        (["info", "SOURCE", "--time-unit", "h"], 2, ["not a unit of time"]),
        (["info", "SOURCE", "--only", "C"], 2, ["--only does not apply to the format fio3"]),
        (["import", "SOURCE", "-o", "OUT", "--dedup", "much"], 2, ["not a duration"]),
        (["import", "SOURCE", "-o", "OUT", "--align-shift", "far"], 2, ["not a size"]),
        (
            ["import", "SOURCE", "-o", "OUT", "--align-shift", "-1G"],
            2,
            ["before the start of the volume"],
        ),
        (["import", "SOURCE"], 2, ["--output"]),
        (["import", "SOURCE", "-o", "/no/such/folder/t"], 1, ["no such folder"]),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    words: list[str], status: int, parts: list[str], source: Path, tmp_path: Path
) -> None:
    places = {"SOURCE": str(source), "OUT": str(tmp_path / "out.parquet")}
    done = subprocess.run(
        [sys.executable, "-m", "mirrord", "trace", *(places.get(word, word) for word in words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("error: ") and len(lines) <= 2, done.stderr
    assert all(line.startswith(("error: ", "hint: ")) for line in lines), done.stderr
    assert all(part in done.stderr for part in parts), done.stderr
    assert os.listdir(tmp_path) == [source.name]


def test_standard_input(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mirrord", "trace", "import", "-", "-o", tmp_path / "t.parquet"],
        input=EXAMPLES["msr"].data, capture_output=True, check=True,
    )  # fmt: skip
    assert b"2 records are stored" in done.stdout
    assert TraceFile(tmp_path / "t.parquet").facts.volumes == ("hm-0", "hm-1")
    words = [sys.executable, "-m", "mirrord", "trace", "info", "-"]
    closed = subprocess.run(
        words, preexec_fn=lambda: os.close(0), stderr=subprocess.PIPE, check=False
    )
    assert (closed.returncode, closed.stderr) == (1, b"error: standard input is closed\n")


def test_a_pipe_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, target = tmp_path / "long.vscsi", tmp_path / "t.parquet"
    path.write_bytes(EXAMPLES["vscsi1"].data * 1000)
    count = 1000 * len(EXAMPLES["vscsi1"].records)
    for command in ("import {} -o {}", "convert {} {}", "slice {} -o {}"):
        words = command.format(f"<(cat {path})", target)
        made = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m mirrord trace {words}"],
            capture_output=True,
            check=True,
        )
        assert TraceFile(target).records == count, made.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_import_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    target = tmp_path / "t.parquet"
    target.write_bytes(b"before")
    process = subprocess.Popen(
        [sys.executable, "-m", "mirrord", "trace", "import", "-", "-o", target],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    line = f"{FILETIME},hm,0,Write,4096,4096,26\n".encode()
    process.stdin.write(line * 300_000)  # more than the sample, so it has begun; then it waits
    process.stdin.flush()
    until = time.monotonic() + 200
    while len(os.listdir(tmp_path)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(os.listdir(tmp_path)) > 1, "it did not begin"
    process.send_signal(number)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 128 + number
    assert errors.startswith(b"error: interrupted") and b"Traceback" not in errors
    assert os.listdir(tmp_path) == ["t.parquet"] and target.read_bytes() == b"before"


def test_missing_packages_are_one_line(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "pyarrow" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    text = said(capsys, "trace", "info", source, status=1)
    assert "pyarrow" in text and "mirrord[analysis]" in text


def test_commands_that_need_no_traces_do_not_load_what_traces_need() -> None:
    code = (
        "import sys; from mirrord.cli.main import run; run(['status', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'pyarrow')))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.skipif(traces.TRACES_FOLDER is None, reason="the real traces are not here")
def test_a_real_trace_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = traces.real("cloudphysics-2h.vscsi.zst")
    out = tmp_path / "c.parquet"
    found = document(capsys, "trace", "import", real, "-o", out, "--align-shift", "auto")
    assert found["align_shift_bytes"] == 512 and found["stored_records"] == 113_872
    again = document(capsys, "trace", "info", out)
    assert again["touched"][0] == 608_352
    assert [each["name"] for each in again["source_findings"]] == ["shifted-grid"]
    assert "that were handled at import" in said(capsys, "trace", "info", out)


def test_progress_is_shown_at_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    import pty

    line = f"{FILETIME},hm,0,Write,4096,4096,26\n".encode()
    shown = {}
    for kind in ("terminal", "pipe"):
        ours, theirs = pty.openpty() if kind == "terminal" else os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "mirrord", "trace", "import", "-", "-o", tmp_path / "t.parquet"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        assert process.stdin is not None
        for _ in range(4):
            process.stdin.write(line * 200_000)
            process.stdin.flush()
            time.sleep(0.6)
        process.communicate(timeout=200)
        assert process.returncode == 0
        shown[kind] = b""
        try:
            while piece := os.read(ours, 4096):
                shown[kind] += piece
        except OSError:
            pass  # a terminal whose other end is closed
        os.close(ours)
    assert b"records" in shown["terminal"] and b"million/s" in shown["terminal"]
    assert shown["pipe"] == b""


def test_info_shows_what_filters_leave(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = document(capsys, "trace", "info", source)
    one = document(capsys, "trace", "info", source, "--volume", "sdb")
    assert one["volumes"] == ["sdb"] and 0 < one["records"]["write"] < whole["records"]["write"]
    stored = tmp_path / "hour.parquet"
    said(capsys, "trace", "import", source, "-o", stored)
    again = document(capsys, "trace", "info", stored, "--volume", "sdb")
    assert again["records"] == one["records"]
    head = document(capsys, "trace", "head", source, "--volume", "sdb", "-n", "2")["records"]
    assert [row["volume"] for row in head] == ["sdb", "sdb"]
    error = said(capsys, "trace", "info", source, "--volume", "sdz", status=1)
    assert "there is no volume 'sdz'" in error and "Its volumes are: sda, sdb." in error


def test_a_source_is_never_replaced_by_what_is_made_of_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, other = tmp_path / "hour.parquet", tmp_path / "other.parquet"
    said(capsys, "trace", "import", source, "-o", stored)
    said(capsys, "trace", "slice", stored, "--to", "2s", "-o", other)
    plain = source.rename(tmp_path / "hour")
    link = tmp_path / "link.parquet"
    link.symlink_to(stored)
    kept = {path: path.read_bytes() for path in (stored, other, plain)}
    tried: list[list[str | Path]] = [
        ["import", plain, "-o", plain], ["slice", plain, "--to", "1s", "-o", plain],
        ["convert", stored, stored], ["convert", stored, link],
        ["merge", stored, other, "--align", "start", "-o", other],
    ]  # fmt: skip
    for words in tried:
        assert "is the source itself" in said(capsys, "trace", *words, status=2), words
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, pipe = tmp_path / "hour.parquet", tmp_path / "pipe"
    said(capsys, "trace", "import", source, "-o", stored)
    os.mkfifo(pipe)
    for line in (
        f"import {source} -o {pipe}",
        f"slice {stored} --to 1s -o {pipe}",
        f"convert {stored} {pipe} --to csv",
        f"convert {stored} {pipe} --to parquet",
        f"merge {stored} {stored} -o {pipe}",
        f"generate database -o {pipe}",
        f"record /dev/zero -o {pipe}",
    ):
        assert "is not a regular file" in said(capsys, "trace", *line.split(), status=2), line
    assert pipe.is_fifo()
    assert "this is a folder" in said(capsys, "trace", "import", source, "-o", "", status=1)
    assert document(capsys, "trace", "head", stored, "-n", str(1 << 70))["records"]
    name = tmp_path / ("x" * 300)
    tried: list[list[str | Path]] = [
        ["import", source, "-o", name],
        ["convert", stored, name, "--to", "csv"],
    ]
    for words in tried:
        assert "File name too long" in said(capsys, "trace", *words, status=1)


@pytest.mark.parametrize("name", ["hour.csv", "hour.iolog.zst", "hour.gz"])
def test_a_stored_trace_is_not_called_text(
    name: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[list[str | Path]]
    tried = [["import", source], ["generate", "sequential"], ["record", "block:/none"]]
    for words in tried:
        error = said(capsys, "trace", *words, "-o", tmp_path / name, status=2)
        assert "a stored trace is Parquet" in error and "hour.parquet" in error
    assert not (tmp_path / name).exists()


def test_a_scratch_folder_that_is_not_there(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch: list[str | Path] = ["--scratch", tmp_path / "none"]
    tried: list[list[str | Path]] = [
        ["trace", "import", source, "-o", tmp_path / "t.parquet"],
        ["trace", "convert", source, tmp_path / "t.csv"],
        ["analyze", "reduction", source],
    ]
    for words in tried:
        error = said(capsys, *words, *scratch, status=1)
        assert f"{tmp_path / 'none'}: there is no such folder" in error
