"""`python -m tests.sim --seed N --mirrors 100 --hours 24`: one simulation, and what came of it."""

from __future__ import annotations

import argparse
import sys
import traceback

from tests.sim.fleet import Plan
from tests.sim.place import scratch
from tests.sim.run import simulate


def main() -> int:
    """Simulate; the seed is named where it fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from that seed on")
    parser.add_argument("--mirrors", type=int, default=100)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--faults", type=float, default=0.3, help="part of the attempts")
    given = parser.parse_args()
    for seed in range(given.seed, given.seed + given.seeds):
        plan = Plan(seed, given.mirrors, given.hours, fault_rate=given.faults)
        try:
            with scratch() as folder:
                report = simulate(plan, folder)
        except BaseException:
            traceback.print_exc()
            print(f"FAILED with --seed {seed} --mirrors {given.mirrors} --hours {given.hours:g}")
            return 1
        each_ms = 1000 * report.cpu_s / max(1, report.attempts)
        print(
            f"seed {seed}: {given.mirrors} mirrors, {given.hours:g} h, {report.attempts} attempts, "
            f"{report.carried_bytes >> 20} MiB carried, {report.checks} checks\n"
            f"  outcomes {report.outcomes}\n  faults   {report.faults}\n"
            f"  digest   {report.digest[:16]}, {report.cpu_s:.1f} s CPU, {each_ms:.2f} ms each"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
