"""`python -m tests.sim --seed N --mirrors 1000 --hours 24`: one simulation, and what came of it.

`--alone` is the scheduler without an engine, for ten thousand mirrors. `--stories --seeds 1000
--random` plays the stories of one mirror with all verbs (telling.py) from a random seed on, as a
nightly job does, and prints the shortest story that still fails. `--groups` likewise: groups over
several hosts (tests/sim/groups), which are paused while their snapshots are taken.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections import Counter

from tests.sim.alone import AlonePlan, simulate_alone
from tests.sim.checks import Violation
from tests.sim.events import events_of
from tests.sim.fleet import Plan
from tests.sim.groups.events import turns_of
from tests.sim.groups.simulate import shrink as shrink_turns
from tests.sim.groups.simulate import simulate as simulate_group
from tests.sim.groups.simulate import violation
from tests.sim.place import scratch
from tests.sim.run import simulate
from tests.sim.telling import fails, shrink, tell

#: Larger fleets are looked at less often: the watch looks at all mirrors each time.
_LARGE = 200


def main(words: list[str] | None = None) -> int:
    """Simulate; the seed is named where it fails. words: of the command line, if not this one's."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from that seed on")
    parser.add_argument("--mirrors", type=int, default=100)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--faults", type=float, default=0.3, help="part of the attempts; 0: none")
    parser.add_argument("--alone", action="store_true", help="the scheduler without an engine")
    parser.add_argument("--stories", action="store_true", help="of one mirror, with all verbs")
    parser.add_argument("--events", type=int, default=30, help="of a story")
    parser.add_argument("--groups", action="store_true", help="of members on several hosts")
    parser.add_argument("--turns", type=int, default=5, help="commands for a group")
    parser.add_argument("--random", action="store_true", help="begin with a random seed")
    given = parser.parse_args(words)
    if given.random:
        given.seed = random.SystemRandom().randrange(1_000_000_000)
    if given.stories:
        return _stories(given)
    if given.groups:
        return _groups(given)
    for seed in range(given.seed, given.seed + given.seeds):
        try:
            lines = _alone(given, seed) if given.alone else _fleet(given, seed)
        except BaseException:
            traceback.print_exc()
            print(f"FAILED with --seed {seed} --mirrors {given.mirrors} --hours {given.hours:g}")
            return 1
        print(f"seed {seed}: {given.mirrors} mirrors, {given.hours:g} h, " + "\n  ".join(lines))
    return 0


def _stories(given: argparse.Namespace) -> int:
    met: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.seeds):
        events = events_of(seed, given.events)
        try:
            with scratch() as folder:
                met += tell(events, folder).met
        except Violation as violation:
            print(f"seed {seed}: {violation}\n\nThe shortest story that fails:")
            events = shrink(events)
            print(*events, sep="\n")
            print(fails(events))
            print(f"FAILED with --stories --seed {seed} --events {given.events}")
            return 1
    counted = ", ".join(f"{number} {what}" for what, number in sorted(met.items()))
    print(f"seeds {given.seed} to {given.seed + given.seeds - 1}: {counted}")
    return 0


def _groups(given: argparse.Namespace) -> int:
    met: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.seeds):
        turns = turns_of(seed, given.turns)
        try:
            with scratch() as folder:
                met += simulate_group(seed, turns, folder)
        except Violation as found:
            print(f"seed {seed}: {found}\n\nThe fewest turns and faults that fail:")
            turns = shrink_turns(seed, turns)
            print(*turns, sep="\n")
            print(violation(seed, turns))
            print(f"FAILED with --groups --seed {seed} --turns {given.turns}")
            return 1
    counted = ", ".join(f"{number} {what}" for what, number in sorted(met.items()))
    print(f"seeds {given.seed} to {given.seed + given.seeds - 1}: {counted}")
    return 0


def _fleet(given: argparse.Namespace, seed: int) -> list[str]:
    plan = Plan(seed, given.mirrors, given.hours, fault_rate=given.faults)
    if given.mirrors > _LARGE:
        plan = Plan(
            seed,
            given.mirrors,
            given.hours,
            fault_rate=given.faults,
            beat_s=60.0,
            look_every_s=3600.0,
        )
    with scratch() as folder:
        report = simulate(plan, folder)
    each_ms = 1000 * report.cpu_s / max(1, report.attempts)
    return [
        f"{report.attempts} attempts, {report.carried_bytes >> 20} MiB carried, "
        f"{report.checks} checks of views, {report.slots} times of schedules",
        f"outcomes {report.outcomes}",
        f"faults   {report.faults}, {report.crashes} crashes of the service",
        f"alarms   {report.alarms}",
        f"queue    {report.waits} waited, {report.longest_wait_s:.1f} s at most",
        f"digest   {report.digest[:16]}, {report.cpu_s:.1f} s CPU, {each_ms:.2f} ms each",
    ]


def _alone(given: argparse.Namespace, seed: int) -> list[str]:
    report = simulate_alone(AlonePlan(seed, given.mirrors, given.hours, troubled=given.faults > 0))
    each_us = 1e6 * report.cpu_s / max(1, report.runs)
    return [
        f"{report.runs} runs, {report.failed} failed, {report.slots} times of schedules",
        f"alarms   {report.alarms}",
        f"queue    {report.most} ran at once, {report.longest_wait_s:.1f} s waited at most",
        f"digest   {report.digest[:16]}, {report.cpu_s:.1f} s CPU, {each_us:.0f} us each",
    ]


if __name__ == "__main__":
    sys.exit(main())
