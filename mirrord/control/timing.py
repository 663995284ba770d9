"""When mirrors run: the next times of one, and the schedules that have names."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from mirrord.config.schedules import Schedules
from mirrord.core.errors import UsageError
from mirrord.engine.mirror import Mirror
from mirrord.schedules.lag import Run, plan_lag
from mirrord.schedules.schedule import Next, Schedule
from mirrord.system import clock

_RUNS = 24
#: Who may only look could keep the service at work for as long as they like otherwise.
_TIMES_MAX = 10_000


def named(folder: Path) -> list[dict[str, Any]]:
    """The named schedules with what they say."""
    schedules = Schedules(folder)
    found = []
    for name in schedules.names():
        each = schedules.named(name)
        own = (folder / f"{name}.toml").exists()
        found.append(
            {
                "name": name,
                "description": each.description,
                "run": list(each.run),
                "zone": each.zone,
                "jitter": each.jitter,
                "windows": list(each.windows),
                "blackouts": list(each.blackouts),
                "from": str(folder / f"{name}.toml") if own else "mirrord",
            }
        )
    return found


def past_runs(mirror: Mirror) -> list[Run]:
    """What the last updates took, oldest first: what a lag target is planned by."""
    done = [
        row
        for row in reversed(mirror.catalogue.transfers(mirror.id, limit=_RUNS + 1))
        if row.result == "done" and row.verb == "update" and row.base
    ]
    return [
        Run((row.started_ns - before.started_ns) / 1e9, row.duration_ms / 1000, row.stream_bytes)
        for before, row in itertools.pairwise(done)
        if row.started_ns > before.started_ns
    ]


def next_times(mirror: Mirror, folder: Path, *, count: int) -> dict[str, Any]:
    """The next times of a mirror, and why each."""
    if not 1 <= count <= _TIMES_MAX:
        raise UsageError(f"--count {count} is out of range", why=f"expected 1 to {_TIMES_MAX}")
    schedule = Schedules(folder, zone=mirror.relation.zone).of(mirror.definition)
    report: dict[str, Any] = {
        "name": mirror.name,
        "schedule": list(mirror.definition.timing.rules),
        "zone": schedule.zone if schedule else mirror.relation.zone,
        "times": [],
        "note": "",
    }
    if schedule is None:
        report["note"] = "it has no schedule; 'mirrord update' updates it"
        return report
    row = mirror.row()
    if row.state.value != "mirrored":
        report["note"] = f"no updates run while it is {row.state.value}"
    elif row.quiesced:
        report["note"] = f"no updates run while it is quiesced ('mirrord resume {mirror.name}')"
    report["times"] = [
        {"at_ns": each.at_ns, "why": each.why}
        for each in _times(mirror, schedule, row.confirmed_ns, count)
    ]
    return report


def _times(mirror: Mirror, schedule: Schedule, confirmed_ns: int, count: int) -> list[Next]:
    if schedule.lag_s is None:
        return schedule.times(clock.now_ns(), count, seed=mirror.id)
    plan = plan_lag(schedule.lag_s, past_runs(mirror))
    times, base_ns = [], confirmed_ns or clock.now_ns()
    for number in range(count):
        at_ns = max(base_ns + round(plan.wait_s * 1e9), clock.now_ns())
        at_ns = schedule.next_allowed(at_ns)
        why = plan.why if number == 0 else "if the previous run takes the expected time"
        times.append(Next(at_ns, why))
        base_ns = at_ns
    return times
