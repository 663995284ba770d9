"""The replay on a real Dask cluster of two processes is that of one machine, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.analysis.cluster import replay_on
from mirrord.analysis.grids import DEFAULT, Grid, lag_target
from mirrord.analysis.replay import replay
from mirrord.analysis.results import Replay
from mirrord.cli.main import run
from mirrord.core.errors import Damaged, MirrordError, NotFound, Refused, Unreachable
from mirrord.traces.generators import Files, HotSpots, Workload
from mirrord.traces.store import TraceFile, TraceWriter
from tests.analysis.percents import totals
from tests.support.replays import WHOLE

GRIDS: list[Grid] = [
    *DEFAULT,
    lag_target(600, 200_000.0),
    Grid("instants", boundaries=(5_000_000_000, 7_200_000_000_000)),
    WHOLE,
]


def start(*words: str) -> subprocess.Popen[str]:
    """A program of Dask; ended by who started it."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "distributed.cli." + words[0], *words[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler on a free port of this host, without workers yet."""
    told = tmp_path_factory.mktemp("dask") / "scheduler.json"
    running = start(
        "dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
        "--dashboard-address",
        "127.0.0.1:0",
        "--scheduler-file",
        str(told),
    )
    try:
        deadline_s = time.monotonic() + 200
        while not (told.exists() and told.read_text().rstrip().endswith("}")):
            assert running.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.1)
        yield json.loads(told.read_text())["address"]
    finally:
        running.terminate()
        running.wait()


@pytest.fixture(scope="module")
def cluster(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The scheduler with two workers, each a process of one thread."""
    from distributed import Client

    scratch = tmp_path_factory.mktemp("workers")
    workers = [
        start(
            "dask_worker",
            scheduler,
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
            "--local-directory",
            str(scratch),
            "--host",
            "127.0.0.1",
        )
        for _ in range(2)
    ]
    try:
        client = Client(scheduler, set_as_default=False)  # type: ignore[no-untyped-call]
        client.wait_for_workers(2, timeout=200)
        client.close()  # type: ignore[no-untyped-call]
        yield scheduler
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def store(workload: Workload, path: Path) -> Path:
    with TraceWriter(path, workload.facts) as writer:
        for batch in workload.batches(7000):
            writer.write(batch)
    return path


def everything(found: Replay) -> list[object]:
    columns = ("start_ns", "end_ns", "written", "written_bytes", "update_in_place", "active_map")
    return [
        totals(found),
        found.writes_series.bytes.tobytes(),
        found.writes_series.links,
        [
            getattr(grid, name).tobytes()
            for grid in found.grids
            for name in (*columns, "no_active_map", "whole_volumes")
        ],
    ]


def test_no_workers(scheduler: str, tmp_path: Path) -> None:
    """Told at once, instead of waiting for some to come. (Runs before there are any.)"""
    path = store(Files(3), tmp_path / "trace.parquet")
    with pytest.raises(Refused, match="no workers"):
        replay_on(scheduler, path)


@pytest.mark.parametrize(
    "workload",
    [HotSpots(200_000, 30_000, 40_000, volumes=3), Files(60, period_s=300)],
    ids=lambda workload: workload.facts.name,
)
def test_bit_identical(cluster: str, workload: Workload, tmp_path: Path) -> None:
    path = store(workload, tmp_path / "trace.parquet")
    trace = TraceFile(path)
    alone = replay(trace.batches(), trace.facts, GRIDS, bounds_s=(0.5, 60))
    assert everything(replay_on(cluster, path, GRIDS, bounds_s=(0.5, 60))) == everything(alone)
    assert len(alone.grids[8].end_ns) > 20


def test_an_error_of_a_cluster_worker_is_raised_completely(cluster: str, tmp_path: Path) -> None:
    """The error of a worker arrives whole."""
    path = store(HotSpots(300_000, 5000, 600), tmp_path / "trace.parquet")
    data = bytearray(path.read_bytes())
    data[1000:60_000] = bytes(59_000)
    path.write_bytes(data)
    with pytest.raises(Damaged) as caught:
        replay_on(cluster, path)
    assert str(path) in str(caught.value)
    with pytest.raises(NotFound):
        replay_on(cluster, tmp_path / "none")


def test_nobody_answers(tmp_path: Path) -> None:
    path = store(Files(3), tmp_path / "trace.parquet")
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        with pytest.raises(Unreachable) as caught:
            replay_on(address, path)
        assert isinstance(caught.value, MirrordError) and caught.value.hint


def test_the_report_of_a_cluster_is_the_same(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(store(Files(90), tmp_path / "files.parquet"))
    said = []
    for more in ([], ["--cluster", cluster]):
        words = ["analyze", "risk", path, "--schedule", "*/10 * * * *", "--json", *more]
        status, done = run(words), capsys.readouterr()
        assert status == 0, done.err
        said.append(done.out)
    assert said[0] == said[1]
    assert json.loads(said[0])["traces"][0]["schedules"]
