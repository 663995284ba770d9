"""A 4 KiB change on local btrfs, from call to visible: mirrord in-process and as a command, and a
`btrbk run` over the same source, alternating. For btrbk the complete run is timed.
"""

from __future__ import annotations

import functools
import os
import subprocess
import time
from pathlib import Path

from benchmarks.harness import (
    Row,
    environment,
    filesystem,
    folder,
    median,
    mirrord_command,
    need,
    run,
    service,
    timed,
)
from mirrord.system import steps
from tests.support.verbs import Service

ROUNDS = 25
FILES = 200


def measure() -> list[Row]:
    """Both tools have their own destination on the second disk; 4 KiB are rewritten each round."""
    btrbk = need("btrbk", "btrbk")
    with (
        folder() as inside,
        filesystem(inside, "one", 4) as one,
        filesystem(inside, "two", 4) as two,
    ):
        home = one / "home"
        run("btrfs", "subvolume", "create", home)
        for number in range(FILES):
            (home / f"file{number}").write_bytes(os.urandom(4096))
        config = _btrbk(inside, one, two, "btrbk", "latest")
        keeping = _btrbk(inside, one, two, "btrbk-keeping", "all")
        api = service(inside)
        api.create("home", f"btrfs:{home}", f"btrfs:{two / 'mirror'}")
        api.initialize("home")
        for first in (config, keeping):
            subprocess.run([btrbk, "-c", first, "run"], check=True, capture_output=True)
        variables = environment(inside)
        inner, whole, unchanged, command, peer, kept = [], [], [], [], [], []
        for number in range(ROUNDS):
            _change(home, 4 * number)
            seconds, whole_call = _visible(api)
            inner.append(seconds)
            whole.append(whole_call)
            unchanged.append(timed(lambda: api.update("home")))
            _change(home, 4 * number + 1)
            words = mirrord_command("update", "home")
            command.append(timed(functools.partial(_run, words, variables)))
            _change(home, 4 * number + 2)
            peer.append(timed(functools.partial(_run, [btrbk, "-c", config, "run"], variables)))
            _change(home, 4 * number + 3)
            kept.append(timed(functools.partial(_run, [btrbk, "-c", keeping, "run"], variables)))
        # Each of the peer's runs has really transferred a snapshot.
        assert len(os.listdir(two / "btrbk-keeping")) == ROUNDS + 1
        api.close()
    ours, theirs, bare = median(inner), median(peer), median(kept)
    return [
        Row("4 KiB update, call to visible", ours * 1e3, "ms", "<=", 25, "btrbk run", theirs * 1e3),
        Row(
            "  times faster than btrbk",
            theirs / ours,
            "x",
            ">=",
            5,
            note=f"{bare / ours:.1f} x a run that deletes nothing ({bare * 1e3:.1f} ms)",
        ),
        Row(
            "  whole call, old snapshots pruned",
            median(whole) * 1e3,
            "ms",
            "<=",
            25,
            note=f"{theirs / median(whole):.1f} x faster than btrbk, which deletes as many",
        ),
        Row("  whole command", median(command) * 1e3, "ms", "<=", 250, "btrbk run", theirs * 1e3),
        Row("  command against btrbk", median(command) / theirs, "x", "<=", 1),
        Row("unchanged source, in-process", median(unchanged) * 1e3, "ms", "<=", 5),
    ]


def _visible(api: Service) -> tuple[float, float]:
    """Seconds from the call until the new content is durably visible; and until it returns.

    The first step after the destination's commit is its record in the catalogue.
    """
    started, seen = time.perf_counter(), []

    def observer(label: str) -> None:
        if label == "CATALOGUE:OPERATION:END":
            seen.append(time.perf_counter())

    steps.observe(observer)
    try:
        api.update("home")
    finally:
        steps.observe(None)
    return seen[0] - started, time.perf_counter() - started


def _run(words: list[str], variables: dict[str, str]) -> None:
    subprocess.run(words, env=variables, check=True, capture_output=True)


def _change(home: Path, number: int) -> None:
    (home / f"file{number % FILES}").write_bytes(os.urandom(4096))


def _btrbk(inside: Path, one: Path, two: Path, name: str, keep: str) -> str:
    (one / name).mkdir()
    (two / name).mkdir()
    config = inside / f"{name}.conf"
    config.write_text(
        "timestamp_format long-iso\n"
        f"snapshot_preserve_min {keep}\ntarget_preserve_min {keep}\ntarget_preserve 3h\n"
        f"volume {one}\n  snapshot_dir {name}\n  target {two / name}\n  subvolume home\n"
    )
    return str(config)
