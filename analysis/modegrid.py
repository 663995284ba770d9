"""Which modes are simulated for a trace: each maximum latency on each link, with a congestion
policy to compare, and the search for the link that keeps a mirror synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirrord.analysis.links import steps
from mirrord.analysis.modes import PERIOD_S, Link, Outcome, Scenario, simulate
from mirrord.analysis.replay import COLUMNS
from mirrord.core.dynamickeys import DynamicKeys
from mirrord.core.live import Mode
from mirrord.core.text import harmless
from mirrord.core.units import format_duration
from mirrord.policies.congestion import PullAhead
from mirrord.policies.dynamic import Dynamic
from mirrord.policies.fixed import Fixed
from mirrord.policies.policy import AnyPolicy
from mirrord.policies.scheduled import Scheduled
from mirrord.schedules.spans import Span
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from mirrord.traces.store import TraceFile

#: Links are searched up to this rate, bytes per second.
_RATE_MAX = 1.25e11
Progress = Callable[[str, int, int], None]
#: The policies that can be simulated, by name; what each is, in words.
POLICIES: Mapping[str, str] = {
    "dynamic": "synchronous unless clients wait for too long",
    "semi-sync": "a fixed lag",
    "sync": "always synchronous",
    "pull-ahead": "tracks changes when the link is congested, as DRBD does",
}


@dataclass(frozen=True)
class Plan:
    """What is simulated. policy: of `POLICIES`. keys: of the policy `dynamic`, one for each maximum
    latency. rates: of the links, bytes per second. lag_bytes: of the policy `semi-sync`.
    fill_bytes: in flight, at which `pull-ahead` leaves synchronous mode; None: what the link sends
    in the maximum latency. sync_hours: in which the mirror is always synchronous. in_sync: the
    share of the time for which a link is searched, 0: none is.
    """

    policy: str
    keys: tuple[DynamicKeys, ...]
    rates: tuple[int, ...]
    round_trip_s: float
    storage_s: float
    lag_bytes: int = 0
    fill_bytes: int | None = None
    sync_hours: tuple[Span, ...] = ()
    zone: str = "UTC"
    in_sync: float = 0.999
    period_s: float = PERIOD_S

    def scenario(self, keys: DynamicKeys, rate: float) -> Scenario:
        """The policy of this plan on a link."""
        link = Link(round(rate), self.round_trip_s, self.storage_s)
        name = f"{self.policy}, {format_duration(keys.max_lat_s)}"
        return Scenario(name, link, self._policy(keys, link), keys.max_lat_s)

    def _policy(self, keys: DynamicKeys, link: Link) -> AnyPolicy:
        made: AnyPolicy
        if self.policy == "pull-ahead":
            fill = self.fill_bytes
            made = PullAhead(max(1, round(link.rate * keys.max_lat_s)) if fill is None else fill)
        elif self.policy == "semi-sync":
            made = Fixed(Mode.SEMI_SYNC, self.lag_bytes)
        elif self.policy == "sync":
            made = Fixed(Mode.SYNC)
        else:
            made = Dynamic(keys)
        if self.sync_hours:
            return Scheduled(self.sync_hours, Fixed(Mode.SYNC), made, self.zone)
        return made


@dataclass(frozen=True)
class Simulated:
    """A trace and what was simulated on it. outcomes: for each rate, for each maximum latency;
    compared: the same with the congestion policy, empty if that is the one. needed: for each
    maximum latency the rate that keeps the mirror synchronous (bytes per second), None: none does.
    """

    name: str
    epoch_ns: int | None
    first_ns: int
    span_s: float
    outcomes: tuple[Outcome, ...]
    compared: tuple[Outcome, ...]
    needed: tuple[float | None, ...]


def simulate_all(
    path: str,
    plan: Plan,
    reading: ReadOptions,
    *,
    progress: Progress = lambda name, done, total: None,
    importing: Callable[[str, int, int | None, int], None] | None = None,
) -> Simulated:
    """Simulate a plan on a trace, stored or of a foreign format. Errors of opening it, and of
    `simulate`. progress: gets the passes over the trace.
    """
    with open_trace(path, options=reading, progress=importing) as trace:
        pairs = [(keys, rate) for rate in plan.rates for keys in plan.keys]
        scenarios = [plan.scenario(*pair) for pair in pairs]
        others: list[Scenario] = []
        if plan.policy != "pull-ahead":  # with about the same limit
            congested = replace(plan, policy="pull-ahead", sync_hours=())
            others = [congested.scenario(*pair) for pair in pairs]
        progress(trace.facts.name, 0, trace.records)
        found = _simulated(trace, plan, [*scenarios, *others])
        progress(trace.facts.name, trace.records, trace.records)
        outcomes, compared = found[: len(scenarios)], found[len(scenarios) :]
        needed: tuple[float | None, ...] = ()
        if plan.in_sync and plan.policy == "dynamic":
            needed = tuple(_Search(trace, plan, outcomes).found())
        return Simulated(
            harmless(trace.facts.name),
            trace.facts.date_ns,
            trace.first_ns,
            outcomes[0].span_s,
            tuple(outcomes),
            tuple(compared),
            needed,
        )


def _simulated(trace: TraceFile, plan: Plan, scenarios: Sequence[Scenario]) -> list[Outcome]:
    return simulate(
        trace.batches(COLUMNS),
        trace.facts,
        (trace.first_ns, trace.last_ns),
        scenarios,
        period_s=plan.period_s,
    )


class _Search:
    """Finds for each maximum latency the slowest step of `links` on which the mirror is synchronous
    for the wanted share of the time, by bisection: all of them in one pass over the trace.
    """

    def __init__(self, trace: TraceFile, plan: Plan, known: Sequence[Outcome]) -> None:
        self._trace, self._plan = trace, plan
        least = max(1.0, known[0].bytes / max(known[0].span_s, 1.0))
        self._rates = steps(least, _RATE_MAX)
        # Of each maximum latency: the first step that may be enough, and the first known to be.
        self._low = [0] * len(plan.keys)
        self._high = [len(self._rates)] * len(plan.keys)
        for place, keys in enumerate(plan.keys):
            if plan.round_trip_s + plan.storage_s > keys.max_lat_s:
                self._low[place] = len(self._rates)

    def found(self) -> Iterator[float | None]:
        """For each maximum latency the rate, or None."""
        while any(low < high for low, high in zip(self._low, self._high, strict=True)):
            self._halve()
        for high in self._high:
            yield self._rates[high] if high < len(self._rates) else None

    def _halve(self) -> None:
        tried = {
            place: (self._low[place] + self._high[place]) // 2
            for place in range(len(self._plan.keys))
            if self._low[place] < self._high[place]
        }
        scenarios = [
            self._plan.scenario(self._plan.keys[place], self._rates[step])
            for place, step in tried.items()
        ]
        outcomes = _simulated(self._trace, self._plan, scenarios)
        for (place, step), outcome in zip(tried.items(), outcomes, strict=True):
            if outcome.share(Mode.SYNC) >= self._plan.in_sync:
                self._high[place] = step
            else:
                self._low[place] = step + 1
