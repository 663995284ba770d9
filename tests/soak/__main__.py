"""`python -m tests.soak --minutes 60 [--seed N]`: what can happen to a mirror, at random.

Each seed is a game of its own: two btrfs file systems on loop devices, a mirror, people who write,
and events. It ends with 1 at the first rule that did not hold; the history says what led to it.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.soak.events import play
from tests.soak.game import game
from tests.soak.history import History, Violation
from tests.support.btrfs import require_btrfs


def main() -> int:
    """Play seeds until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="the first seed; else a random one")
    parser.add_argument("--seeds", type=int, help="so many, whatever time it takes")
    parser.add_argument("--events", type=int, default=20, help="events of each seed")
    parser.add_argument("--histories", type=Path, default=Path("soak-histories"))
    parser.add_argument("--keep-going", action="store_true", help="also after a violation")
    parser.add_argument("--keep-images", action="store_true", help="of each seed")
    parser.add_argument("--quiet", action="store_true", help="histories go to their files only")
    given = parser.parse_args()
    require_btrfs()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    given.histories.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + 60 * given.minutes
    total: collections.Counter[str] = collections.Counter()
    broken: list[str] = []
    seed = first
    try:
        while seed < first + given.seeds if given.seeds else time.monotonic() < end_s:
            found = one(seed, given, total, None if given.seeds else end_s)
            if found is not None:
                broken.append(f"seed {seed}: {found.rule} ({given.histories / f'{seed}.log'})")
                if not given.keep_going:
                    break
            seed += 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        broken.append(f"seed {seed}: interrupted")
    counted = ", ".join(f"{number} {what}" for what, number in total.items())
    print(f"seeds {first} to {seed}: {counted or 'nothing'}")
    for line in broken:
        print(f"FAILED {line}")
    return 1 if broken else 0


def one(
    seed: int, given: argparse.Namespace, total: collections.Counter[str], until_s: float | None
) -> Violation | None:
    """Play a seed; what did not hold."""
    history = History(given.histories / f"{seed}.log", quiet=given.quiet)
    history.add(f"seed {seed}")
    try:
        with game(seed, history, keep=given.keep_images) as played:
            try:
                play(played, given.events, until_s=until_s)
            except Violation as violation:
                history.add(f"VIOLATION seed {seed}: {violation}")
                if given.quiet:
                    print(f"VIOLATION seed {seed}: {violation}")
                return violation
            finally:
                total["events"] += played.events
                total["commands"] += played.commands.count
                total["acknowledged lines"] += len(played.people.lines)
                total["seeds"] += 1
    finally:
        history.close()
    return None


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
