"""How long a schedule makes a mirror wait: between runs, and outside its windows."""

from __future__ import annotations

from functools import lru_cache

from mirrord.schedules.schedule import Schedule, parse_schedule
from mirrord.schedules.spans import next_edge

_EDGES_MAX = 500


@lru_cache(maxsize=4096)
def open_period_s(schedule: Schedule) -> float:
    """The longest gap between runs while no window or blackout holds them back."""
    if not schedule.windows and not schedule.blackouts:
        return schedule.period_s
    return parse_schedule(schedule.rules, zone=schedule.zone).period_s


def closed_s(schedule: Schedule, from_ns: int, to_ns: int) -> float:
    """How long a schedule was not allowed to run between two moments."""
    closed_ns, at_ns = 0, from_ns
    spans = (*schedule.windows, *schedule.blackouts)
    for _ in range(_EDGES_MAX):
        if at_ns >= to_ns:
            break
        if schedule.allowed(at_ns):
            edge_ns = next_edge(spans, at_ns, schedule.zone)
            if edge_ns is None:
                break
            at_ns = edge_ns
        else:
            open_ns = min(schedule.next_allowed(at_ns), to_ns)
            closed_ns += open_ns - at_ns
            at_ns = open_ns
    return closed_ns / 1e9
