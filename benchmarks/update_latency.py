"""A 4 KiB change on local btrfs, from call to visible: mirrord in-process and as a command, and a
`btrbk run` over the same source, alternating.
"""

from __future__ import annotations

import functools
import os
import subprocess
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
        config = _btrbk(inside, one, two)
        api = service(inside)
        api.create("home", f"btrfs:{home}", f"btrfs:{two / 'mirror'}")
        api.initialize("home")
        subprocess.run([btrbk, "-c", config, "run"], check=True, capture_output=True)
        variables = environment(inside)
        inner, unchanged, command, peer = [], [], [], []
        for number in range(ROUNDS):
            _change(home, 3 * number)
            inner.append(timed(lambda: api.update("home")))
            unchanged.append(timed(lambda: api.update("home")))
            _change(home, 3 * number + 1)
            words = mirrord_command("update", "home")
            command.append(timed(functools.partial(_run, words, variables)))
            _change(home, 3 * number + 2)
            peer.append(timed(functools.partial(_run, [btrbk, "-c", config, "run"], variables)))
        api.close()
    ours, theirs = median(inner), median(peer)
    return [
        Row("4 KiB update, in-process", ours * 1e3, "ms", "<=", 25, "btrbk run", theirs * 1e3),
        Row("  times faster than btrbk", theirs / ours, "x", ">=", 5),
        Row("  whole command", median(command) * 1e3, "ms", "<=", 250, "btrbk run", theirs * 1e3),
        Row("  command against btrbk", median(command) / theirs, "x", "<=", 1),
        Row("unchanged source, in-process", median(unchanged) * 1e3, "ms", "<=", 5),
    ]


def _run(words: list[str], variables: dict[str, str]) -> None:
    subprocess.run(words, env=variables, check=True, capture_output=True)


def _change(home: Path, number: int) -> None:
    (home / f"file{number % FILES}").write_bytes(os.urandom(4096))


def _btrbk(inside: Path, one: Path, two: Path) -> str:
    (one / "btrbk").mkdir()
    (two / "btrbk").mkdir()
    config = inside / "btrbk.conf"
    config.write_text(
        "timestamp_format long-iso\n"
        "snapshot_preserve_min latest\ntarget_preserve_min latest\ntarget_preserve 3h\n"
        f"volume {one}\n  snapshot_dir btrbk\n  target {two / 'btrbk'}\n  subvolume home\n"
    )
    return str(config)
