"""What a live mirror would do under a recorded workload: its modes, its lag, its clients' waits.

The fast loop is native (native/core/src/modes): writes arrive at the times of the trace, whatever
they cost (an open loop). A policy of `mirrord.policies` is asked at control instants. The state at
the beginning is synchronous, with nothing in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mirrord.analysis.ahead import read_ahead
from mirrord.analysis.grids import NS, epoch_of
from mirrord.analysis.numbers import no_writes
from mirrord.analysis.replay import COLUMNS, damaged
from mirrord.core.live import Mode
from mirrord.policies.policy import AnyPolicy, Count, Directive, Observation
from mirrord.system.native import ModeSimulator
from mirrord.traces.model import Batch, Facts

#: Time between two control instants.
PERIOD_S = 0.25
#: Light in a fibre: 200,000 km/s.
_S_PER_KM = 5e-6
MODES = (Mode.SYNC, Mode.SEMI_SYNC, Mode.ASYNC)
_CODES = {Mode.SYNC: 0, Mode.STRICT_SYNC: 0, Mode.SEMI_SYNC: 1, Mode.ASYNC: 2}
#: Points of the course of a lag.
_POINTS = 480
_DAY_S = 86400.0
_NEVER_NS = (1 << 63) - 1


@dataclass(frozen=True)
class Link:
    """rate: bytes per second. round_trip_s: of a message and its reply. storage_s: a write on the
    storage of either end.
    """

    rate: int
    round_trip_s: float
    storage_s: float = 0.0


def round_trip_s(kilometres: float) -> float:
    """The round trip over this distance, by light in a fibre."""
    return 2 * kilometres * _S_PER_KM


@dataclass(frozen=True)
class Scenario:
    """What is simulated. late_s: answers that take longer are counted."""

    name: str
    link: Link
    policy: AnyPolicy
    late_s: float


@dataclass(frozen=True)
class Course:
    """The greatest lag in each of the parts of the trace, bytes, and when each ends; the modes, and
    when each begins (trace time, ns).
    """

    at_ns: tuple[int, ...]
    lag_bytes: tuple[int, ...]
    modes: tuple[tuple[int, Mode], ...]


@dataclass(frozen=True)
class Outcome:
    """What a scenario comes to. mode_s: time in each of `MODES`. changes: of the mode; left_sync:
    how often synchronous mode was left. late: writes that were answered too late; slowest_s: the
    greatest latency. sent: bytes. peak_bytes, peak_s, mean_bytes, mean_s: the lag, what a failure
    of the primary would lose; at_least: it was greatest only after the end of the trace. exposed_s:
    time with a lag. decisions: of the policy.
    """

    scenario: Scenario
    span_s: float
    mode_s: tuple[float, ...]
    changes: int
    left_sync: int
    writes: int
    bytes: int
    late: int
    mean_latency_s: float
    slowest_s: float
    sent: int
    peak_bytes: int
    peak_s: float
    mean_bytes: float
    mean_s: float
    exposed_s: float
    at_least: bool
    decisions: int
    course: Course

    def share(self, mode: Mode) -> float:
        """Share of the time in this mode, 0 to 1."""
        return self.mode_s[MODES.index(mode)] / self.span_s if self.span_s else 0.0

    @property
    def changes_per_day(self) -> float:
        """Changes of the mode."""
        return self.changes / self.span_s * _DAY_S if self.span_s else 0.0

    @property
    def exposure_factor(self) -> float:
        """How many times less often data can be lost than by an asynchronous mirror; infinite if
        it is always synchronous.
        """
        outside = 1 - self.share(Mode.SYNC)
        return 1 / outside if outside > 0 else float("inf")


def simulate(
    batches: Iterable[Batch],
    facts: Facts,
    span_ns: tuple[int, int],
    scenarios: Sequence[Scenario],
) -> list[Outcome]:
    """Simulate these scenarios on a trace whose records are ordered by time, in one pass.

    span_ns: first and last time of the trace. `Refused` when it has no writes, `Damaged` when
    records are out of order or have impossible ranges.
    """
    runs = [_Run(each, facts, span_ns) for each in scenarios]
    for batch in read_ahead(batches):
        if len(batch):
            columns = [np.ascontiguousarray(getattr(batch, name)).data for name in COLUMNS]
            for run in runs:
                run.feed(columns)
    return [run.finish() for run in runs]


@dataclass
class _Run:
    """A scenario while it is simulated."""

    scenario: Scenario
    facts: Facts
    span_ns: tuple[int, int]
    mode: Mode = Mode.SYNC
    decisions: int = 0
    mode_ns: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))
    modes: list[tuple[int, Mode]] = field(default_factory=list)

    def __post_init__(self) -> None:
        link, first_ns = self.scenario.link, self.span_ns[0]
        storage_ns = round(link.storage_s * NS)
        self.native = ModeSimulator(
            link.rate,
            storage_ns + round(link.round_trip_s * NS),
            storage_ns,
            round(self.scenario.late_s * NS),
            round(PERIOD_S * NS),
        )
        self.epoch_ns = epoch_of(self.facts, first_ns)
        self.memory = self.scenario.policy.begin()
        self.storage_us = link.storage_s * 1e6
        self.before_ns, self.wake_ns = first_ns, _NEVER_NS
        self.modes.append((first_ns, self.mode))
        width_ns = max(1, -(-(self.span_ns[1] - first_ns + 1) // _POINTS))
        self.lags = [0] * -(-(self.span_ns[1] - first_ns + 1) // width_ns)
        self.width_ns = width_ns
        first = Observation(0.0, self.mode, True, True, 0.0, wall_ns=first_ns + self.epoch_ns)
        self._decide(first)

    def feed(self, columns: Sequence[memoryview]) -> None:
        """Simulate the records of a batch."""
        try:
            self.native.feed(*columns)
        except ValueError as fault:
            raise damaged(*fault.args) from None
        self._run()

    def _run(self) -> None:
        while not self.native.ended() and (seen := self.native.run(self.wake_ns)) is not None:
            self._observe(seen)

    def _observe(self, seen: Sequence[int]) -> None:
        """Ask the policy at a control instant."""
        (
            now_ns, answered, answered_ns, received, received_ns, oldest_ns, slowest_ns,
            unanswered, buffered, peak_buffered, limit, dirty, peak_lag,
        ) = seen  # fmt: skip
        first_ns = self.span_ns[0]
        self.mode_ns[self.mode] += now_ns - self.before_ns
        self.before_ns = now_ns
        if peak_lag:
            part = max(0, now_ns - 1 - first_ns) // self.width_ns
            self.lags[part] = max(self.lags[part], peak_lag)
        self._decide(
            Observation(
                (now_ns - first_ns) / NS,
                self.mode,
                True,
                self.mode is Mode.SYNC,
                None,
                (),
                unanswered,
                dirty,
                now_ns + self.epoch_ns,
                Count(answered, answered_ns / 1000),
                Count(answered, answered * self.storage_us),
                Count(received, received_ns / 1000),
                oldest_ns / 1000,
                slowest_ns / 1000,
                limit,
                buffered,
                peak_buffered,
            )
        )

    def _decide(self, observation: Observation) -> None:
        directive, self.memory = self.scenario.policy.decide(observation, self.memory)
        self.decisions += 1
        wake_at_s = directive.wake_at_s
        first_ns = self.span_ns[0]
        self.wake_ns = _NEVER_NS if wake_at_s is None else first_ns + _ns(wake_at_s)
        if directive.mode is not self.mode:
            self.mode = Mode.SYNC if directive.mode is Mode.STRICT_SYNC else directive.mode
            self._changed(self.before_ns)
        self._direct(directive)

    def _changed(self, at_ns: int) -> None:
        if self.modes[-1][0] == at_ns:
            self.modes.pop()
        if not self.modes or self.modes[-1][1] is not self.mode:
            self.modes.append((at_ns, self.mode))

    def _direct(self, directive: Directive) -> None:
        within_us = directive.answer_within_us
        self.native.direct(
            _CODES[directive.mode],
            directive.lag_bytes,
            None if within_us is None else round(within_us * 1000),
            directive.max_lag_bytes,
            directive.merge,
            directive.copy,
        )

    def finish(self) -> Outcome:
        """The outcome, after all records."""
        self.native.end()
        self._run()
        self.native.drain()
        (writes, size, sent, late, total_ns, slowest_ns), lag = self.native.totals()
        if not writes:
            raise no_writes(self.facts.name)
        peak_bytes, peak_bytes_at_ns, peak_ns, peak_at_ns, byte_s, age_s, exposed_ns = lag
        first_ns, last_ns = self.span_ns
        span_s = max(1, last_ns - first_ns) / NS
        changes = self.modes[1:]
        before = [mode for _, mode in self.modes]
        parts = range(1, len(self.lags) + 1)
        return Outcome(
            scenario=self.scenario,
            span_s=span_s,
            mode_s=tuple(self.mode_ns[mode] / NS for mode in MODES),
            changes=len(changes),
            left_sync=sum(mode is Mode.SYNC for mode in before[:-1]),
            writes=writes,
            bytes=size,
            late=late,
            mean_latency_s=total_ns / writes / NS,
            slowest_s=slowest_ns / NS,
            sent=sent,
            peak_bytes=peak_bytes,
            peak_s=peak_ns / NS,
            mean_bytes=byte_s / span_s,
            mean_s=age_s / span_s,
            exposed_s=exposed_ns / NS,
            at_least=max(peak_bytes_at_ns, peak_at_ns) > last_ns,
            decisions=self.decisions,
            course=Course(
                tuple(min(first_ns + part * self.width_ns, last_ns) for part in parts),
                tuple(self.lags),
                tuple(self.modes),
            ),
        )


def _ns(seconds: float) -> int:
    return round(min(seconds, 1e9) * NS)
