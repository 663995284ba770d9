"""From traces to workloads: each is opened, replayed with the given schedules, and summarized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mirrord.analysis import grids
from mirrord.analysis.numbers import Workload, from_replay
from mirrord.analysis.replay import FREE_SPACE, replay
from mirrord.core.errors import UsageError
from mirrord.schedules.rates import Rates
from mirrord.schedules.schedule import Schedule
from mirrord.traces.model import BLOCK
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from mirrord.traces.store import TraceFile

#: Options that handle an anomaly, and the note that a trace has if they were given.
_NOTES = {"--align-shift": "align_shift_bytes", "--dedup": "option_dedup_s"}
#: Reports progress: the trace's name, the number of records replayed, the total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """How traces are replayed.

    intervals_s: fixed intervals from the first record, seconds. schedules: each with its name.
    link: for lag targets, which need one. cluster: address of a Dask scheduler, or None.
    """

    intervals_s: tuple[float, ...] = tuple(float(each) for each in grids.PAPER_S)
    schedules: tuple[tuple[str, Schedule], ...] = ()
    link: Rates | None = None
    overhead_s: float = 1.0
    free_space: float = FREE_SPACE
    block: int = BLOCK
    threads: int = 2
    cluster: str | None = None


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
        if plan.cluster is not None:
            from mirrord.analysis import cluster

            found = cluster.replay_on(
                plan.cluster, trace.path, wanted, free_space=plan.free_space, block=plan.block
            )
        else:
            found = replay(
                trace.batches(["time_ns", "volume", "op", "offset", "length"]),
                trace.facts,
                wanted,
                free_space=plan.free_space,
                block=plan.block,
                threads=plan.threads,
                progress=lambda done: progress(trace.facts.name, done, trace.records),
            )
        made = from_replay(found, trace.facts)
        return replace(made, warnings=(*_warnings(trace), *made.warnings))


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
    rates = [] if link is None else [*(rate for rate, _ in link.clauses), link.otherwise]
    known = [rate for rate in rates if rate is not None]
    if not known:
        raise UsageError(
            f"the lag target '{words}' needs the rate of the link",
            hint="Give it, for example --link 20MiB/s.",
        )
    return min(known)


def _warnings(trace: TraceFile) -> tuple[str, ...]:
    """The findings of the import with an option that would handle them, but was not given."""
    handled = {option for option, note in _NOTES.items() if trace.facts.notes.get(note)}
    return tuple(
        f"{each['text']} (option: {each['option']})."
        for each in trace.findings
        if each["option"] and each["option"].split()[0] not in handled
    )


def summed_up(found: Sequence[Workload]) -> list[Workload]:
    """The workloads with distinct names."""
    from mirrord.analysis.reports.common import distinct

    names = distinct([each.name for each in found])
    return [replace(each, name=name) for each, name in zip(found, names, strict=True)]
