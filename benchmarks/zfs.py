"""A 4 KiB change on OpenZFS, from call to visible, in the virtual machine that the tests use:
mirrord, Debian's syncoid and bzfs after the same changes, alternating. The machine is emulated, so
only ratios are meaningful.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, median
from tests.zfsvm import session
from tests.zfsvm.guest import PYTHON, TREE

ROUNDS = 7
SNAPSHOTS = 2000


def measure() -> list[Row]:
    """Both pools are in one machine, so no tool needs a link."""
    guest = session.guest()
    try:
        inside = Path(__file__).with_name("zfs_inside.py").read_text(encoding="utf-8")
        guest.user("write_text", f"{TREE}/zfs_inside.py", inside)
        said = guest.run(
            "env",
            f"PYTHONPATH={TREE}",
            PYTHON,
            f"{TREE}/zfs_inside.py",
            str(ROUNDS),
            str(SNAPSHOTS),
        )
    finally:
        session.close()
    return rows(json.loads(said.splitlines()[-1]))


def rows(found: dict[str, Any]) -> list[Row]:
    """The results, with the targets."""
    ours, whole, program = (median(found[name]) for name in ("visible", "whole", "program"))
    syncoid, bzfs = median(found["syncoid"]), median(found["bzfs"])
    few, many = median(found["few"]), median(found["many"])
    executed = found["executed"]
    return [
        Row(
            "4 KiB update on ZFS, times faster than syncoid",
            syncoid / ours,
            "x",
            ">=",
            5,
            note=f"{ours * 1e3:.0f} ms to {syncoid * 1e3:.0f} ms",
        ),
        Row(
            "  times faster than bzfs",
            bzfs / ours,
            "x",
            ">=",
            2,
            note=f"{ours * 1e3:.0f} ms to {bzfs * 1e3:.0f} ms",
        ),
        Row(
            "  whole call against syncoid",
            syncoid / whole,
            "x",
            ">=",
            1,
            note=f"{whole * 1e3:.0f} ms with what is tidied up",
        ),
        Row(
            "  whole command against syncoid",
            syncoid / program,
            "x",
            ">=",
            1,
            note=f"'mirrord update': {program * 1e3:.0f} ms",
        ),
        Row("  whole command against bzfs", bzfs / program, "x", ">=", 1),
        Row(
            "  zfs commands of an update",
            executed["mirrord"],
            "",
            "<=",
            executed["syncoid"],
            "syncoid",
            executed["syncoid"],
            note=f"'mirrord update' {executed['mirrord update']}, bzfs {executed['bzfs']}",
        ),
        Row(
            f"  with {SNAPSHOTS:,} snapshots, against 10",
            many / few,
            "x",
            "<=",
            1.5,
            note=f"{few * 1e3:.0f} ms to {many * 1e3:.0f} ms",
        ),
    ]
