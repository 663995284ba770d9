"""Updates of this checkout against those of another one, which take turns at going first.

`python -m benchmarks.against CHECKOUT [PART...]`: CHECKOUT was set up by its `setup.sh`. Both run
at the same time, each with file systems and a network namespace of its own, and update when they
are told to: what slows the machine down slows both. `MIRRORD_BENCH_ROUNDS` (60; of a hundred
mirrors 12) sets how often. Parts: btrfs, block (here), link (btrfs, over SSH), hundred-btrfs and
hundred-block (over SSH, eight at once). A ratio is the median of those of the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PARTS = ("btrfs", "block", "link", "hundred-btrfs", "hundred-block")
ROUNDS = int(os.environ.get("MIRRORD_BENCH_ROUNDS", "0"))
WARM_UP = 3


def main(words: list[str]) -> int:
    """Print the medians of both and the ratios; status 2 for what cannot be compared."""
    given, parts = (words or [""])[0], words[1:] or list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        print(f"error: there is no part '{unknown[0]}'\nhint: Parts: {', '.join(PARTS)}.")
        return 2
    other = Path(given).resolve()
    if not given or not (other / ".venv/bin/python").exists():
        print(
            f"error: '{given}' is not a checkout of mirrord that is set up\nhint: Make one with "
            "'git worktree add FOLDER REVISION', and run its setup.sh."
        )
        return 2
    if os.geteuid() != 0:
        print("error: benchmarks mount btrfs on loop devices\nhint: Run them as root.")
        return 1
    for part in parts:
        rounds = ROUNDS or (12 if part.startswith("hundred") else 60)
        with _worker(Path(__file__).parents[1], part) as ours, _worker(other, part) as theirs:
            took: dict[str, list[dict[str, float]]] = {"this": [], "other": []}
            both = {"this": ours, "other": theirs}
            for each in both.values():
                assert each.stdout and each.stdout.readline() == "ready\n"
            for number in range(rounds + WARM_UP):
                for name in [*both] if number % 2 else [*both][::-1]:
                    took[name].append(_turn(both[name]))
        for what in took["this"][0]:
            mine, its = ([row[what] * 1e3 for row in took[name][WARM_UP:]] for name in took)
            ratio = statistics.median(a / b for a, b in zip(mine, its, strict=True))
            print(
                f"{part}, {what}: {statistics.median(mine):.1f} ms, "
                f"other {statistics.median(its):.1f} ms, ratio {ratio:.3f}",
                flush=True,
            )
    return 0


@contextmanager
def _worker(checkout: Path, part: str) -> Iterator[subprocess.Popen[str]]:
    """A process with that checkout's packages; it ends when its input does."""
    words = [str(checkout / ".venv/bin/python"), "-P", __file__, "--worker", part]
    process = subprocess.Popen(
        ["unshare", "--net", "--mount", *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()


def _turn(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdin and process.stdout
    process.stdin.write("go\n")
    process.stdin.flush()
    return dict(json.loads(process.stdout.readline()))


def _work(part: str, orders: IO[str]) -> None:
    """An update for each line of `orders`; its times in seconds, as JSON, on a line of output.

    It uses only what both checkouts have.
    """
    from benchmarks import harness, remote
    from benchmarks.remote_stage import stage

    kind = "block" if part.endswith("block") else "btrfs"
    names = [f"m{number}" for number in range(100)] if "hundred" in part else ["home"]
    with stage(6) as at:
        here = part in ("btrfs", "block")
        api: Any = harness.service(at.inside) if here else at.service()
        for name in names:
            remote._small(kind, at.one / name)
            there = f"{kind}:{at.two / name}" if here else f"{kind}://dr{at.two / name}"
            api.create(name, f"{kind}:{at.one / name}", there)
            api.initialize(name)
        print("ready", flush=True)
        for _ in orders:
            for name in names:
                remote._change_small(kind, at.one / name)
            os.sync()
            if len(names) == 1:
                took = _one(api)
            else:
                took = {"whole": harness.timed(lambda: remote._update_all(at, names))}
            print(json.dumps(took), flush=True)
        api.close()


def _one(api: Any) -> dict[str, float]:
    from benchmarks.harness import timed
    from benchmarks.update_latency import _visible

    used = time.process_time()
    visible, whole = _visible(api)
    used = time.process_time() - used
    unchanged = timed(lambda: api.update("home"))
    return {"visible": visible, "whole": whole, "cpu": used, "unchanged": unchanged}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _work(sys.argv[2], sys.stdin)
    else:
        sys.exit(main(sys.argv[1:]))
