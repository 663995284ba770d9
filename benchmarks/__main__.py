"""`python -m benchmarks [NAME...]`: measure, print a table, save JSON in benchmarks/out/."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from benchmarks.harness import Row, save, table

NAMES = (
    "update_latency",
    "many_files",
    "bulk",
    "receiver",
    "verify",
    "block",
    "service",
    "fleet",
    "compress",
    "remote",
    "zfs",
    "traces",
    "table2",
    "recording",
    "pause",
    "pause_hosts",
    "pause_sizes",
    "pause_cost",
    "cassandra",
    "replay",
    "live",
    "live_capped",
    "live_modes",
    "live_recording",
    "modes_accuracy",
)


def main(names: list[str]) -> int:
    """Run the named measurements, or all; status 1 when a target is missed."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"error: no benchmark is called '{unknown[0]}'\nhint: Names: {', '.join(NAMES)}.")
        return 2
    if os.geteuid() != 0:
        print(
            "error: benchmarks mount btrfs on loop devices\nhint: Run them as root (or with sudo)."
        )
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that mounts and images are removed
    rows: list[Row] = []
    for name in names or NAMES:
        print(f"measuring {name} …", flush=True)
        found = importlib.import_module(f"benchmarks.{name}").measure()
        save(name, found)
        rows += found
    print("\n" + table(rows))
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
