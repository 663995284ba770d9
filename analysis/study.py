"""From traces to workloads: each is opened, replayed with the given schedules, and summarized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from mirrord.analysis import grids
from mirrord.analysis.links import RATE_MAX, slowest
from mirrord.analysis.numbers import Workload, from_replay
from mirrord.analysis.replay import COLUMNS, FREE_SPACE, replay
from mirrord.analysis.results import Replay
from mirrord.core.errors import Refused, UsageError
from mirrord.core.text import harmless
from mirrord.schedules.rates import Rates
from mirrord.schedules.schedule import Schedule
from mirrord.traces import filters
from mirrord.traces.model import BLOCK
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from mirrord.traces.store import TraceFile

#: Options that handle an anomaly, and the note that a trace has if they were given.
_NOTES = {"--align-shift": "align_shift_bytes", "--dedup": "option_dedup_s"}
MINUTE_NS = 60 * grids.NS
#: In a shorter trace a minute is a large part, minutes.
_MINUTES_MIN = 4
#: Reports progress: the trace's name, the number of records replayed, the total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """How traces are replayed.

    intervals_s: fixed intervals from the first record, seconds. schedules: each with its name.
    bounds_s: of semi-synchronous mirrors, seconds. link: for lag targets, which need one. cluster:
    address of a Dask scheduler, or None. sensitivity: replay again without the busiest minute.
    """

    intervals_s: tuple[float, ...] = tuple(float(each) for each in grids.PAPER_S)
    schedules: tuple[tuple[str, Schedule], ...] = ()
    bounds_s: tuple[float, ...] = ()
    link: Rates | None = None
    overhead_s: float = 1.0
    free_space: float = FREE_SPACE
    block: int = BLOCK
    threads: int = 2
    cluster: str | None = None
    sensitivity: bool = False


def study(
    path: str,
    plan: Plan,
    reading: ReadOptions,
    *,
    progress: Progress = lambda name, done, total: None,
    importing: Callable[[str, int, int | None, int], None] | None = None,
) -> Workload:
    """Replay one trace, stored or of a foreign format. Errors of opening and replaying; `Refused`
    when it has no writes. importing: reports the progress of reading a foreign one.
    """
    with open_trace(path, options=reading, progress=importing) as trace:
        wanted = grids_of(plan, trace)

        def replayed(without_ns: tuple[int, int] | None = None) -> Workload:
            found = _replay(trace, plan, wanted, without_ns, progress)
            return from_replay(found, trace.facts)

        made = replayed()
        if plan.sensitivity and (minute := busiest_minute(made)) is not None:
            with suppress(Refused):  # all writes are in that minute
                made = replace(made, quieter=replayed(minute), busiest_ns=minute)
        return replace(made, warnings=(*_warnings(trace), *made.warnings))


def _replay(
    trace: TraceFile,
    plan: Plan,
    wanted: Sequence[grids.Grid],
    without_ns: tuple[int, int] | None,
    progress: Progress,
) -> Replay:
    """Replay a trace, here or on a cluster. without_ns: a span that is left out."""
    if plan.cluster is not None:
        from mirrord.analysis import cluster

        return cluster.replay_on(
            plan.cluster,
            trace.path,
            wanted,
            bounds_s=plan.bounds_s,
            free_space=plan.free_space,
            block=plan.block,
            without_ns=without_ns,
        )
    batches = trace.batches(COLUMNS)
    return replay(
        batches if without_ns is None else filters.without(batches, *without_ns),
        trace.facts,
        wanted,
        bounds_s=plan.bounds_s,
        free_space=plan.free_space,
        block=plan.block,
        threads=plan.threads,
        progress=lambda done: progress(trace.facts.name, done, trace.records),
    )


def busiest_minute(workload: Workload) -> tuple[int, int] | None:
    """The minute with most bytes written (trace time, ns); None: the trace has few minutes."""
    writes = workload.writes
    width = max(1, round(MINUTE_NS / writes.bin_ns))
    if workload.span_s < _MINUTES_MIN * MINUTE_NS / grids.NS or width >= len(writes.bytes):
        return None
    total = np.append(0, np.cumsum(writes.bytes))
    begin_ns = writes.start_ns + int((total[width:] - total[:-width]).argmax()) * writes.bin_ns
    return begin_ns, begin_ns + width * writes.bin_ns


def grids_of(plan: Plan, trace: TraceFile) -> list[grids.Grid]:
    """The update intervals of a plan on a trace. `UsageError` for a lag target without a link."""
    wanted = [grids.fixed(seconds) for seconds in plan.intervals_s]
    for words, schedule in plan.schedules:
        if schedule.lag_s is None:
            grid = grids.scheduled(schedule, trace.facts, trace.first_ns, trace.last_ns)
        else:
            grid = grids.lag_target(
                schedule.lag_s,
                _rate(plan.link, words),
                plan.overhead_s,
                schedule=schedule,
                facts=trace.facts,
                first_ns=trace.first_ns,
            )
        wanted.append(grids.Grid(words, grid.seconds, grid.boundaries, grid.lag))
    return wanted


def _rate(link: Rates | None, words: str) -> float:
    """The link at its slowest, bytes per second."""
    if link is None or slowest(link) == RATE_MAX:
        raise UsageError(
            f"the lag target '{words}' needs the rate of the link",
            hint="Give it, for example --link 20MiB/s.",
        )
    return slowest(link)


def _warnings(trace: TraceFile) -> tuple[str, ...]:
    """The findings of the import with an option that would handle them, but was not given."""
    handled = {option for option, note in _NOTES.items() if trace.facts.notes.get(note)}
    return tuple(
        f"{each['text']} (option: {each['option']})."
        for each in trace.findings
        if each["option"] and each["option"].split()[0] not in handled
    )


def summed_up(found: Sequence[Workload]) -> list[Workload]:
    """The workloads with distinct names, which are safe to print."""
    from mirrord.analysis.reports.common import distinct

    names = distinct([harmless(each.name) for each in found])
    return [replace(each, name=name) for each, name in zip(found, names, strict=True)]
