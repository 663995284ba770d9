"""`mirrord trace generate` as a person types it: what it tells is what the analysis finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirrord.analysis.grids import fixed
from mirrord.analysis.replay import replay
from mirrord.cli.main import run
from mirrord.traces.store import TraceFile
from tests.analysis.percents import percent


@pytest.mark.parametrize("kind", ["hot-spots", "sequential", "database", "files"])
def test_generate(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.parquet"
    words = ["trace", "generate", kind, "-o", str(path), "--records", "300000", "--blocks", "20000"]
    assert run([*words, "--duration", "5h", "--name", "mine", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    trace = TraceFile(path)
    assert told["records"] == trace.records == pytest.approx(300_000, rel=0.15)
    assert trace.facts.name == "mine"
    assert len(told["known"]) == (2 if kind == "files" else 5)
    grids = [fixed(each["seconds"]) for each in told["known"]]
    found = replay(trace.batches(), trace.facts, grids)
    for grid, each in zip(found.grids, told["known"], strict=True):
        for volume, known in each["percent"].items():
            assert percent(grid, volume) == pytest.approx(known, rel=0.01)

    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"records are stored in {path}.")
    assert lines[1].startswith("every 1 min: ")


def test_what_cannot_be_generated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.parquet"
    for words in (["files", "--records", "9"], ["hot-spots", "--skew", "1"], ["waves"]):
        assert run(["trace", "generate", *words, "-o", str(path)]) == 2
        assert "Traceback" not in capsys.readouterr().err
    assert run(["trace", "generate", "files", "-o", str(tmp_path / "no" / "where.parquet")]) == 1
    assert list(tmp_path.iterdir()) == []
