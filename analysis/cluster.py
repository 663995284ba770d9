"""The replay on a Dask cluster: the same parts as local threads, on other machines.

Each worker reads the trace itself and counts the blocks of its parts, so a table of blocks that is
too large for one machine is distributed. The results are identical to those of one machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirrord.analysis.grids import DEFAULT, Grid
from mirrord.analysis.replay import COLUMNS, FREE_SPACE, Counts, Parts, check_options
from mirrord.analysis.replay import combine as combined
from mirrord.analysis.replay import count as counted
from mirrord.analysis.results import Replay
from mirrord.core.errors import MirrordError, Refused, Unreachable, Unsupported
from mirrord.traces import filters
from mirrord.traces.model import BLOCK, Batch
from mirrord.traces.store import TraceFile

#: Timeout for the connection to the scheduler, seconds.
_CONNECT_S = 30


def replay_on(
    address: str,
    path: Path,
    grids: Sequence[Grid] = DEFAULT,
    *,
    bounds_s: Sequence[float] = (),
    free_space: float = FREE_SPACE,
    block: int = BLOCK,
    without_ns: tuple[int, int] | None = None,
) -> Replay:
    """Replay a stored trace that each worker reads at the same path; options as for `replay`.

    address: the scheduler's, such as `tcp://host:8786`. Lag targets are planned locally first.
    without_ns: a span that is left out.
    `Unsupported` without Dask, `Unreachable` when no scheduler answers, `Refused` when the cluster
    has no worker, and the errors of the workers.
    """
    check_options(free_space, block)
    trace = TraceFile(path)
    planned, instants = _plan(trace, grids, block, without_ns)
    with closing(_connect(address)) as client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise Refused(
                "the cluster has no workers",
                where=address,
                hint=f"Start a worker: dask worker {address}",
            )
        jobs = [
            client.submit(
                _count,
                str(path.resolve()),
                planned,
                Parts(k, 1, workers),
                bounds_s,
                block,
                without_ns,
                pure=False,
            )
            for k in range(workers)
        ]
        counts = _gather(client, jobs, address)
    counts = [replace(counts[0], instants=instants), *counts[1:]]
    return combined(counts, trace.facts, grids, free_space=free_space, block=block)


def _plan(
    trace: TraceFile, grids: Sequence[Grid], block: int, without_ns: tuple[int, int] | None
) -> tuple[list[Grid], tuple[tuple[int, ...] | None, ...]]:
    """The grids, with the instants of lag targets planned; and these instants."""
    lags = [grid for grid in grids if grid.lag is not None]
    if not lags:
        return list(grids), tuple(None for _ in grids)
    found = iter(counted(_batches(trace, without_ns), lags, Parts(), block=block).instants)
    instants = tuple(next(found) if grid.lag is not None else None for grid in grids)
    planned = [
        grid if at is None else Grid(grid.label, boundaries=at)
        for grid, at in zip(grids, instants, strict=True)
    ]
    return planned, instants


def _count(
    path: str,
    grids: list[Grid],
    parts: Parts,
    bounds_s: Sequence[float],
    block: int,
    without_ns: tuple[int, int] | None,
) -> Counts:
    """The job of a worker."""
    batches = _batches(TraceFile(path), without_ns)
    return counted(batches, grids, parts, bounds_s=bounds_s, block=block)


def _batches(trace: TraceFile, without_ns: tuple[int, int] | None) -> Iterator[Batch]:
    batches = trace.batches(COLUMNS)
    return batches if without_ns is None else filters.without(batches, *without_ns)


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise Unsupported(
            "Dask is not installed", hint="Install it: pip install 'mirrord[cluster]'"
        ) from None
    try:
        made: Any = Client
        return made(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Unreachable(
            "no Dask scheduler answers",
            where=address,
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="Start one: dask scheduler",
        ) from None


def _gather(client: Any, jobs: list[Any], address: str) -> list[Counts]:
    try:
        found: list[Counts] = client.gather(jobs)
    except MirrordError as error:
        error.add_note("raised by a worker of the cluster, which reads the trace at the same path")
        raise
    except (OSError, RuntimeError, ImportError) as error:
        raise Unreachable(
            "the cluster did not finish the replay",
            where=address,
            why=f"{type(error).__name__}: {error}".splitlines()[0],
            hint="Workers need this mirrord and enough memory; see the output of `dask worker`.",
        ) from None
    return found
