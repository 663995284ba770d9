"""When a mirror updates on a traced workload: the update intervals of a replay.

A grid divides a trace's time into intervals; each ends with an update. An interval contains the
records from its start up to, not including, its end. The records after the last update are an
interval too: the last, partial one is counted (SnapMirror, section 4: one update at the end of the
trace).
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrord.core.errors import UsageError
from mirrord.core.units import format_duration
from mirrord.schedules.schedule import Schedule
from mirrord.traces.model import Facts

NS = 1_000_000_000
#: Update intervals of the paper's Figure 2, seconds.
PAPER_S = (60, 300, 900, 1800, 3600, 21600, 43200, 86400)
#: Monday 2024-01-01 00:00 UTC: the assumed start of a trace without a date.
_UNDATED_NS = 1_704_067_200 * NS
#: More updates than this in one grid are taken for a typing error.
UPDATES_MAX = 5_000_000


@dataclass(frozen=True, slots=True)
class LagTarget:
    """Updates as rarely as possible with the copy never older than `target_s`, over a link of
    `rate` bytes per second with a fixed time of `overhead_s` per update.

    schedule: a `lag` schedule whose windows and blackouts apply to the updates, or None.
    """

    target_s: float
    rate: float
    overhead_s: float = 1.0
    schedule: Schedule | None = None
    epoch_ns: int = _UNDATED_NS


@dataclass(frozen=True, slots=True)
class Grid:
    """Update intervals: of one length, between explicit instants, or planned by a lag target.

    seconds: the length, from the first record on; else `boundaries` holds the instants of the
    updates (nanoseconds in the trace's time, ascending), or `lag` decides during the replay.
    """

    label: str
    seconds: float | None = None
    boundaries: tuple[int, ...] | None = None
    lag: LagTarget | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not 1e-6 <= self.seconds <= 1e9:
            raise UsageError(
                f"an update interval of {self.seconds:g} s is out of range",
                hint="Give an interval from 1 microsecond to 30 years.",
            )


def fixed(seconds: float) -> Grid:
    """Intervals of that length from the first record on."""
    # A day is "24 h" everywhere in the reports, as in the paper's Figure 2.
    return Grid("24 h" if seconds == 86400 else format_duration(seconds), seconds=seconds)


#: The intervals of Figure 2: 1, 5, 15, 30 min, 1, 6, 12, 24 h.
DEFAULT = tuple(fixed(seconds) for seconds in PAPER_S)


def scheduled(
    schedule: Schedule, facts: Facts, first_ns: int, last_ns: int, *, seed: str = ""
) -> Grid:
    """The updates of a schedule between a trace's first and last record (trace time, ns).

    A trace without a date is assumed to begin on a Monday at 00:00 UTC. seed: the mirror's id,
    which determines phase and jitter. Not for a lag target, which has no fixed times.
    """
    epoch_ns = epoch_of(facts, first_ns)
    instants: list[int] = []
    at_ns = first_ns + epoch_ns
    while (following := schedule.next_after(at_ns, seed=seed)) is not None:
        at_ns = following.at_ns
        if at_ns > last_ns + epoch_ns:
            break
        instants.append(at_ns - epoch_ns)
        if len(instants) > UPDATES_MAX:
            raise UsageError(
                f"'{', '.join(schedule.rules)}' runs more than {UPDATES_MAX:,} times in this trace"
            )
    return Grid(", ".join(schedule.rules), boundaries=tuple(instants))


def lag_target(
    target_s: float,
    rate: float,
    overhead_s: float = 1.0,
    *,
    schedule: Schedule | None = None,
    facts: Facts | None = None,
    first_ns: int = 0,
) -> Grid:
    """Updates as the daemon would start them for a lag target (`mirrord.schedules.lag`).

    rate: the link's, bytes per second, above 0. schedule: for its windows and blackouts.
    """
    epoch_ns = epoch_of(facts, first_ns) if facts else _UNDATED_NS - first_ns
    target = LagTarget(target_s, rate, overhead_s, schedule, epoch_ns)
    return Grid(f"lag {format_duration(target_s)}", lag=target)


def epoch_of(facts: Facts, first_ns: int) -> int:
    """Unix time of the trace's zero, nanoseconds; assumed for a trace without a date."""
    return _UNDATED_NS - first_ns if facts.date_ns is None else facts.date_ns
