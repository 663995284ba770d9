"""Merging several traces into one: by time of day, or aligned at their beginnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from mirrord.core.errors import Refused
from mirrord.traces.model import SLICE_OF, Batch, Facts
from mirrord.traces.ordering import merge
from mirrord.traces.store import TraceFile, TraceWriter

#: Records of each trace that are held in memory at a time.
_PIECE_ROWS = 1 << 18


def merge_traces(
    traces: Sequence[TraceFile],
    target: str | Path,
    *,
    align: Literal["clock", "start"] = "clock",
    same_volumes: bool = False,
    name: str | None = None,
) -> TraceFile:
    """Store all records of several traces as one trace.

    align: "clock": by the time of day of each; "start": all begin at 0. same_volumes: volumes of
    the same name are one volume; otherwise each is named `TRACE/VOLUME`. Slices of one trace have
    its zero and its volumes: by the clock they need neither a date nor `same_volumes`. `Refused`
    when another trace has no date and align is "clock".
    """
    parts = {trace.facts.notes.get(SLICE_OF) for trace in traces}
    of_one = align == "clock" and len(parts) == 1 and None not in parts
    same_volumes = same_volumes or of_one
    for trace in traces:
        if align == "clock" and trace.facts.date_ns is None and not of_one:
            raise Refused(
                f"the trace {trace.facts.name} has no date",
                where=str(trace.path),
                hint="To align all traces at their beginnings, use --align start.",
            )
    # What is added to the times of each, before the first of all is made 0.
    epochs = [
        (trace.facts.date_ns or 0) if align == "clock" else -trace.first_ns for trace in traces
    ]
    zero = min(epoch + trace.first_ns for trace, epoch in zip(traces, epochs, strict=True))
    volumes, places = _volumes([trace.facts for trace in traces], same_volumes)
    dated = align == "clock" and traces[0].facts.date_ns is not None
    facts = Facts(
        name or "+".join(dict.fromkeys(trace.facts.name for trace in traces))[:100],
        "merged",
        volumes,
        zero if dated else None,
        {"sorted": "yes", "merged": ", ".join(trace.facts.name for trace in traces)[:1000]},
    )
    streams = [
        _placed(trace, epoch - zero, place)
        for trace, epoch, place in zip(traces, epochs, places, strict=True)
    ]
    with TraceWriter(target, facts) as writer:
        for batch in merge(streams):
            writer.write(batch)
    return TraceFile(target)


def _volumes(facts: Sequence[Facts], same: bool) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The names of all volumes, and for each trace the indices of its own among them."""
    names: dict[str, int] = {}
    places = []
    for index, each in enumerate(facts):
        own = [volume if same else f"{each.name}/{volume}" for volume in each.volumes]
        if not same:  # two traces may have the same name
            own = [name if name not in names else f"{name}#{index}" for name in own]
        places.append(np.asarray([names.setdefault(name, len(names)) for name in own], np.uint32))
    return tuple(names), places


def _placed(trace: TraceFile, shift_ns: int, place: np.ndarray) -> Iterator[Batch]:
    for batch in trace.batches(rows=_PIECE_ROWS):
        yield replace(batch, time_ns=batch.time_ns + shift_ns, volume=place[batch.volume])
