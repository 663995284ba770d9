"""When mirrors run: the next times of one, and the schedules that have names."""

from __future__ import annotations

import itertools
from pathlib import Path

from mirrord.config.schedules import Schedules
from mirrord.core.reports import NamedSchedule, NextRun, NextRuns
from mirrord.core.states import State
from mirrord.engine.mirror import Mirror
from mirrord.engine.report import facts_of
from mirrord.schedules.lag import Run, next_runs, plan_lag
from mirrord.schedules.schedule import Next, Schedule
from mirrord.system import clock

_RUNS = 24


def named(folder: Path) -> list[NamedSchedule]:
    """The named schedules with what they say."""
    schedules = Schedules(folder)
    return [schedules.named(name) for name in schedules.names()]


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


def next_times(mirror: Mirror, folder: Path, *, count: int) -> NextRuns:
    """The next times of a mirror, and why each."""
    schedule = Schedules(folder, zone=mirror.relation.zone).of(mirror.definition)
    report = NextRuns(
        mirror.name,
        tuple(mirror.definition.timing.rules),
        schedule.zone if schedule else mirror.relation.zone,
        (),
        "",
    )
    if schedule is None:
        return report._replace(note="it has no schedule; 'mirrord update' updates it")
    row = mirror.catalogue.mirror(mirror.id)
    row = row or mirror.row_seen(facts_of(mirror.destination)[0])
    note = ""
    if row.state is not State.MIRRORED:
        note = f"no updates run while it is {row.state.value}"
    elif row.quiesced:
        note = f"no updates run while it is quiesced ('mirrord resume {mirror.name}')"
    times = _times(mirror, schedule, row.confirmed_ns, count)
    return report._replace(note=note, times=tuple(NextRun(each.at_ns, each.why) for each in times))


def _times(mirror: Mirror, schedule: Schedule, confirmed_ns: int, count: int) -> list[Next]:
    if schedule.lag_s is None:
        return schedule.times(clock.now_ns(), count, seed=mirror.id)
    plan, now_ns = plan_lag(schedule.lag_s, past_runs(mirror)), clock.now_ns()
    first_ns = max((confirmed_ns or now_ns) + round(plan.wait_s * 1e9), now_ns)
    return list(itertools.islice(next_runs(plan, schedule, first_ns), count))
