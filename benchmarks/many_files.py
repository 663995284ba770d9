"""Many files, few changed: the delta, the update against plain send and receive, rsync -n."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

from benchmarks.harness import Row, filesystem, folder, median, need, run, service, timed
from mirrord.core.endpoint import parse_endpoint
from mirrord.drivers.registry import open_driver

ROUNDS = 5


def measure() -> list[Row]:
    """20,000 files of 430 MB with 1,000 changed; 500,000 small files with 100 changed."""
    return [*_twenty_thousand(), *_half_a_million()]


def _twenty_thousand() -> list[Row]:
    made = random.Random(1)
    with (
        folder() as inside,
        filesystem(inside, "one", 12) as one,
        filesystem(inside, "two", 12) as two,
    ):
        home, plain = one / "home", two / "plain"
        run("btrfs", "subvolume", "create", home)
        _fill(home, 20_000, lambda: made.randbytes(made.randrange(1000, 42_000)))
        plain.mkdir()
        api = service(inside)
        # Like its peer it keeps every snapshot: deletion is measured in update_latency.
        api.create(
            "home",
            f"btrfs:{home}",
            f"btrfs:{two / 'mirror'}",
            keep_source=100,
            keep_destination=100,
        )
        api.initialize("home")
        base = one / "plain.0"
        run("btrfs", "subvolume", "snapshot", "-r", home, base)
        _send_receive(None, base, plain)
        ours: list[float] = []
        theirs: list[float] = []
        deltas: list[float] = []
        for number in range(1, ROUNDS + 1):
            for index in made.sample(range(20_000), 1000):
                _file(home, index).write_bytes(made.randbytes(made.randrange(1000, 42_000)))
            os.sync()
            newer = one / f"plain.{number}"

            def peer(newer: Path = newer, base: Path = base) -> None:
                run("btrfs", "subvolume", "snapshot", "-r", home, newer)
                _send_receive(base, newer, plain)

            if number % 2:
                theirs.append(timed(peer))
            ours.append(timed(lambda: api.update("home")))
            if not number % 2:
                theirs.append(timed(peer))
            deltas.append(_delta(home))
            base = newer
        api.close()
    return [
        Row("20,000 files, 1,000 changed: delta", median(deltas) * 1e3, "ms", "<=", 300),
        Row(
            "  update against send | receive",
            median(ours) / median(theirs),
            "x",
            "<=",
            1.1,
            note=f"{median(ours):.3f} s against {median(theirs):.3f} s, snapshot and sync included",
        ),
    ]


def _half_a_million() -> list[Row]:
    rsync = need("rsync", "rsync")
    made = random.Random(2)
    with (
        folder() as inside,
        filesystem(inside, "one", 12) as one,
        filesystem(inside, "two", 12) as two,
    ):
        home = one / "home"
        run("btrfs", "subvolume", "create", home)
        content = made.randbytes(200)
        _fill(home, 500_000, lambda: content)
        api = service(inside)
        api.create("home", f"btrfs:{home}", f"btrfs:{two / 'mirror'}")
        api.initialize("home")
        for index in made.sample(range(500_000), 100):
            _file(home, index).write_bytes(made.randbytes(300))
        os.sync()
        peer = [rsync, "-an", "--delete", f"{home}/", f"{two / 'mirror' / 'current'}/"]
        theirs = [
            timed(lambda: subprocess.run(peer, check=True, capture_output=True)) for _ in range(3)
        ][1:]
        api.update("home")
        ours = [_delta(home) for _ in range(5)]
        api.close()
    delta, rsyncs = median(ours), median(theirs)
    return [
        Row(
            "500,000 files, 100 changed: delta",
            delta * 1e3,
            "ms",
            "<=",
            100,
            "rsync -n",
            rsyncs * 1e3,
            "both warm",
        ),
        Row("  times faster than rsync -n", rsyncs / delta, "x", ">=", 40),
    ]


def _fill(home: Path, count: int, content: object) -> None:
    assert callable(content)
    for index in range(count):
        path = _file(home, index)
        if index % 500 == 0:
            path.parent.mkdir()
        path.write_bytes(content())
    os.sync()


def _file(home: Path, index: int) -> Path:
    return home / f"d{index // 500}" / f"f{index}"


def _send_receive(base: Path | None, snapshot: Path, target: Path) -> None:
    """Plain send and receive, with a sync so that it is as durable as an update."""
    parent = ["-p", str(base)] if base else []
    sender = subprocess.Popen(
        ["btrfs", "send", "-q", *parent, str(snapshot)], stdout=subprocess.PIPE
    )
    subprocess.run(["btrfs", "receive", "-q", str(target)], stdin=sender.stdout, check=True)
    assert sender.stdout is not None
    sender.stdout.close()
    assert sender.wait() == 0
    run("btrfs", "filesystem", "sync", target)


def _delta(home: Path) -> float:
    """The delta of the last two reference snapshots, with a new driver."""
    driver = open_driver(parse_endpoint(f"btrfs:{home}"))
    base, incremental = driver.snapshots()[-2:]
    return timed(lambda: driver.delta(base.guid, incremental.guid))
