"""A mirror on another host: latency, bulk, cuts, and a hundred mirrors; btrbk over ssh beside it.

The other host is a network namespace with a real sshd; both have btrfs on loop devices of one
disk. One part alone: `python -m benchmarks.remote latency` (or `bulk`, `text`, `cuts`, `hundred`).
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Row, median, mirrord_command, run, save, table, timed
from benchmarks.remote_stage import Stage, stage
from benchmarks.update_latency import _change, _visible
from mirrord.link import connect

ROUNDS = 25
FILES = 200


def measure() -> list[Row]:
    """All parts, each on a stage of its own."""
    return [row for part in PARTS.values() for row in part()]


def latency() -> list[Row]:
    """4 KiB over an open connection, over a first one, and by a run of btrbk, alternating."""
    with stage(4) as at:
        home = at.one / "home"
        run("btrfs", "subvolume", "create", home)
        for number in range(FILES):
            (home / f"file{number}").write_bytes(os.urandom(4096))
        btrbk = at.btrbk("btrbk", ["home"])
        keeping = at.btrbk("btrbk-keeping", ["home"], "all")
        api = at.service()
        api.create("home", f"btrfs:{home}", f"btrfs://dr{at.two / 'mirror'}")
        api.initialize("home")
        for words in (btrbk, keeping):
            at.run(words)
        inner, whole, first, command, peer, kept = [], [], [], [], [], []
        for number in range(ROUNDS):
            _change(home, 5 * number)
            seconds, whole_call = _visible(api)
            inner.append(seconds)
            whole.append(whole_call)
            connect.close_all()
            first.append(timed(lambda: api.status("home")))
            _change(home, 5 * number + 1)
            command.append(
                timed(functools.partial(at.run, mirrord_command("update", "home")))
            )
            _change(home, 5 * number + 2)
            peer.append(timed(functools.partial(at.run, btrbk)))
            _change(home, 5 * number + 3)
            kept.append(timed(functools.partial(at.run, keeping)))
        assert len(os.listdir(at.two / "btrbk-keeping")) == ROUNDS + 1
        api.close()
    ours, theirs, bare = median(inner), median(peer), median(kept)
    return [
        Row("other host: 4 KiB update, call to visible", ours * 1e3, "ms", "<=", 40,
            "btrbk run over ssh", theirs * 1e3),
        Row("  times faster than btrbk", theirs / ours, "x", ">=", 20,
            note=f"{bare / ours:.1f} x a run that deletes nothing ({bare * 1e3:.0f} ms)"),
        Row("  whole call, old snapshots pruned", median(whole) * 1e3, "ms", "<=", 40,
            note=f"{theirs / median(whole):.1f} x faster than btrbk, which deletes as many"),
        Row("  first connection, in a process that runs", median(first), "s", "<=", 0.6),
        Row("  whole command with its first connection", median(command), "s", "<=", 0.6,
            "btrbk run over ssh", theirs),
    ]  # fmt: skip


PARTS: dict[str, Callable[[], list[Row]]] = {"latency": latency}


def main(names: list[str]) -> int:
    """Run the named parts, or all."""
    rows: list[Row] = []
    for name in names or PARTS:
        found = PARTS[name]()
        save(f"remote-{name}", found)
        rows += found
    print(table(rows))
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
